"""What a report needs of a run, read from its records and checked; the only file that knows how records spell it.

Every part may be absent: a folder that only `measure` wrote still makes a page. A damaged part raises `InputError`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loopwise.report.lens import Lens


class Curve(NamedTuple):
    """Values by depth, with bounds where there are any."""

    depths: tuple[int, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()

    @property
    def points(self) -> list[tuple[float, float]]:
        """(depth, value) pairs."""
        return [(float(d), v) for d, v in zip(self.depths, self.values, strict=True)]

    @property
    def band(self) -> list[tuple[float, float]] | None:
        """(low, high) pairs, or None."""
        return list(zip(self.lows, self.highs, strict=True)) if self.lows else None

    @property
    def positive(self) -> list[tuple[float, float]]:
        """Pairs that a log axis can show."""
        return [(d, v) for d, v in self.points if v > 0]

    @property
    def positive_band(self) -> list[tuple[float, float]] | None:
        """Band of the positive pairs, kept above zero."""
        if not self.lows:
            return None
        kept = [(v, low, high) for v, low, high in zip(self.values, self.lows, self.highs, strict=True) if v > 0]
        return [(max(low, v * 1e-3), high) for v, low, high in kept]

    def at(self, depth: float) -> tuple[float | None, float | None, float | None]:
        """(value, low, high) at a depth; None where unknown."""
        if depth not in self.depths:
            return None, None, None
        i = self.depths.index(int(depth))
        return self.values[i], self.lows[i] if self.lows else None, self.highs[i] if self.highs else None


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Distribution of convergence depth."""

    threshold: float
    median: float
    mean: float | None
    share_after: Mapping[int, float]
    censored: float | None
    histogram: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class TypeRow:
    """Convergence of one token type."""

    name: str
    count: int
    share: float
    median: float
    histogram: Mapping[int, int]
    mean: float | None = None
    share_ci: Sequence[float] | None = None
    median_ci: Sequence[float] | None = None
    mean_ci: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """Answers that need `k` sequential steps: how often they are right at each depth, and when they settle."""

    kind: str
    k: int
    count: int
    accuracy: Curve
    depth: float | None
    depth_ci: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A measurement."""

    tokens: int
    groups: int
    unit: str
    max_depth: int
    mean_depth: float | None
    loss: Curve
    kl: Curve | None
    kl_prev: Curve | None
    change: Curve | None
    rate: float | None
    convergence: Convergence | None
    latent: Convergence | None
    types: Sequence[TypeRow]
    difficulty: Sequence[Difficulty] = ()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Text made live: the prompt, and pieces with the exit depth that each took."""

    policy: str
    prompt: str
    pieces: Sequence[str]
    depths: Sequence[int]
    max_depth: int
    readouts: int | None = None


class Point(NamedTuple):
    """A policy at one threshold. `increase` is its loss above the reference depth's on the same tokens, paired."""

    threshold: float | None
    mean_depth: float
    loss: float
    loss_ci: Sequence[float] | None
    agreement: float | None
    cost_ratio: float | None
    increase: float | None = None
    increase_ci: Sequence[float] | None = None


class Matched(NamedTuple):
    """A policy where its loss is within the tolerance of the reference's: passes and compute against the reference
    depth, and against the best fixed depth. Every `_ci` is a pair of bounds or None."""

    mean_depth: float
    saving: float
    loss: float | None = None
    saving_ci: Sequence[float] | None = None
    cost_ratio: float | None = None
    cost_ratio_ci: Sequence[float] | None = None
    saving_vs_best: float | None = None
    saving_vs_best_ci: Sequence[float] | None = None
    cost_vs_best: float | None = None
    cost_vs_best_ci: Sequence[float] | None = None
    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A policy's frontier in one mode. `signal` is `depth` for A0."""

    name: str
    signal: str
    mode: str
    points: Sequence[Point]
    matched: Matched | None
    cost: str | None = None
    tokens: int | None = None

    @property
    def label(self) -> str:
        """A0, A1, A2 with what they read, or the name; options such as `min=2` stay visible."""
        short = {"depth": "A0 uniform", "kl": "A1 kl", "probe": "A2 probe"}.get(self.signal, self.signal)
        return short + self.name.removeprefix(self.signal) if self.signal != "depth" else short


class Fixed(NamedTuple):
    """A fixed depth, its loss, and its compute relative to the reference depth."""

    depth: int
    loss: float | None
    depth_ci: Sequence[float] | None = None
    cost_ratio: float | None = None


class Oracle(NamedTuple):
    """Best per-token depth in hindsight."""

    mean_depth: float
    loss: float
    points: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """An allocation: policies against a reference depth."""

    tokens: int
    groups: int
    unit: str
    reference_depth: int
    reference_loss: float | None
    tolerance: float | None
    policies: Sequence[Policy]
    oracle: Oracle | None
    best_fixed: Fixed | None
    layout: str | None = None
    probe: Mapping[str, Any] = field(default_factory=dict)

    def policy(self, signal: str, mode: str | None = None) -> Policy | None:
        """The policy of a signal: in `mode`, else live, else replay; with a matched point if any has one."""
        found = [p for p in self.policies if p.signal == signal and mode in (None, p.mode)]
        found.sort(key=lambda p: (p.matched is None, p.mode != "live"))
        return found[0] if found else None


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything a report may show. `about` says where it comes from, as (name, value) pairs in order."""

    title: str
    about: Sequence[tuple[str, str]]
    measure: Measure | None = None
    allocation: Allocation | None = None
    lens: Lens | None = None
    sample: Sample | None = None
    warning: str | None = None

    @property
    def max_depth(self) -> int:
        """Deepest pass that any part speaks of."""
        found = [part.max_depth for part in (self.measure, self.lens, self.sample) if part]
        return max(found, default=32)

    @property
    def deep(self) -> int:
        """Where the colour scale ends: by then 90% of the tokens have settled; at least 6, at most the last depth."""
        settled = self.measure.convergence if self.measure else None
        if settled is None:
            return self.max_depth
        total, seen = sum(settled.histogram.values()), 0
        for depth in sorted(settled.histogram):
            seen += settled.histogram[depth]
            if seen >= 0.9 * total:
                return min(max(depth, 6), self.max_depth)
        return self.max_depth
