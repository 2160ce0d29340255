"""`loopwise train --sweep`: several runs, one after another, and a table of where their loss saturates."""

import argparse
import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopwise.checkpoint.native import open_checkpoint
from loopwise.config import InputError
from loopwise.records import read_json, write_json
from loopwise.train.config import Recipe
from loopwise.train.inputs import Inputs
from loopwise.train.overrides import override
from loopwise.train.saturation import losses, pooled, saturation

EVAL_BATCHES = 8


def grid(sweeps: list[str]) -> list[dict[str, str]]:
    """`["depth.mean=2,4", "train.seed=0,1"]` to one dictionary of overrides per combination."""
    axes = []
    for sweep in sweeps:
        name, equals, values = sweep.partition("=")
        if not equals or not all(values.split(",")):
            raise InputError(f"--sweep is '{sweep}': use FIELD=VALUE,VALUE, e.g. depth.mean=2,4,8")
        axes.append([(name, value) for value in values.split(",")])
    return [dict(combination) for combination in itertools.product(*axes)]


def run_sweep(
    args: argparse.Namespace,
    base: Recipe,
    train: Callable[[argparse.Namespace, Recipe], tuple[dict[str, Any], Inputs]],
) -> dict[str, Any]:
    """Train every combination in its own folder below --out; finished ones are not repeated, others are resumed."""
    out = args.out or Path("runs") / f"{base.name}-sweep"
    rows = []
    for changes in grid(args.sweep):
        name = ",".join(f"{field.rpartition('.')[2]}{value}" for field, value in changes.items())
        done = out / name / "saturation.json"
        recipe = override(base, changes)
        if not done.is_file() or read_json(done)["binding"] != recipe.binding():
            one = argparse.Namespace(**{**vars(args), "out": out / name, "resume": True})
            result, inputs = train(one, recipe)
            write_json(done, {"binding": recipe.binding(), **_measure(changes, recipe, result, inputs)})
        rows.append(_row(done))
        write_json(out / "sweep.json", {"recipe": base.to_dict(), "rows": rows})
    return {"sweep": str(out / "sweep.json"), "rows": rows, "by_mean": pooled(rows)}


def _row(done: Path) -> dict[str, Any]:
    """What a sweep keeps of a finished run: its figures and, from its checkpoint, what makes them checkable."""
    found = {key: value for key, value in read_json(done).items() if key != "binding"}
    about = read_json(done.parent / "checkpoint" / "manifest.json")
    kept = {key: about[key] for key in ("command", "commit", "seed", "data_sha256", "hardware", "created")}
    return found | {"checkpoint": f"{done.parent.name}/checkpoint", "manifest": kept}


def _measure(changes: dict[str, str], recipe: Recipe, result: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
    model = open_checkpoint(result["checkpoint"]).model()
    found = {}
    for name, held in inputs.held_out.items():
        by_window = losses(model, held.batches, recipe.model.max_depth, EVAL_BATCHES)
        found[name] = {**saturation(by_window)._asdict(), "loss": [round(float(x), 6) for x in by_window.mean(0)]}
    keep = ("checkpoint", "tokens", "val_loss_by_depth", "tokens_per_s", "median_convergence_depth")
    return {
        "changes": changes,
        "depth": dataclasses.asdict(recipe.depth),
        "seed": recipe.train.seed,
        **{key: result[key] for key in keep},
        "saturation": found,
    }


def card(result: dict[str, Any]) -> str:
    """For people."""
    lines = [
        f"{len(result['rows'])} runs; records in {result['sweep']}",
        "  sampler            mean  source        saturates at, 95% interval  (one per seed)",
    ]
    lines += [
        f"  {row['sampler']:<18} {row['mean']:>4g}  {row['source']:<12}  {row['depth']:>5.2f} "
        f"[{row['low']:.2f}, {row['high']:.2f}]  ({', '.join(map(str, row['depths']))})"
        for row in result["by_mean"]
    ]
    return "\n".join(lines)
