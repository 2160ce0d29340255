"""Verdicts: each published figure against ours, by a rule that could fail, with one sentence that is computed.

A *case* is one checkpoint on one corpus (or one checkpoint). A row `agrees` if every case does, `differs` if none does,
`partly` otherwise, and is `missing` without cases. A number agrees if the published one lies in our 95% interval;
rules for orders and shapes are stated where they are applied.
"""

from collections.abc import Sequence
from typing import NamedTuple

from loopwise.study.published import Row

FLAT = 0.01  # nats: a loss that moves by less is called flat
NEARLY_FULL = 0.10  # a saving below this is called none
ALPHA = 0.05


class Case(NamedTuple):
    """Ours in words, whether it agrees, and why not (or what to know if it does)."""

    where: str
    ours: str
    agrees: bool
    why: str = ""


class Verdict(NamedTuple):
    """One row of the table study / ours / verdict."""

    id: str
    section: str
    quantity: str
    study: str
    ours: str
    verdict: str
    sentence: str

    def to_dict(self) -> dict[str, str]:
        """JSON-ready."""
        return self._asdict()


def interval(values: Sequence[float], form: str = ".3g") -> str:
    """`6 [5, 7]` of (value, low, high)."""
    value, low, high = (format(v, form) for v in values)
    return f"{value} [{low}, {high}]"


def judge(row: Row, cases: Sequence[Case], missing: str = "") -> Verdict:
    """Put cases together."""
    good, bad = [c for c in cases if c.agrees], [c for c in cases if not c.agrees]
    ours = "; ".join(f"{c.where}: {c.ours}" for c in cases) or "not measured"
    if not cases:
        word, sentence = "missing", missing or "Nothing in this run measures it."
    elif not bad:
        word, sentence = "agrees", _because("Agrees", good)
    elif not good:
        word, sentence = "differs", _because("Differs", bad)
    else:
        word = "partly"
        sentence = f"{_because('Agrees', good)} {_because('Differs', bad)}"
    return Verdict(row.id, row.section, row.quantity, row.text, ours, word, sentence)


def _because(word: str, cases: Sequence[Case]) -> str:
    """One sentence; cases with the same reason share it."""
    reasons: dict[str, list[str]] = {}
    for case in cases:
        reasons.setdefault(case.why, []).append(case.where)
    parts = [f"{', '.join(where)}" + (f": {why}" if why else "") for why, where in reasons.items()]
    return f"{word} for " + "; ".join(parts) + "."
