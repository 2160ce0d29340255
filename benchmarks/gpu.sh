#!/usr/bin/env bash
# On one CUDA device, in under eight minutes: parity tests marked gpu, then decode and prefill; records under
# benchmarks/results/gpu. `benchmarks/gpu.sh train` runs the trainer's benchmark instead.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=benchmarks/results/gpu
"$python" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "gpu.sh: this torch sees no CUDA device")'
mkdir -p "$out"
if [ "${1:-}" = train ]; then
    timeout 460 "$python" -m loopwise bench train --recipe small --out "$out/train.json"
    exit
fi
timeout 150 "$python" -m pytest -m gpu tests -q
cuda="--device cuda --dtype bfloat16"
timeout 180 "$python" -m loopwise bench decode $cuda --part replay --part real --out "$out/decode.json"
timeout 120 "$python" -m loopwise bench prefill $cuda --out "$out/prefill.json"
