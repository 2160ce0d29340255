"""Oracles: what perfect knowledge would allow. No policy can be expected to reach them.

`hindsight` knows the loss of every token at every depth and picks the depths with the smallest mean at which the mean
loss still meets a limit. It knows the true next token, so it also profits from tokens that are luckily better when
shallow: a strict lower bound on the depth of any per-token policy in replay, and an optimistic one.
`settled` leaves each token at the first depth from which the first choice stays what it is at the reference depth: it
never looks at the true token, and is what A2's labels aim at.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

POINTS = 16
STEPS = 40  # halvings of the price interval


def priced(nll: Float[np.ndarray, "depth tokens"], price: float) -> Int[np.ndarray, "tokens"]:
    """Depth of each token that minimises loss + price x depth; the shallower of two equal ones."""
    charge = price * np.arange(1, len(nll) + 1, dtype=np.float32)[:, None]
    return (nll + charge).argmin(0) + 1


def hindsight(nll: Float[np.ndarray, "depth tokens"], limit: float) -> tuple[Int[np.ndarray, "tokens"], float]:
    """Depths with (up to the last step of the bisection) the smallest mean whose mean loss is at most `limit`, and
    the price per pass that gives them. By Lagrangian duality no other choice of depths is cheaper at that loss."""
    low, high = 1e-7, float(np.max(nll[0])) + 1.0
    best, found = priced(nll, low), low
    if mean_loss(nll, best) > limit:
        return np.full(nll.shape[1], len(nll)), 0.0
    for _ in range(STEPS):
        price = float(np.sqrt(low * high))
        depths = priced(nll, price)
        if mean_loss(nll, depths) <= limit:
            low, best, found = price, depths, price
        else:
            high = price
    return best, found


def settled(top1: Int[np.ndarray, "depth tokens"]) -> Int[np.ndarray, "tokens"]:
    """First depth from which the first choice equals the last one at every depth."""
    same = np.logical_and.accumulate((top1 == top1[-1])[::-1], axis=0)
    return len(top1) - same.sum(0) + 1


def mean_loss(nll: Float[np.ndarray, "depth tokens"], depths: Int[np.ndarray, "tokens"]) -> float:
    """Mean loss of leaving at `depths`."""
    return float(np.take_along_axis(nll, depths[None] - 1, axis=0).mean(dtype=np.float64))


def oracles(
    nll: Float[np.ndarray, "depth tokens"], top1: Int[np.ndarray, "depth tokens"], limit: float
) -> dict[str, dict[str, Any]]:
    """Both oracles over the depths given (the last one is the reference), JSON-ready, with a frontier of hindsight."""
    depths, price = hindsight(nll, limit)
    prices = np.geomspace(1e-4, float(np.max(nll[0])) + 1.0, POINTS)
    frontier = [_point(nll, priced(nll, float(p))) for p in prices]
    return {
        "hindsight": {**_point(nll, depths), "price": price, "points": frontier},
        "settled": _point(nll, settled(top1)),
    }


def _point(nll: np.ndarray, depths: np.ndarray) -> dict[str, Any]:
    counts = np.bincount(depths, minlength=len(nll) + 1)[1:]
    histogram = {str(d): int(n) for d, n in enumerate(counts, 1)}
    return {"mean_depth": float(depths.mean()), "loss": mean_loss(nll, depths), "depth_histogram": histogram}
