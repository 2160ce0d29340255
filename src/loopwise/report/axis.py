"""Axes: map values to pixels and choose ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["linear", "log", "log2"]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis with its range, ticks and label. `log` and `log2` need lo > 0."""

    label: str
    kind: Kind
    lo: float
    hi: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Position of a value, 0 at lo and 1 at hi; values outside fall outside."""
        if self.kind == "linear":
            return (value - self.lo) / (self.hi - self.lo)
        return math.log(max(value, 1e-300) / self.lo) / math.log(self.hi / self.lo)

    def name(self, value: float) -> str:
        """Tick label."""
        return power(value) if self.kind == "log" else number(value)


def linear(label: str, values: Iterable[float], *, zero: bool = False, count: int = 6, pad: float = 0.05) -> Axis:
    """Linear axis over the finite values, with some air; `zero` keeps zero in."""
    lo, hi = _range(values)
    lo = min(lo, 0.0) if zero else lo
    span = max(hi - lo, abs(hi) * 1e-6, abs(lo) * 1e-6, 1e-9)
    lo, hi = (lo if zero and lo == 0 else lo - pad * span), hi + pad * span
    return Axis(label=label, kind="linear", lo=lo, hi=hi, ticks=tuple(_nice(lo, hi, count)))


def depths(label: str, max_depth: int, *, lo: float = 1.0) -> Axis:
    """Log-2 axis from depth 1 to max_depth, ticks at powers of two."""
    hi = max(float(max_depth), 2.0)
    ticks = [float(2**i) for i in range(math.floor(math.log2(hi)) + 1) if 2**i >= lo]
    return Axis(label=label, kind="log2", lo=lo / 1.06, hi=hi * 1.06, ticks=tuple(ticks))


def log(label: str, values: Iterable[float], *, floor: float = 1e-12) -> Axis:
    """Log-10 axis over the positive values, whole decades, at most about seven ticks."""
    lo, hi = _range(v for v in values if v > 0)
    low, high = math.floor(math.log10(max(lo, floor))), math.ceil(math.log10(max(hi, floor * 10)))
    high = max(high, low + 1)
    every = max(1, math.ceil((high - low) / 6))
    ticks = tuple(10.0**i for i in range(low, high + 1) if (i - high) % every == 0)
    return Axis(label=label, kind="log", lo=10.0**low, hi=10.0**high, ticks=ticks)


def number(value: float) -> str:
    """Short plain number."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def power(value: float) -> str:
    """A power of ten with a raised exponent."""
    exponent = round(math.log10(value))
    if -2 <= exponent <= 2:
        return number(10.0**exponent)
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _range(values: Iterable[float]) -> tuple[float, float]:
    found = [v for v in values if math.isfinite(v)]
    return (min(found), max(found)) if found else (1e-3, 1.0)


def _nice(lo: float, hi: float, count: int) -> list[float]:
    rough = (hi - lo) / max(count, 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next((m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= rough), 10 * unit)
    first = math.ceil(lo / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(hi / step + 1e-9) + 1)]
