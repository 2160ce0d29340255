"""Which rule decides each published row."""

from collections.abc import Callable, Sequence

from loopwise.study import rules_measured as measured
from loopwise.study import rules_policy as policy
from loopwise.study.book import Book
from loopwise.study.published import Row
from loopwise.study.verdict import Verdict, judge

RULES: dict[str, Callable[[Row, Book], Verdict]] = {
    "loss_shape": measured.loss_shape,
    "saturation": measured.saturation,
    "kl": measured.successive_kl,
    "median": measured.median,
    "tail": measured.tail,
    "types": measured.types,
    "reversal": measured.reversal,
    "a1": policy.a1,
    "a1_shallow": policy.a1_shallow,
    "a2": policy.a2,
    "reading": policy.reading,
    "wall_clock": policy.wall_clock,
    "ceiling": policy.ceiling,
    "limits": policy.plain,
}


def verdicts(rows: Sequence[Row], book: Book) -> list[Verdict]:
    """A verdict for every published row."""
    return [RULES[row.id](row, book) if row.id in RULES else judge(row, []) for row in rows]
