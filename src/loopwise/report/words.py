"""Numbers in sentences: counts, shares, intervals, signs."""

from collections.abc import Sequence


def count(n: int, noun: str, plural: str | None = None) -> str:
    """`1 token`, `2,000 tokens`; a noun that is plural already is made singular when n is 1."""
    one = noun[:-1] if noun.endswith("s") else noun
    return f"{n:,} {one if n == 1 else plural or one + 's'}"


def percent(share: float, digits: int = 0) -> str:
    """`38%`; never shows a minus sign on zero."""
    shown = f"{100 * share:.{digits}f}"
    return f"{shown.removeprefix('-') if float(shown) == 0 else shown}%".replace("-", "−")


def span(values: Sequence[float | None]) -> str:
    """Interval of (value, low, high), or nothing."""
    low, high = (values[1], values[2]) if len(values) > 2 else (None, None)
    return f" [{low:.4f}, {high:.4f}]" if low is not None and high is not None else ""


def interval(ends: Sequence[float] | None) -> str:
    """` (95% CI 31% to 42%)` of a share, or nothing."""
    return f" (95% CI {percent(ends[0])} to {percent(ends[1])})" if ends else ""


def spared(ratio: float | None, ends: Sequence[float] | None = None) -> tuple[float | None, Sequence[float] | None]:
    """A cost ratio and its bounds as what is saved."""
    return (None, None) if ratio is None else (1 - ratio, [1 - ends[1], 1 - ends[0]] if ends else None)
