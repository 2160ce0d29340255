"""Confidence intervals: a bootstrap over documents, vectorised.

Tokens of one document are not independent, so documents are drawn with replacement, not tokens. A draw is a row of
integer weights over groups; every statistic of a draw is a weighted sum over per-group sums, one matrix product for
all draws. Intervals are percentile intervals (Efron and Tibshirani, 1993).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num

DRAWS = 1000
LEVEL = 0.95


class Interval(NamedTuple):
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def ends(self) -> list[float]:
        """JSON-ready bounds."""
        return [self.low, self.high]


def draw_weights(num_groups: int, *, draws: int = DRAWS, seed: int = 0) -> Int[np.ndarray, "draws groups"]:
    """How often each group appears in each bootstrap sample of `num_groups` groups. Pure in its arguments."""
    share = np.full(num_groups, 1 / num_groups)
    return np.random.default_rng(seed).multinomial(num_groups, share, size=draws)


def group_sums(
    values: Num[np.ndarray, "rows tokens"], group: Int[np.ndarray, "tokens"], num_groups: int
) -> Float[np.ndarray, "groups rows"]:
    """Sum each row of `values` over the tokens of each group, in float64."""
    sums = [np.bincount(group, weights=row.astype(np.float64), minlength=num_groups) for row in np.atleast_2d(values)]
    return np.stack(sums, axis=1)


def weighted_means(
    sums: Float[np.ndarray, "groups rows"],
    counts: Float[np.ndarray, "groups"],
    weights: Int[np.ndarray, "draws groups"],
) -> Float[np.ndarray, "draws rows"]:
    """Mean per token of each row in each draw. A draw without tokens gives NaN."""
    total = weights @ counts
    return np.divide(
        weights @ sums, total[:, None], where=total[:, None] > 0, out=np.full((len(weights), sums.shape[1]), np.nan)
    )


def percentile(estimates: Float[np.ndarray, "draws *rest"], level: float = LEVEL) -> np.ndarray:
    """Bounds `[2, *rest]` of the central interval; draws that are NaN do not count."""
    tail = 100 * (1 - level) / 2
    if np.isnan(estimates).all():
        return np.full((2, *estimates.shape[1:]), np.nan)
    return np.nanpercentile(estimates, [tail, 100 - tail], axis=0)


def mean_intervals(
    values: Num[np.ndarray, "rows tokens"], group: Int[np.ndarray, "tokens"], weights: Int[np.ndarray, "draws groups"]
) -> list[Interval]:
    """Mean over tokens of each row, with its interval over groups."""
    sums = group_sums(values, group, weights.shape[1])
    counts = np.bincount(group, minlength=weights.shape[1]).astype(np.float64)
    low, high = percentile(weighted_means(sums, counts, weights))
    means = sums.sum(0) / counts.sum()
    return [Interval(float(m), float(a), float(b)) for m, a, b in zip(means, low, high, strict=True)]


def paired_interval(
    left: Float[np.ndarray, "tokens"],
    right: Float[np.ndarray, "tokens"],
    group: Int[np.ndarray, "tokens"],
    weights: Int[np.ndarray, "draws groups"],
) -> Interval:
    """Mean of left - right, token by token, with its interval over groups: far narrower than either mean's own."""
    return mean_intervals((left.astype(np.float64) - right)[None], group, weights)[0]


def histogram_quantile(counts: Num[np.ndarray, "*rows depth"], share: float = 0.5) -> Float[np.ndarray, "*rows"]:
    """Smallest depth (1-based) at which at least `share` of each histogram is reached; NaN for an empty histogram."""
    total = counts.sum(-1)
    reached = (counts.cumsum(-1) >= share * total[..., None]).argmax(-1) + 1.0
    return np.where(total > 0, reached, np.nan)
