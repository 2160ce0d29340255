"""Convergence: when a token's output, and its latent state, stop changing, and how fast the change shrinks.

*Convergence depth* is the first depth after which every later successive change stays below a threshold: the last
depth whose change reached it, and 1 if none did. A token whose last recorded change is still above the threshold is
right-censored: it counts as `max_depth`, and the share of such tokens is reported. Output convergence watches
KL(p_i || p_{i-1}) in nats, latent convergence the relative state change; they are different facts (a readout can
freeze while the state still moves).
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from loopwise.measure.stats import histogram_quantile

EPSILON = 1e-3  # nats: the default threshold on successive KL
LATENT_EPSILON = 1e-2  # the default threshold on the relative state change
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


def convergence_depth(changes: Float[np.ndarray, "depth tokens"], threshold: float) -> Int[np.ndarray, "tokens"]:
    """Convergence depth of each token, 1..depth; `changes[i]` is the change made by pass i + 1 (NaN: not defined).

    Also NaN-safe in the other direction: a change that is not a number never counts as movement.
    """
    found = np.ones(changes.shape[1], dtype=np.int64)
    for i in range(len(changes)):
        found[changes[i] >= threshold] = i + 1
    return found


def describe(depths: Int[np.ndarray, "tokens"], max_depth: int, threshold: float) -> dict[str, Any]:
    """Median, mean, quantiles, histogram, censored share and the share still moving after each depth, JSON-ready.

    `share_after[d]` is the share of tokens with a change of at least the threshold at some depth above d.
    """
    counts = np.bincount(depths, minlength=max_depth + 1)[1 : max_depth + 1]
    shares = counts / counts.sum()
    after = np.clip(1 - shares.cumsum(), 0, 1)
    return {
        "threshold": threshold,
        "median": float(histogram_quantile(counts, 0.5)),
        "mean": float(depths.mean()),
        "quantiles": {f"{q:g}": float(histogram_quantile(counts, q)) for q in QUANTILES},
        "share_after": {str(d): round(float(after[d - 1]), 6) for d in range(1, max_depth)},
        "censored": round(float(shares[-1]), 6),
        "histogram": {str(d): int(n) for d, n in enumerate(counts, 1)},
    }


def contraction(change_by_depth: dict[int, float], reference: int) -> dict[str, Any]:
    """How fast the mean state change shrinks: the ratio at each depth, and the mean factor per pass.

    `rate` is the geometric mean of the ratios from depth 3 to `reference` (the training mean), that is
    (change[reference] / change[2]) ** (1 / (reference - 2)); below 1 the passes contract. None when the range is empty
    or a change is zero.
    """
    depths = sorted(change_by_depth)
    ratios = {
        str(d): change_by_depth[d] / change_by_depth[d - 1]
        for d in depths
        if d - 1 in change_by_depth and change_by_depth[d - 1] > 0
    }
    first, last = change_by_depth.get(2, 0.0), change_by_depth.get(reference, 0.0)
    rate = (last / first) ** (1 / (reference - 2)) if reference > 2 and first > 0 and last > 0 else None
    return {"rate": rate, "from_depth": 2, "to_depth": reference, "ratio_by_depth": ratios}
