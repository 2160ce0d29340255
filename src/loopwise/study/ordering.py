"""Section 3: what settles when. Convergence depth by type, frequency, position and surprisal, and tests of the order.

*Test.* Two types differ if the difference of their mean convergence depths is larger than chance makes it. Chance:
within each document the two types' labels are exchanged at random (tokens of one document share its style, so labels
move only inside documents). The depths are small integers, so a document's random split is a multivariate
hypergeometric draw. p = (1 + draws at least as extreme) / (1 + draws), two-sided; over all pairs Holm's step-down
correction (Holm, 1979) keeps the family-wise error at 5%.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from loopwise.measure.convergence import EPSILON, convergence_depth
from loopwise.measure.stats import mean_intervals
from loopwise.measure.types import TYPES, token_types
from loopwise.study.subject import Subject

VERSION = 2
MIN_TOKENS = 30  # a type with fewer tokens is not tested
WORDS = ("word_start", "word_continuation")
BANDS = 5


def depths(subject: Subject) -> dict[str, Any]:
    """Convergence depth by band, and the ordering tests."""
    found = subject.trace
    settled = convergence_depth(found.columns["kl"], EPSILON)
    kinds = token_types(found.index["target"], found.index["token"], subject.tokenizer,
                        subject.checkpoint.config.vocab_size)  # fmt: skip
    counts = np.bincount(found.index["target"])
    surprisal = found.columns["nll"][subject.reference - 1]
    place = found.index["position"]
    edges = [2**i for i in range(3, 12) if 2**i < place.max() + 1]
    bands = {
        "frequency": quantile_bands(counts[found.index["target"]].astype(float), "occurrences here"),
        "surprisal": quantile_bands(surprisal.astype(float), "nats at the training mean"),
        "position": edge_bands(place, edges),
    }
    return {
        "epsilon": EPSILON,
        "tokens": found.num_tokens,
        "bands": {name: band_rows(settled, *band, subject) for name, band in bands.items()},
        "rank_correlation": {
            "frequency": spearman(counts[found.index["target"]], settled),
            "surprisal": spearman(surprisal, settled),
            "position": spearman(place, settled),
        },
        "order": order(settled, kinds, subject),
    }


def quantile_bands(values: Float[np.ndarray, "tokens"], unit: str) -> tuple[np.ndarray, list[str]]:
    """Band of each token (fifths of the tokens; ties stay together) and the bands' names."""
    cuts = np.unique(np.quantile(values, np.linspace(0, 1, BANDS + 1)[1:-1]))
    cuts = cuts[(cuts > values.min()) & (cuts <= values.max())]
    ends = [values.min(), *cuts, values.max()]
    names = [f"{a:.3g} to {b:.3g} {unit}" for a, b in pairwise(ends)]
    return np.searchsorted(cuts, values, side="right"), names


def edge_bands(values: Int[np.ndarray, "tokens"], edges: Sequence[int]) -> tuple[np.ndarray, list[str]]:
    """Bands between given edges."""
    ends = [0, *edges, int(values.max()) + 1]
    names = [f"{a} to {b - 1}" for a, b in pairwise(ends)]
    return np.searchsorted(np.array(edges), values, side="right"), names


def band_rows(
    settled: Int[np.ndarray, "tokens"], band: Int[np.ndarray, "tokens"], names: Sequence[str], subject: Subject
) -> list[dict[str, Any]]:
    """Tokens, mean convergence depth with interval, and share still moving at the training mean, of each band."""
    rows = []
    for number, name in enumerate(names):
        mine = band == number
        if mine.any():
            values = np.stack([settled[mine], settled[mine] > subject.reference])
            mean, tail = mean_intervals(values, subject.group[mine], subject.weights)
            rows.append({"name": name, "tokens": int(mine.sum()), "mean": mean.value, "ci": mean.ends,
                         "moving": tail.value, "moving_ci": tail.ends})  # fmt: skip
    return rows


def spearman(left: np.ndarray, right: np.ndarray) -> float:
    """Rank correlation, ties sharing their mean rank; 0 for constant values."""
    ranks = [_ranks(np.asarray(v, dtype=float)) for v in (left, right)]
    a, b = (r - r.mean() for r in ranks)
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = count.cumsum()
    return (ends - (count - 1) / 2)[place]


def order(settled: Int[np.ndarray, "tokens"], kinds: Int[np.ndarray, "tokens"], subject: Subject) -> dict[str, Any]:
    """Types from earliest to deepest, a test of every pair, and of digits against words (starts and continuations)."""
    members = {name: kinds == number for number, name in enumerate(TYPES)}
    members["word"] = members["word_start"] | members["word_continuation"]
    enough = {name: mine for name, mine in members.items() if mine.sum() >= MIN_TOKENS}
    rng = np.random.default_rng(subject.settings.seed)
    pairs = list(combinations([n for n in enough if n not in ("word", "other")], 2))
    pairs += [("digits", "word")] * ("digits" in enough and "word" in enough)
    rows = []
    for left, right in pairs:
        subject.tell(f"{subject.name}: {left} against {right}", 0.0)
        rows.append({"left": left, "right": right, "n": [int(enough[n].sum()) for n in (left, right)],
                     **compare(settled, enough[left], enough[right], subject.group, subject.settings.permutations, rng)})  # fmt: skip  # noqa: E501
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    means = {name: float(settled[mine].mean()) for name, mine in enough.items()}
    listed = sorted((n for n in means if n != "word"), key=means.__getitem__)
    return {"types": listed, "means": means, "tests": rows, "permutations": subject.settings.permutations}


def compare(
    settled: Int[np.ndarray, "tokens"],
    left: np.ndarray,
    right: np.ndarray,
    group: Int[np.ndarray, "tokens"],
    draws: int,
    rng: np.random.Generator,
) -> dict[str, float]:
    """Difference of means (left - right) and its two-sided permutation p, labels exchanged within documents."""
    total, count = np.zeros(draws), np.array([left.sum(), right.sum()], dtype=float)
    whole = float(settled[left | right].sum())
    for number in np.unique(group[left | right]):
        here = group == number
        mine, both = here & left, here & (left | right)
        size, hist = int(mine.sum()), np.bincount(settled[both])
        if size == 0 or size == both.sum():
            total += settled[mine].sum()
            continue
        drawn = rng.multivariate_hypergeometric(hist, size, size=draws, method="marginals")
        total += drawn @ np.arange(len(hist))
    observed = float(settled[left].mean() - settled[right].mean())
    null = total / count[0] - (whole - total) / count[1]
    extreme = np.abs(null - null.mean()) >= abs(observed - null.mean()) - 1e-9
    return {"difference": observed, "expected": float(null.mean()), "p": float((1 + extreme.sum()) / (1 + draws))}


def holm(values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the given order."""
    place = np.argsort(values)
    adjusted, running = [0.0] * len(values), 0.0
    for rank, index in enumerate(place):
        running = max(running, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = running
    return adjusted


def means_of(record: Mapping[str, Any]) -> Mapping[str, float]:
    """Mean convergence depth of each type, from a record."""
    return record["order"]["means"]
