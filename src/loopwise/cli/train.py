"""`loopwise train`: pretrain a recipe with randomized depth; resumable."""

import argparse
import os
from pathlib import Path
from typing import Any

from loopwise import hardware, records
from loopwise.config import InputError
from loopwise.recipes.catalog import RECIPES, recipe
from loopwise.train.config import Recipe
from loopwise.train.inputs import open_inputs
from loopwise.train.loop import Job, Trainer
from loopwise.train.overrides import override
from loopwise.train.world import enter

EXAMPLE = "loopwise train micro --data data/shards --out runs/micro --train.lr 1e-3 --depth.mean 4"
OVERRIDES = True


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("recipe", metavar="RECIPE", help=", ".join(RECIPES))
    parser.add_argument("--data", type=Path, metavar="DIR", help="shards that 'loopwise prepare' wrote")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder (default runs/RECIPE)")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, metavar="M", help="stop, learning rate decayed, after about M minutes")
    budget.add_argument("--tokens", metavar="N", help="train on N tokens, e.g. 20M (default: the recipe's)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out (start it if there is none)")


def run(args: argparse.Namespace) -> dict[str, Any] | None:
    """Train; under torchrun every process runs this and the first one answers."""
    if args.minutes is not None and not args.minutes > 0:
        raise InputError(f"--minutes is {args.minutes:g}: use a positive number")
    chosen = override(recipe(args.recipe), args.overrides | ({"train.tokens": args.tokens} if args.tokens else {}))
    if args.data is None:
        raise InputError("--data is missing: write shards with 'loopwise prepare' and give their folder")
    world = enter(chosen.train.device)
    inputs = open_inputs(args.data, chosen, world)
    job = Job(
        recipe=chosen, batches=inputs.train, held_out=inputs.held_out, tokenizer=inputs.tokenizer,
        fingerprint=inputs.fingerprint, out=args.out or Path("runs") / chosen.name, minutes=args.minutes,
        # torchrun starts the same command again after a rank died: then it has to continue
        resume=args.resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0,
        quiet=args.quiet, manifest=_manifest(args, chosen, inputs.fingerprint),
    )
    try:
        result = Trainer(job, world).run()
    finally:
        world.close()
    return result if world.first else None


def _manifest(args: argparse.Namespace, chosen: Recipe, fingerprint: dict[str, Any]) -> dict[str, Any]:
    return records.manifest(
        command=f"loopwise train {args.recipe}", config=chosen.to_dict(), seed=chosen.train.seed,
        data_sha256=fingerprint["data_sha256"], hardware=hardware.describe(), commit=hardware.commit(),
    )


def card(result: dict[str, Any]) -> str:
    """For people."""
    losses = ", ".join(f"{depth}: {loss:.4f}" for depth, loss in result["val_loss_by_depth"].items())
    return "\n".join((
        f"trained {result['tokens']:,} tokens in {result['steps']:,} steps at {result['tokens_per_s']:,.0f} tokens/s",
        f"  checkpoint        {result['checkpoint']}",
        f"  held-out loss     {losses} (depth: nats)",
        f"  convergence       median token settles at depth {result['median_convergence_depth']:g}",
    ))
