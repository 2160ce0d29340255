"""Frontiers and matched quality: policies against uniform depth on the same tokens.

*Matched quality*: a policy matches uniform depth D if its mean loss is at most the loss at depth D plus `tolerance`.
Its matched depth is the smallest mean depth among the thresholds of its grid that match. The best fixed depth is
chosen by the same rule among depths 1..D. Confidence intervals resample documents and choose threshold and best fixed
depth anew in every draw, so they include the luck of choosing.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from loopwise.exit.policy import Policy
from loopwise.measure.replay import Outcome, replay, token_flops
from loopwise.measure.stats import draw_weights, group_sums, percentile, weighted_means
from loopwise.measure.trace import Trace
from loopwise.measure.windows import groups
from loopwise.model.cost import Cost

TOLERANCES = (0.001, 0.002, 0.005, 0.01, 0.02)


class Entry(NamedTuple):
    """One policy at one threshold (for A0 the threshold is the depth) and what it did."""

    threshold: float
    policy: Policy
    outcome: Outcome


class Sums(NamedTuple):
    """Per group and entry: summed loss, depth and FLOPs."""

    nll: Float[np.ndarray, "groups entries"]
    depth: Float[np.ndarray, "groups entries"]
    flops: Float[np.ndarray, "groups entries"]


class Choice(NamedTuple):
    """Smallest mean depth that matches, and the FLOPs there, per draw (NaN where nothing matches)."""

    depth: Float[np.ndarray, "draws"]
    flops: Float[np.ndarray, "draws"]
    index: Int[np.ndarray, "draws"]


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What every policy is compared with: uniform depths of one trace on one set of tokens."""

    found: Trace
    cost: Cost
    reference: int
    tolerance: float
    group: Int[np.ndarray, "tokens"]
    group_kind: str
    weights: Int[np.ndarray, "draws groups"]
    fixed: list[Entry]
    fixed_sums: Sums

    @classmethod
    def of(cls, found: Trace, cost: Cost, *, reference: int, tolerance: float, draws: int, seed: int) -> "Ground":
        """Evaluate all uniform depths of the trace."""
        group, kind = groups(found.index)
        weights = draw_weights(int(group.max()) + 1, draws=draws, seed=seed)
        policies = [Policy.parse(f"depth={d}") for d in range(1, found.max_depth + 1)]
        fixed = [Entry(float(d), p, replay(found, p)) for d, p in enumerate(policies, 1)]
        sums = _sums(fixed, cost, found.index["position"], group)
        return cls(found=found, cost=cost, reference=reference, tolerance=tolerance, group=group, group_kind=kind,
                   weights=weights, fixed=fixed, fixed_sums=sums)  # fmt: skip

    @property
    def counts(self) -> Float[np.ndarray, "groups"]:
        """Tokens of each group."""
        return np.bincount(self.group, minlength=self.weights.shape[1]).astype(np.float64)

    @property
    def whole(self) -> Int[np.ndarray, "one groups"]:
        """The weights of the sample itself: every group once."""
        return np.ones((1, self.weights.shape[1]), dtype=np.int64)

    def choose(self, sums: Sums, weights: np.ndarray, tolerance: float) -> Choice:
        """Per draw, the entry with the smallest mean depth whose loss is within `tolerance` of the reference."""
        limit = weighted_means(self.fixed_sums.nll[:, [self.reference - 1]], self.counts, weights) + tolerance
        loss, depth, flops = (weighted_means(s, self.counts, weights) for s in sums)
        allowed = np.where(loss <= limit, depth, np.inf)
        index, draw = allowed.argmin(1), np.arange(len(weights))
        matches = np.isfinite(allowed[draw, index])
        return Choice(
            np.where(matches, depth[draw, index], np.nan),
            np.where(matches, flops[draw, index], np.nan),
            np.where(matches, index, -1),
        )

    def best_fixed(self, weights: np.ndarray, tolerance: float) -> Choice:
        """The same choice among the uniform depths up to the reference."""
        return self.choose(Sums(*(s[:, : self.reference] for s in self.fixed_sums)), weights, tolerance)

    def flops_at(self, depth: int, weights: np.ndarray) -> Float[np.ndarray, "draws"]:
        """FLOPs per token of a uniform depth, per draw."""
        return weighted_means(self.fixed_sums.flops[:, [depth - 1]], self.counts, weights)[:, 0]

    def sums(self, entries: list[Entry]) -> Sums:
        """Group sums of entries on these tokens."""
        return _sums(entries, self.cost, self.found.index["position"], self.group)


def _sums(entries: list[Entry], cost: Cost, position: np.ndarray, group: np.ndarray) -> Sums:
    count = int(group.max()) + 1
    columns = [
        [entry.outcome.nll, entry.outcome.depth, token_flops(entry.outcome.depth, entry.policy, cost, position)]
        for entry in entries
    ]
    return Sums(*(group_sums(np.stack([c[i] for c in columns]), group, count) for i in range(3)))


def points(ground: Ground, entries: list[Entry], sums: Sums) -> list[dict[str, Any]]:
    """JSON-ready frontier: one point per entry, with intervals over groups."""
    best = int(ground.best_fixed(ground.whole, ground.tolerance).index[0]) + 1
    reference, fixed = (ground.flops_at(d, ground.whole)[0] for d in (ground.reference, best))
    loss_ci = percentile(weighted_means(sums.nll, ground.counts, ground.weights))
    rise = sums.nll - ground.fixed_sums.nll[:, [ground.reference - 1]]
    rise_ci = percentile(weighted_means(rise, ground.counts, ground.weights))
    tokens, flops = ground.counts.sum(), sums.flops.sum(0) / ground.counts.sum()
    found = []
    for i, (threshold, policy, outcome) in enumerate(entries):
        found.append({
            "threshold": threshold,
            "policy": str(policy),
            "mean_depth": float(outcome.depth.mean()),
            "loss": float(sums.nll[:, i].sum() / tokens),
            "loss_ci": loss_ci[:, i].tolist(),
            "loss_increase": float(rise[:, i].sum() / tokens),
            "loss_increase_ci": rise_ci[:, i].tolist(),
            "agreement": float((outcome.top1 == ground.fixed[ground.reference - 1].outcome.top1).mean()),
            "cost_ratio": float(flops[i] / reference),
            "cost_ratio_vs_best_fixed": float(flops[i] / fixed),
            "readouts": float(outcome.readouts.mean()),
            "checks": float(outcome.checks.mean()),
        })  # fmt: skip
    return found


def matched(ground: Ground, entries: list[Entry], sums: Sums) -> dict[str, Any] | None:
    """The matched-quality point of a frontier, or None if no entry matches."""
    here = ground.choose(sums, ground.whole, ground.tolerance)
    if here.index[0] < 0:
        return None
    entry = entries[here.index[0]]
    drawn = ground.choose(sums, ground.weights, ground.tolerance)
    fixed, fixed_drawn = (ground.best_fixed(w, ground.tolerance) for w in (ground.whole, ground.weights))
    saving = 1 - drawn.depth / ground.reference
    against_fixed = 1 - drawn.depth / fixed_drawn.depth
    ratio = drawn.flops / ground.flops_at(ground.reference, ground.weights)
    cost_ratio = float(here.flops[0] / ground.flops_at(ground.reference, ground.whole)[0])
    counts = np.bincount(entry.outcome.depth, minlength=ground.found.max_depth + 1)[1:]
    return {
        "threshold": entry.threshold,
        "policy": str(entry.policy),
        "mean_depth": float(here.depth[0]),
        "loss": float(entry.outcome.nll.mean(dtype=np.float64)),
        "saving": float(1 - here.depth[0] / ground.reference),
        "saving_ci": percentile(saving).tolist(),
        "saving_vs_best_fixed": float(1 - here.depth[0] / fixed.depth[0]),
        "saving_vs_best_fixed_ci": percentile(against_fixed).tolist(),
        "cost_ratio": cost_ratio,
        "cost_ratio_ci": percentile(ratio).tolist(),
        "compute_saving": 1 - cost_ratio,
        "cost_ratio_vs_best_fixed": float(here.flops[0] / fixed.flops[0]),
        "cost_ratio_vs_best_fixed_ci": percentile(drawn.flops / fixed_drawn.flops).tolist(),
        "readouts": float(entry.outcome.readouts.mean()),
        "agreement": float((entry.outcome.top1 == ground.fixed[ground.reference - 1].outcome.top1).mean()),
        "depth_histogram": {str(d): int(n) for d, n in enumerate(counts, 1)},
        "by_tolerance": [_at(ground, entries, sums, t) for t in sorted({*TOLERANCES, ground.tolerance})],
    }


def _at(ground: Ground, entries: list[Entry], sums: Sums, tolerance: float) -> dict[str, Any]:
    """The matched point under another tolerance (entries that do not match leave null)."""
    here, fixed = ground.choose(sums, ground.whole, tolerance), ground.best_fixed(ground.whole, tolerance)
    if here.index[0] < 0:
        return {"tolerance": tolerance, "threshold": None, "mean_depth": None, "best_fixed": int(fixed.depth[0])}
    return {
        "tolerance": tolerance,
        "threshold": entries[here.index[0]].threshold,
        "mean_depth": float(here.depth[0]),
        "saving": float(1 - here.depth[0] / ground.reference),
        "cost_ratio": float(here.flops[0] / ground.flops_at(ground.reference, ground.whole)[0]),
        "best_fixed": int(fixed.depth[0]),
        "saving_vs_best_fixed": float(1 - here.depth[0] / fixed.depth[0]),
        "cost_ratio_vs_best_fixed": float(here.flops[0] / fixed.flops[0]),
    }
