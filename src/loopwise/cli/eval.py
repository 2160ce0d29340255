"""`loopwise eval`: lm-eval tasks, batched, with per-token exit."""

import argparse
import importlib
from pathlib import Path
from typing import Any

from loopwise.checkpoint.native import open_checkpoint
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
    results = runner.evaluate(model, tasks, data=args.data, limit=args.limit)
    tokens = sum(row["tokens"] for row in results.values())
    passes = sum(row["tokens"] * row["mean_depth"] for row in results.values())
    return {
        "checkpoint": checkpoint.name,
        "policy": str(model.policy),
        "results": results,
        "mean_depth": passes / max(tokens, 1),
    }


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
