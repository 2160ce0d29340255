"""Section 1 and the bulk of 2: loss, change and convergence by depth, and where loss saturates, with its interval."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from loopwise.measure.convergence import EPSILON, LATENT_EPSILON, convergence_depth
from loopwise.measure.stats import (
    group_sums,
    histogram_quantile,
    mean_intervals,
    paired_interval,
    percentile,
    weighted_means,
)
from loopwise.measure.summary import USEFUL, summarise
from loopwise.study.subject import Subject

VERSION = 3
TOLERANCES = (0.002, 0.005, USEFUL, 0.02)


def measure(subject: Subject) -> dict[str, Any]:
    """The measurement record of `loopwise measure`, with saturation depths and per-token contraction."""
    found, config = subject.trace, subject.checkpoint.config
    subject.tell(f"{subject.name}: summarising", 0.0)
    record = summarise(found, subject.tokenizer, vocab_size=config.vocab_size, mean_depth=config.mean_depth,
                       draws=subject.settings.draws, seed=subject.settings.seed)  # fmt: skip
    nll, reference = found.columns["nll"], subject.reference
    flat = paired_interval(nll[-1], nll[reference - 1], subject.group, subject.weights)
    record["change_past_mean"] = [flat.value, *flat.ends]
    record["steps"] = steps(nll[:reference], subject.group, subject.weights)
    record["saturation_by_tolerance"] = {
        f"{t:g}": saturation(nll, t, subject.group, subject.weights) for t in TOLERANCES
    }
    record["token_contraction"] = contraction(found.columns["rel_change"], reference)
    record["settled"] = settled(subject)
    return record


def steps(
    nll: Float[np.ndarray, "depth tokens"], group: Int[np.ndarray, "tokens"], weights: Int[np.ndarray, "draws groups"]
) -> list[list[float]]:
    """Change of the loss made by each pass from 2 to the last: mean and interval, paired token by token."""
    if len(nll) < 2:
        return []
    found = mean_intervals(np.diff(nll.astype(np.float64), axis=0), group, weights)
    return [[i.value, *i.ends] for i in found]


def saturation(
    nll: Float[np.ndarray, "depth tokens"],
    tolerance: float,
    group: Int[np.ndarray, "tokens"],
    weights: Int[np.ndarray, "draws groups"],
) -> list[float]:
    """First fixed depth within `tolerance` nats of the best one: value and interval (chosen anew in every draw)."""
    count = weights.shape[1]
    sums, tokens = group_sums(nll, group, count), np.bincount(group, minlength=count).astype(np.float64)
    whole = np.ones((1, count), dtype=np.int64)

    def first(drawn: np.ndarray) -> np.ndarray:
        loss = weighted_means(sums, tokens, drawn)
        return (loss <= loss.min(1, keepdims=True) + tolerance).argmax(1) + 1.0

    return [float(first(whole)[0]), *percentile(first(weights)).tolist()]


def contraction(change: Float[np.ndarray, "depth tokens"], reference: int) -> dict[str, Any] | None:
    """Per-token contraction per pass: the geometric mean of the ratios of successive state changes from depth 2 to the
    reference. None where the range is empty."""
    if reference < 3 or len(change) < reference:
        return None
    first, last = change[1].astype(np.float64), change[reference - 1].astype(np.float64)
    rate = (np.maximum(last, 1e-12) / np.maximum(first, 1e-12)) ** (1 / (reference - 2))
    edges = np.linspace(0, 1.2, 25)
    return {
        "quantiles": {f"{q:g}": float(np.quantile(rate, q)) for q in (0.05, 0.25, 0.5, 0.75, 0.95)},
        "expanding": float((rate >= 1).mean()),
        "histogram": np.histogram(np.clip(rate, 0, 1.1999), edges)[0].tolist(),
        "edges": edges.tolist(),
        "tokens": len(rate),
    }


def settled(subject: Subject) -> dict[str, Any]:
    """Which tokens settle within the recorded depths in output, in state, and in one but not the other, with the
    median convergence depth of the output and the share still moving at the training mean, with intervals."""
    found, depth = subject.trace, subject.max_depth
    output = convergence_depth(found.columns["kl"], EPSILON)
    latent = convergence_depth(found.columns["rel_change"], LATENT_EPSILON)
    rows = np.stack([output < depth, latent < depth, (output < depth) & (latent >= depth), output > subject.reference])
    rows = rows.astype(np.float32)
    names = ("output", "latent", "output_not_latent", "moving_at_mean")
    shares = {
        name: [i.value, *i.ends]
        for name, i in zip(names, mean_intervals(rows, subject.group, subject.weights), strict=True)
    }
    return shares | {"median": median_interval(output, depth, subject.group, subject.weights)}


def median_interval(
    depths: Int[np.ndarray, "tokens"], last: int, group: Int[np.ndarray, "tokens"], weights: np.ndarray
) -> list[float]:
    """Median of integer depths with its interval over groups."""
    hist = np.zeros((weights.shape[1], last))
    np.add.at(hist, (group, depths - 1), 1)
    drawn = histogram_quantile(weights @ hist)
    return [float(histogram_quantile(hist.sum(0))), *percentile(drawn).tolist()]
