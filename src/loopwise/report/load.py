"""Read a run folder into a `Run`. Absent records leave their part out; damaged ones raise `InputError`.

| file | written by | part |
|---|---|---|
| `manifest.json` | every command | where it comes from |
| `measure.json` | `loopwise measure`, `loopwise demo` | loss, change, convergence, types, difficulty |
| `allocate.json` | `loopwise allocate`, `loopwise demo` | policies, oracle, best fixed depth |
| `lens.json`, `lens.npz` | `loopwise measure`, `loopwise demo` | passages for the depth lens |
| `sample.json` | `loopwise demo` | generated text |
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from loopwise.config import InputError
from loopwise.records import read_json
from loopwise.report.run import (
    Allocation,
    Convergence,
    Curve,
    Fixed,
    Matched,
    Oracle,
    Point,
    Policy,
    Sample,
    TypeRow,
)

Json = Mapping[str, Any]
Part = TypeVar("Part")


def curve(found: Json, key: str, bounds: str | None = None) -> Curve | None:
    """`{depth: value}` (and `{depth: [low, high]}`) as a curve; values that are null are left out."""
    values = {int(d): v for d, v in (found.get(key) or {}).items() if v is not None}
    if not values:
        return None
    depths = tuple(sorted(values))
    ends = {int(d): v for d, v in (found.get(bounds or "") or {}).items()}
    if not all(d in ends for d in depths):
        return Curve(depths, tuple(float(values[d]) for d in depths))
    low, high = (tuple(float(ends[d][i]) for d in depths) for i in (0, 1))
    return Curve(depths, tuple(float(values[d]) for d in depths), low, high)


def histogram(found: Json) -> dict[int, int]:
    """`{depth: count}` with integer keys."""
    return {int(d): int(n) for d, n in found.items()}


def convergence(found: Json) -> Convergence:
    """Distribution of convergence depth."""
    return Convergence(
        threshold=found["threshold"],
        median=found["median"],
        mean=found.get("mean"),
        share_after={int(d): float(s) for d, s in found.get("share_after", {}).items()},
        censored=found.get("censored"),
        histogram=histogram(found.get("histogram", {})),
    )


def type_row(name: str, found: Json) -> TypeRow:
    """One token type."""
    ends = {key: found.get(key) for key in ("share_ci", "median_ci", "mean_ci")}
    counts = histogram(found.get("histogram", {}))
    return TypeRow(
        name=name,
        count=found["count"],
        share=found["share"],
        median=found["median"],
        mean=found.get("mean"),
        histogram=counts,
        **ends,
    )


def policy(found: Json) -> Policy:
    """One row of the allocation table."""
    signal = found.get("signal") or ("depth" if found["name"] in ("A0", "depth") else found["name"].split("<")[0])
    points = [
        Point(p.get("threshold"), p["mean_depth"], p["loss"], p.get("loss_ci"), p.get("agreement"), p.get("cost_ratio"))
        for p in found.get("points", [])
    ]
    return Policy(
        name=found["name"],
        signal=signal,
        mode=found.get("mode", "replay"),
        points=points,
        matched=matched(found.get("matched")),
        cost=found.get("signal_cost"),
        tokens=found.get("tokens"),
    )


def matched(found: Json | None) -> Matched | None:
    """Matched-quality point, or None where the policy never matches."""
    if not found or found.get("mean_depth") is None or found.get("saving") is None:
        return None
    names = {
        "loss": "loss",
        "saving_ci": "saving_ci",
        "cost_ratio": "cost_ratio",
        "cost_ratio_ci": "cost_ratio_ci",
        "saving_vs_best": "saving_vs_best_fixed",
        "saving_vs_best_ci": "saving_vs_best_fixed_ci",
        "cost_vs_best": "cost_ratio_vs_best_fixed",
        "cost_vs_best_ci": "cost_ratio_vs_best_fixed_ci",
    }
    return Matched(found["mean_depth"], found["saving"], **{mine: found.get(theirs) for mine, theirs in names.items()})


def allocation(found: Json) -> Allocation:
    """The whole table."""
    best, oracle = found.get("best_fixed"), found.get("oracle")
    return Allocation(
        tokens=found.get("tokens", 0),
        groups=found.get("num_groups", 0),
        unit=found.get("ci_over", "documents"),
        reference_depth=found["reference_depth"],
        reference_loss=found.get("reference_loss"),
        tolerance=found.get("tolerance"),
        policies=[policy(p) for p in found["policies"]],
        oracle=_oracle(oracle) if oracle else None,
        best_fixed=Fixed(best["depth"], best.get("loss"), best.get("depth_ci"), best.get("cost_ratio"))
        if best
        else None,
        layout=found.get("layout"),
        probe=found.get("probe") or {},
    )


def _oracle(found: Json) -> Oracle:
    points = [(p["mean_depth"], p["loss"]) for p in found.get("points", [])]
    return Oracle(found["mean_depth"], found["loss"], sorted(points))


def sample(found: Json) -> Sample:
    """Generated text with exit depths."""
    pieces, depths = found["pieces"], found["depths"]
    if len(pieces) != len(depths):
        raise ValueError(f"{len(pieces)} pieces for {len(depths)} depths")
    return Sample(
        policy=found["policy"],
        prompt=found["prompt"],
        pieces=pieces,
        depths=depths,
        max_depth=found["max_depth"],
        readouts=found.get("readouts"),
    )


def part(path: Path, build: Callable[[Any], Part]) -> Part | None:
    """Read one record if it is there; a record that lacks what it should hold raises `InputError`."""
    if not path.is_file():
        return None
    found = read_json(path)
    try:
        return build(found)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(
            f"{path}: is no such record ({type(error).__name__}: {error}): run the command again"
        ) from None
