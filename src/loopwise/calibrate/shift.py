"""Has the text changed? The distribution of the exit signal on new text against that on the calibration text.

Compared are the signal's values at its first check, where every token has one. The distance is Kolmogorov's: the
largest difference of the two distribution functions. What counts as different follows from the calibration text
itself: the 95% quantile of the distance between random halves of its documents, and never less than `LEAST`.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

LEAST = 0.1
POINTS = 101
HALVES = 200


def summary(values: Float[np.ndarray, "tokens"], document: Int[np.ndarray, "tokens"], depth: int) -> dict[str, Any]:
    """JSON-ready: quantiles of the signal at `depth`, and the distance that halves of the same text reach."""
    rng, grid = np.random.default_rng(0), np.quantile(values, np.linspace(0, 1, POINTS))
    # Tokens up to each quantile, per document: any half's distribution function is a sum of these rows.
    below = np.stack([np.bincount(document, weights=values <= g) for g in grid], axis=1)
    tokens = np.bincount(document).astype(np.float64)
    distances = []
    for _ in range(HALVES):
        half = rng.permutation(len(tokens)) < len(tokens) // 2
        if half.any() and not half.all():
            one, two = (below[m].sum(0) / tokens[m].sum() for m in (half, ~half))
            distances.append(float(np.abs(one - two).max()))
    return {
        "depth": depth,
        "quantiles": [float(f"{v:.6g}") for v in grid],
        "halves_distance": float(np.quantile(distances, 0.95)) if distances else 1.0,
    }


def distance(values: Float[np.ndarray, "tokens"], stored: dict[str, Any]) -> float:
    """Largest difference between the distribution function of `values` and the stored one."""
    grid = np.asarray(stored["quantiles"])
    points = np.unique(np.concatenate([grid, values]))
    # The calibration text's distribution function, linear between its quantiles (steps where quantiles repeat).
    left = np.searchsorted(grid, points, side="right") / POINTS
    linear = np.interp(points, grid, np.linspace(0, 1, POINTS))
    known = np.where(np.isin(points, grid), left, linear)
    new = np.searchsorted(np.sort(values), points, side="right") / len(values)
    return float(np.abs(known - new).max())


def warning(found: float, stored: dict[str, Any]) -> str | None:
    """A sentence if the text differs from the calibration text, else None."""
    limit = max(LEAST, float(stored["halves_distance"]))
    if found <= limit:
        return None
    return (
        f"the exit signal is distributed differently here (distance {found:.2f}, the calibration text differs from "
        f"itself by {limit:.2f} at most): the tiers' bounds do not carry over; calibrate on text like this"
    )
