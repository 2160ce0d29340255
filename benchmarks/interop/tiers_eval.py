"""lm-eval scores of a checkpoint at every tier and at fixed depths, with mean depth and compute.

    python benchmarks/interop/tiers_eval.py tiny --data DATA --tasks lambada,arc_easy --limit 120 \
        --depths 1,5,8 --out benchmarks/results/interop

Writes `tiers-NAME.json`, keeping what it holds of tasks that this run lacks. Tiers of equal policy are run once.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from loopwise import hardware, records
from loopwise.checkpoint.native import open_checkpoint
from loopwise.eval.adapter import LoopwiseLM
from loopwise.eval.run import data_digest, evaluate
from loopwise.exit.policy import Policy


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", required=True)
    parser.add_argument("--limit", type=int, default=120)
    parser.add_argument("--depths", default="1")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    checkpoint, tasks = open_checkpoint(args.checkpoint), args.tasks.split(",")
    tiers = [tier["name"] for tier in (checkpoint.tiers or {"tiers": []})["tiers"]]
    ways = {f"depth={depth}": Policy.parse(f"depth={depth}") for depth in args.depths.split(",")}
    ways |= {f"tier {name}": checkpoint.tier(name).policy for name in tiers}
    path = args.out / f"tiers-{checkpoint.name}.json"
    before = records.read_json(path) if path.is_file() else {"rows": {}, "manifests": {}}
    rows: dict[str, dict[str, Any]] = {}
    for name, policy in ways.items():
        same = next((row for row in rows.values() if row["policy"] == str(policy)), None)
        if same:
            rows[name] = same
            continue
        started = time.perf_counter()
        model = LoopwiseLM(checkpoint, policy, batch_size=args.batch_size)
        found = evaluate(model, tasks, data=args.data, limit=args.limit)
        wall_s = round(time.perf_counter() - started, 1)
        rows[name] = {"policy": str(policy), "tasks": {task: row | {"wall_s": wall_s} for task, row in found.items()}}
        for task, row in found.items():
            print(name, task, {k: round(v, 4) for k, v in row.items()}, flush=True)
    about = records.manifest(
        command="python benchmarks/interop/tiers_eval.py",
        config={"tasks": tasks, "limit": args.limit, "model": checkpoint.config.to_dict()},
        data_sha256=data_digest(tasks, args.data),
        seed=0,
        hardware=hardware.describe(),
        commit=hardware.commit(),
    )
    about |= {"checkpoint": checkpoint.name, "weights_sha256": checkpoint.digest}
    for name, row in before["rows"].items():
        rows[name] = row | {"tasks": row["tasks"] | rows.get(name, {"tasks": {}})["tasks"]}
    manifests = before["manifests"] | dict.fromkeys(tasks, about)
    records.write_json(path, {"rows": rows, "manifests": manifests})


if __name__ == "__main__":
    main()
