#!/usr/bin/env bash
# Every benchmark with its baselines, one process each; records under benchmarks/results.
# Usage: benchmarks/run.sh [LOOPWISE]     (the command; default: loopwise). QUICK=1 runs small sizes.
# A benchmark that fails or is missing is named at the end and makes the exit status 1: none is left out in silence.
set -u
loopwise=${1:-loopwise}
results=$(dirname "$0")/results
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
quick=${QUICK:+--quick}
failed=()

bench() {  # NAME OUTPUT ARGUMENTS...
    local name=$1 out=$results/$2
    shift 2
    echo "== bench $name $*"
    if ! "$loopwise" bench "$name" --out "$out" "$@"; then failed+=("$name $*"); fi
}

if [ -n "$quick" ]; then results=$(mktemp -d); fi
# Replay runs on the layout with one plane: eight planes of 128 residents at 300 positions are 17 GB.
for rows in 16 32 64; do bench decode "engine/decode-rows-$rows.json" --part replay --rows $rows --layout shared $quick; done
bench decode engine/decode-live-schedule.json --part replay --schedule live --layout shared $quick
bench decode engine/decode-tiny.json --part real --part planner $quick
bench decode engine/decode-batch.json --part batch --threads 0 $quick
bench decode engine/decode-shape.json --part shape --threads 0 --layout shared $quick
bench prefill engine/prefill.json $quick
if [ -n "$quick" ]; then
    bench signal exit/signal.json --shape tiny --batch 1 --repeats 1
    bench train train.json --recipe micro --steps 2
    bench serve serve/tiny.json --seconds 2 --alone 1 --streams 2 --max-tokens 4
else
    bench signal exit/signal.json
    bench train train.json
    bench serve serve/tiny.json
fi
echo "left out, because they are studies of hours: loopwise bench exit, loopwise bench fixed-point (docs/exit.md)"

if [ ${#failed[@]} -gt 0 ]; then
    printf 'not run or failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
