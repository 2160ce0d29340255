"""`loopwise train`: pretrain a recipe with randomized depth; resumable."""

import argparse
import os
from pathlib import Path
from typing import Any

from loopwise import hardware, records
from loopwise.cli import sweep
from loopwise.config import InputError
from loopwise.data.tokenizer import Tokenizer
from loopwise.recipes.catalog import RECIPES, recipe
from loopwise.train import plan
from loopwise.train.config import Recipe
from loopwise.train.inputs import Inputs, open_inputs
from loopwise.train.job import Job
from loopwise.train.loop import Trainer
from loopwise.train.overrides import override
from loopwise.train.sample import sampler
from loopwise.train.trackers import TRACKERS, tracker
from loopwise.train.world import World, enter

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
    parser.add_argument(
        "--track", action="append", default=[], metavar="NAME", help=f"also log to {', '.join(TRACKERS)}"
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="FIELD=V,V",
        help="one run per value (repeatable: all combinations)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print memory, FLOPs, time and cost, and stop")
    plans = parser.add_argument_group("assumptions of --dry-run")
    plans.add_argument("--device", default="rtx-4090", help=f"{', '.join(plan.DEVICES)} (default rtx-4090)")
    plans.add_argument(
        "--mfu", type=float, default=0.35, metavar="F", help="share of peak FLOPs reached (default 0.35)"
    )
    plans.add_argument(
        "--price", type=float, metavar="USD", help="dollars an hour and device (default: see docs/train.md)"
    )
    plans.add_argument("--processes", type=int, default=1, metavar="N", help="devices (default 1)")


def run(args: argparse.Namespace) -> dict[str, Any] | None:
    """Train; under torchrun every process runs this and the first one answers."""
    if args.minutes is not None and not args.minutes > 0:
        raise InputError(f"--minutes is {args.minutes:g}: use a positive number")
    chosen = override(recipe(args.recipe), args.overrides | ({"train.tokens": args.tokens} if args.tokens else {}))
    if args.dry_run:
        if args.processes < 1:
            raise InputError(f"--processes is {args.processes}: use at least 1")
        return plan.plan(
            chosen, plan.budget(args.device, mfu=args.mfu, dollars_per_hour=args.price, processes=args.processes)
        )
    if args.data is None:
        raise InputError("--data is missing: write shards with 'loopwise prepare' and give their folder")
    world = enter(chosen.train.device)
    try:
        if args.sweep:
            if world.size > 1:
                raise InputError("--sweep runs one process: start it without torchrun")
            return sweep.run_sweep(args, chosen, lambda one, made: _train(one, made, world))
        result, _ = _train(args, chosen, world)
    finally:
        world.close()
    return result if world.first else None


def _train(args: argparse.Namespace, chosen: Recipe, world: World) -> tuple[dict[str, Any], Inputs]:
    inputs = open_inputs(args.data, chosen, world)
    main = max(inputs.held_out.values(), key=lambda held: held.weight)
    out = args.out or Path("runs") / chosen.name
    job = Job(
        recipe=chosen,
        batches=inputs.train,
        held_out=inputs.held_out,
        weigh=inputs.weigh,
        tokenizer=inputs.tokenizer,
        fingerprint=inputs.fingerprint,
        out=out,
        minutes=args.minutes,
        # torchrun starts the same command again after a rank died: then it has to continue
        resume=args.resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0,
        quiet=args.quiet,
        manifest=_manifest(args, chosen, inputs),
        sample=sampler(Tokenizer.load(inputs.tokenizer), main.batches),
    )
    extra = [tracker(kind, out, chosen.name, chosen.to_dict()) for kind in args.track] if world.first else []
    return Trainer(job, world, extra).run(), inputs


def _manifest(args: argparse.Namespace, chosen: Recipe, inputs: Inputs) -> dict[str, Any]:
    return records.manifest(
        command=f"loopwise train {args.recipe}",
        config=chosen.to_dict(),
        seed=chosen.train.seed,
        data_sha256=inputs.fingerprint["data_sha256"],
        hardware=hardware.describe(),
        commit=hardware.commit(),
    )


def card(result: dict[str, Any]) -> str:
    """For people."""
    if "dry_run" in result:
        return plan.card(result)
    if "sweep" in result:
        return sweep.card(result)
    losses = ", ".join(f"{depth}: {loss:.4f}" for depth, loss in result["val_loss_by_depth"].items())
    mfu = f" (MFU {result['mfu']:.1%})" if result["mfu"] else ""
    rate = f"{result['tokens_per_s']:,.0f} tokens/s, {result['flops_per_s']:.3g} FLOP/s{mfu}"
    return "\n".join(
        (
            f"trained {result['tokens']:,} tokens in {result['steps']:,} steps at {rate}",
            f"  checkpoint        {result['checkpoint']}",
            f"  held-out loss     {losses} (depth: nats)",
            f"  convergence       median token settles at depth {result['median_convergence_depth']:g}",
        )
    )
