"""At which depth loss stops falling: the saturation depth of a model and its confidence interval."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float

from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM
from loopwise.train.validate import Batches

TOLERANCE = 0.01  # nats


class Saturation(NamedTuple):
    """First depth whose mean loss is within the tolerance of the best, with a 95% bootstrap interval over windows.

    `draws` counts the resamples that put it at each depth (depth as text -> count).
    """

    depth: int
    low: int
    high: int
    best_loss: float
    draws: dict[str, int]


@torch.no_grad()
def losses(
    model: RecurrentLM, batches: Batches, max_depth: int, num_batches: int
) -> Float[np.ndarray, "windows depth"]:
    """Mean loss of each held-out window at every depth 1..max_depth."""
    found = []
    for index in range(num_batches):
        windows = batches.batch(index)
        ctx = DenseCausal.over(windows[:, :-1])
        e = model.prelude(windows[:, :-1], ctx)
        s, by_depth = model.init_state(e, ctx), []
        for depth in range(1, max_depth + 1):
            ctx.depth = depth
            s = model.core(s, e, ctx)
            nats = F.cross_entropy(model.coda(s, ctx).transpose(1, 2), windows[:, 1:], reduction="none")
            by_depth.append(nats.mean(1))
        found.append(torch.stack(by_depth, 1))
    return torch.cat(found).numpy()


def saturation(
    by_window: Float[np.ndarray, "windows depth"], *, tolerance: float = TOLERANCE, resamples: int = 1000, seed: int = 0
) -> Saturation:
    """Saturation depth of per-window losses; the interval resamples windows (percentile bootstrap)."""
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, len(by_window), (resamples, len(by_window)))
    depths = [_first(by_window[rows].mean(0), tolerance) for rows in drawn]
    low, high = np.percentile(depths, [2.5, 97.5])
    mean = by_window.mean(0)
    draws = {str(depth): depths.count(depth) for depth in sorted(set(depths))}
    return Saturation(_first(mean, tolerance), int(np.floor(low)), int(np.ceil(high)), float(mean.min()), draws)


def over_runs(draws: Sequence[Mapping[str, int]], *, resamples: int = 4000, seed: int = 0) -> tuple[float, float]:
    """95% interval of the mean saturation depth of several runs (`Saturation.draws`), the run as random effect.

    Two levels: runs are drawn with replacement, and from each drawn run one of its own resamples of windows.
    """
    generator = np.random.default_rng(seed)
    means = np.zeros(resamples)
    picked = generator.integers(0, len(draws), (resamples, len(draws)))
    for run, counts in enumerate(draws):
        depths = np.repeat([int(depth) for depth in counts], list(counts.values()))
        means += np.where(picked == run, generator.choice(depths, picked.shape), 0).sum(1)
    low, high = np.percentile(means / len(draws), [2.5, 97.5])
    return float(low), float(high)


def pooled(runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of sweeps (`loopwise train --sweep`) by sampler, training mean and held-out source, over their seeds.

    `depth` is the mean saturation depth and [`low`, `high`] its interval (`over_runs`); `best` is the best loss in nats
    per token: mean, least and most over runs; `first` and `past` are the loss after the first and after the last pass,
    less the best.
    """
    groups: dict[tuple[str, float, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        for source, found in run["saturation"].items():
            groups.setdefault((run["depth"]["kind"], float(run["depth"]["mean"]), source), []).append(found)
    rows = []
    for (kind, mean, source), group in sorted(groups.items(), key=lambda item: item[0]):
        depths, best = [found["depth"] for found in group], [found["best_loss"] for found in group]
        low, high = over_runs([found["draws"] for found in group])
        loss = np.mean([found["loss"] for found in group], axis=0)
        rows.append(
            {
                "sampler": kind,
                "mean": mean,
                "source": source,
                "runs": len(group),
                "depth": float(np.mean(depths)),
                "low": low,
                "high": high,
                "depths": depths,
                "best": [float(np.mean(best)), min(best), max(best)],
                "first": float(loss[0] - loss.min()),
                "past": float(loss[-1] - loss.min()),
            }
        )
    return rows


def _first(loss: Sequence[float] | np.ndarray, tolerance: float) -> int:
    loss = np.asarray(loss)
    return int(np.argmax(loss <= loss.min() + tolerance)) + 1
