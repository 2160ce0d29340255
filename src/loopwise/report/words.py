"""Numbers in sentences: counts, shares, intervals, signs."""

from collections.abc import Sequence

TYPE_NAMES: dict[str, str] = {
    "whitespace": "whitespace",
    "punctuation": "punctuation",
    "digits": "digits",
    "word_start": "word start",
    "word_continuation": "word continuation",
    "other": "other",
}


def count(n: int, noun: str, plural: str | None = None) -> str:
    """`1 token`, `2,000 tokens`; a noun that is plural already is made singular when n is 1."""
    one = noun[:-1] if noun.endswith("s") else noun
    return f"{n:,} {one if n == 1 else plural or one + 's'}"


def percent(share: float, digits: int | None = None) -> str:
    """`38%`, `3.8%`; never shows a minus sign on zero."""
    digits = (0 if abs(share) >= 0.0995 else 1) if digits is None else digits
    shown = f"{100 * share:.{digits}f}"
    return f"{shown.removeprefix('-') if float(shown) == 0 else shown}%".replace("-", "−")


def span(values: Sequence[float | None]) -> str:
    """Interval of (value, low, high), or nothing."""
    low, high = (values[1], values[2]) if len(values) > 2 else (None, None)
    return f" [{low:.4f}, {high:.4f}]" if low is not None and high is not None else ""


def near(tolerance: float | None) -> str:
    """How close a policy must come to the reference's loss."""
    return f"within {tolerance:g} nats of" if tolerance else "at the loss of"


def change(share: float, less: str = "less", more: str = "more") -> str:
    """`38% less`, `12% more`, `the same`: a saving may be negative."""
    if abs(share) < 0.0005:
        return "the same"
    return f"{percent(abs(share))} {less if share > 0 else more}"


def changed(share: float, ends: Sequence[float] | None, less: str = "less", more: str = "more") -> str:
    """`38% less (95% CI 31% to 42%)`; each bound says which way it goes where they differ."""
    text = change(share, less, more)
    if ends is None:
        return text
    bounds = sorted(ends)
    if share > 0 and bounds[0] > 0:
        return f"{text} (95% CI {percent(bounds[0])} to {percent(bounds[1])})"
    if share < 0 and bounds[1] < 0:
        return f"{text} (95% CI {percent(-bounds[1])} to {percent(-bounds[0])})"
    return f"{text} (95% CI {change(bounds[0], less, more)} to {change(bounds[1], less, more)})"


def spared(ratio: float | None, ends: Sequence[float] | None = None) -> tuple[float | None, Sequence[float] | None]:
    """A cost ratio and its bounds as what is saved."""
    return (None, None) if ratio is None else (1 - ratio, [1 - ends[1], 1 - ends[0]] if ends else None)
