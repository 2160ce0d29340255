"""`loopwise eval`: lm-eval tasks, batched, with per-token exit."""

import argparse
import importlib
import time
from pathlib import Path
from typing import Any

from loopwise import hardware, records
from loopwise.checkpoint.native import Checkpoint, open_checkpoint
from loopwise.cli.evaluation import open_run, write_record
from loopwise.cli.generate import choose_policy
from loopwise.config import InputError

EXAMPLE = "loopwise eval tiny --tasks lambada,arc_easy --data data/eval --limit 200 --policy 'kl<1e-3'"

SCORES = ("acc", "acc_norm", "perplexity", "exact_match", "word_perplexity", "bits_per_byte")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("checkpoint", metavar="CKPT", help="'tiny', a checkpoint folder, or a hub id org/name")
    parser.add_argument("--tasks", required=True, help="comma-separated: lambada, arc_easy, hellaswag, lm-eval's")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--policy", help="exit policy, e.g. 'kl<1e-3' or 'depth=4' (default: training mean)")
    how.add_argument("--tier", help="a tier of the checkpoint's tiers.json")
    parser.add_argument("--data", type=Path, help="folder with the local tasks' jsonl files")
    parser.add_argument("--limit", type=int, help="items per task (default: all)")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences at a time (default 16)")
    parser.add_argument("--out", type=Path, help="folder to write the record to: eval.json, every item, the manifest")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Evaluate."""
    try:
        adapter = importlib.import_module("loopwise.eval.adapter")
        runner = importlib.import_module("loopwise.eval.run")
    except ImportError:
        raise InputError("loopwise eval needs the 'eval' and 'hf' extras: pip install 'loopwise[eval,hf]'") from None
    for name, value in (("limit", args.limit), ("batch-size", args.batch_size)):
        if value is not None and value < 1:
            raise InputError(f"argument '--{name}' is {value}: use at least 1")
    checkpoint = open_checkpoint(args.checkpoint)
    policy = choose_policy(checkpoint, args.policy, args.tier)
    model = adapter.LoopwiseLM(checkpoint, policy, batch_size=args.batch_size)
    tasks = [name.strip() for name in args.tasks.split(",") if name.strip()]
    out, started = open_run(args.out), time.perf_counter()
    items: dict[str, Any] | None = None if out is None else {}
    results = runner.evaluate(model, tasks, data=args.data, limit=args.limit, items=items)
    tokens = sum(row["tokens"] for row in results.values())
    passes = sum(row["tokens"] * row["mean_depth"] for row in results.values())
    found = {
        "checkpoint": checkpoint.name,
        "policy": str(model.policy),
        "results": results,
        "mean_depth": passes / max(tokens, 1),
    }
    if out is not None:
        about = _manifest(args, checkpoint, runner.data_digest(tasks, args.data))
        write_record(out, "eval", found | {"items": items}, about | {"wall_s": time.perf_counter() - started})
    return found


def _manifest(args: argparse.Namespace, checkpoint: Checkpoint, data: str) -> dict[str, Any]:
    """Where the record comes from; folders stay out of it."""
    asked = {name: getattr(args, name) for name in ("tasks", "policy", "tier", "limit", "batch_size")}
    about = records.manifest(
        command="loopwise eval",
        config={"arguments": asked, "model": checkpoint.config.to_dict()},
        data_sha256=data,
        seed=0,
        hardware=hardware.describe(),
        commit=hardware.commit(),
    )
    return about | {"checkpoint": checkpoint.name, "weights_sha256": checkpoint.digest}


def card(result: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{result['checkpoint']} under {result['policy']}, mean depth {result['mean_depth']:.2f}"]
    for name, row in result["results"].items():
        scores = ", ".join(f"{k} {v:.4f}" for k, v in row.items() if k in SCORES)
        lines.append(
            f"  {name:<12} {scores}  ({row['samples']} items, mean depth {row['mean_depth']:.2f}, "
            f"{row['flops_per_token']:,.0f} FLOPs per token)"
        )
    return "\n".join(lines)
