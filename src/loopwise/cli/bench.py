"""`loopwise bench NAME`: a benchmark with its baselines in one run; ratios are taken side by side."""

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from loopwise.config import ModelConfig
from loopwise.recipes.catalog import recipe
from loopwise.records import write_json

EXAMPLE = "loopwise bench train --steps 16 --out benchmarks/results/train.json"


class Bench(NamedTuple):
    """Where a benchmark lives: a module with `configure(parser)`, and how to call it with the parsed arguments."""

    module: str
    about: str
    call: Callable[[Any, argparse.Namespace], dict[str, Any]]


BENCHES: dict[str, Bench] = {
    "signal": Bench(
        "loopwise.calibrate.bench",
        "FLOPs and time of one check of each exit signal, beside a core pass and a readout",
        lambda module, args: module.bench_signal(
            {name: recipe(name).model for name in args.shape or module.SHAPES},
            batches=tuple(args.batch or module.BATCHES),
            keys=args.keys,
            repeats=args.repeats,
            device=args.device,
        ),
    ),
    "exit": Bench(
        "loopwise.calibrate.compare",
        "every exit signal and schedule at equal quality, in replay and live, checks paid for",
        lambda module, args: module.bench_exit(args, recipe(module.SHAPE).model),
    ),
    "fixed-point": Bench(
        "loopwise.calibrate.accelerate",
        "Aitken and Anderson steps against plain passes of the frozen core",
        lambda module, args: module.bench_fixed_point(args),
    ),
    "train": Bench(
        "loopwise.train.bench",
        "sampled against fixed depth, and against a plain transformer",
        lambda module, args: module.bench_train(recipe(args.recipe), steps=args.steps, plain=not args.no_plain),
    ),
    "decode": Bench(
        "loopwise.engine.bench.decode",
        "the engine against static, token-level, no-refill and masked decoding, and transformers",
        lambda module, args: module.bench_decode(_shape(args), args),
    ),
    "serve": Bench(
        "loopwise.serve.bench",
        "a server under load with cancels, slow readers and nonsense; throughput and latency by tier",
        lambda module, args: module.bench_serve(args),
    ),
    "prefill": Bench(
        "loopwise.engine.bench.prefill",
        "per-token exit in prompts, and time to first token with a shared prefix",
        lambda module, args: module.bench_prefill(_shape(args), args),
    ),
}


def _shape(args: argparse.Namespace) -> ModelConfig:
    """The shape a benchmark of the engine replays on."""
    return recipe("micro" if args.quick else args.recipe).model


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare one subcommand for each benchmark."""
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True, title="benchmarks")
    for name, bench in BENCHES.items():
        found = names.add_parser(name, help=bench.about, description=bench.about, allow_abbrev=False)
        importlib.import_module(bench.module).configure(found)
        found.add_argument("--out", type=Path, metavar="FILE", help="also write the record as JSON")
        for flag in ("--json", "--quiet"):  # accepted after NAME too
            found.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run one benchmark; `rows`, `ratios` and `manifest`."""
    bench = BENCHES[args.name]
    result = bench.call(importlib.import_module(bench.module), args)
    if args.out:
        write_json(args.out, result)
    return result


def card(result: dict[str, Any]) -> str:
    """For people."""
    lines = [f"  {row['name']:<32} {row['value']:>14,.4g} {row['unit']}" for row in result["rows"]]
    lines += [f"  {name:<32} {value:>14.3f}x" for name, value in result["ratios"].items()]
    hardware = result["manifest"]["hardware"]
    return "\n".join([*lines, f"  {hardware['processor']}, {hardware['threads']} threads"])
