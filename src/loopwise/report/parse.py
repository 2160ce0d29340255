"""Records as JSON turned into the dataclasses of `run.py`: the only file that knows how commands spell them.

A record that lacks what it must hold raises KeyError, TypeError or ValueError; `load.py` says so in one line.
"""

from collections.abc import Mapping
from typing import Any

from loopwise.report.run import (
    Allocation,
    Convergence,
    Curve,
    Difficulty,
    Fixed,
    Matched,
    Measure,
    Oracle,
    Point,
    Policy,
    TypeRow,
)

Json = Mapping[str, Any]


def measurement(found: Json) -> Measure:
    """The whole measurement."""
    loss = curve(found, "loss_by_depth", "loss_ci_by_depth")
    if loss is None:
        raise KeyError("loss_by_depth")
    settled, latent = found.get("convergence"), found.get("latent_convergence")
    rate = (found.get("contraction") or {}).get("rate")
    return Measure(
        tokens=found["tokens"],
        groups=found.get("num_groups", 0),
        unit=found.get("ci_over", "documents"),
        max_depth=found.get("max_depth", loss.depths[-1]),
        mean_depth=_float(found.get("mean_depth")),
        loss=loss,
        kl=curve(found, "kl_by_depth", "kl_ci_by_depth"),
        kl_prev=curve(found, "kl_prev_by_depth", "kl_prev_ci_by_depth"),
        change=curve(found, "state_change_by_depth", "state_change_ci_by_depth"),
        rate=_float(rate),
        convergence=convergence(settled) if settled else None,
        latent=convergence(latent) if latent else None,
        types=[type_row(name, row) for name, row in (found.get("by_type") or {}).items()],
        difficulty=[difficulty(row) for row in found.get("difficulty") or ()],
    )


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _pair(value: Any) -> tuple[float, float] | None:
    return None if value is None else (float(value[0]), float(value[1]))


def difficulty(found: Json) -> Difficulty:
    """Answers of one kind and difficulty."""
    accuracy = curve(found, "accuracy_by_depth", "accuracy_ci_by_depth")
    if accuracy is None:
        raise KeyError("accuracy_by_depth")
    return Difficulty(
        kind=found["kind"],
        k=found["k"],
        count=found["count"],
        accuracy=accuracy,
        depth=_float(found.get("depth")),
        depth_ci=_pair(found.get("depth_ci")),
    )


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
        threshold=float(found["threshold"]),
        median=float(found["median"]),
        mean=_float(found.get("mean")),
        share_after={int(d): float(s) for d, s in found.get("share_after", {}).items()},
        censored=_float(found.get("censored")),
        histogram=histogram(found.get("histogram", {})),
    )


def type_row(name: str, found: Json) -> TypeRow:
    """One token type."""
    return TypeRow(
        name=name,
        count=found["count"],
        share=float(found["share"]),
        median=float(found["median"]),
        mean=_float(found.get("mean")),
        histogram=histogram(found.get("histogram", {})),
        share_ci=_pair(found.get("share_ci")),
        median_ci=_pair(found.get("median_ci")),
        mean_ci=_pair(found.get("mean_ci")),
    )


def policy(found: Json) -> Policy:
    """One row of the allocation table."""
    signal = found.get("signal") or ("depth" if found["name"] in ("A0", "depth") else found["name"].split("<")[0])
    points = [
        Point(
            _float(p.get("threshold")),
            float(p["mean_depth"]),
            float(p["loss"]),
            _pair(p.get("loss_ci")),
            _float(p.get("agreement")),
            _float(p.get("cost_ratio")),
            _float(p.get("loss_increase")),
            _pair(p.get("loss_increase_ci")),
        )
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
    return Matched(
        float(found["mean_depth"]),
        float(found["saving"]),
        loss=_float(found.get("loss")),
        saving_ci=_pair(found.get("saving_ci")),
        cost_ratio=_float(found.get("cost_ratio")),
        cost_ratio_ci=_pair(found.get("cost_ratio_ci")),
        saving_vs_best=_float(found.get("saving_vs_best_fixed")),
        saving_vs_best_ci=_pair(found.get("saving_vs_best_fixed_ci")),
        cost_vs_best=_float(found.get("cost_ratio_vs_best_fixed")),
        cost_vs_best_ci=_pair(found.get("cost_ratio_vs_best_fixed_ci")),
        threshold=_float(found.get("threshold")),
    )


def allocation(found: Json) -> Allocation:
    """The whole table."""
    best, oracle = found.get("best_fixed"), found.get("oracle")
    return Allocation(
        tokens=found.get("tokens", 0),
        groups=found.get("num_groups", 0),
        unit=found.get("ci_over", "documents"),
        reference_depth=found["reference_depth"],
        reference_loss=_float(found.get("reference_loss")),
        tolerance=_float(found.get("tolerance")),
        policies=[policy(p) for p in found["policies"]],
        oracle=_oracle(oracle) if oracle else None,
        best_fixed=_fixed(best) if best else None,
        layout=found.get("layout"),
        probe=found.get("probe") or {},
    )


def _oracle(found: Json) -> Oracle:
    points = [(float(p["mean_depth"]), float(p["loss"])) for p in found.get("points", [])]
    return Oracle(float(found["mean_depth"]), float(found["loss"]), sorted(set(points)))


def _fixed(found: Json) -> Fixed:
    ends, cost = _pair(found.get("depth_ci")), _float(found.get("cost_ratio"))
    return Fixed(int(found["depth"]), _float(found.get("loss")), ends, cost)
