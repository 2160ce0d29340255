"""A section of the report: words, tables, figures, and what is missing."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loopwise.report.chart import Drawing
from loopwise.report.figure import Cell, Figure
from loopwise.report.words import percent
from loopwise.study.book import Book

DEPTH = "depth (core passes, log scale)"


class Table(NamedTuple):
    """A table that goes to the page and to `paper/`; columns in `words` hold text."""

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """One numbered part. `rows` are the ids of the published rows that it answers."""

    key: str
    title: str
    rows: Sequence[str]
    lead: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    missing: Sequence[str] = field(default_factory=tuple)


def renamed(figure: Figure, suffix: str, title: str) -> Figure:
    """A figure of the report package under a name of its own, so that many can stand on one page."""
    marks = re.compile(r'((?:id="|url\(#)[\w.-]*?clip)')

    def body(width: float) -> Drawing:
        drawing = figure.draw(width)
        return drawing._replace(body=marks.sub(rf"\1-{suffix}", drawing.body))

    return dataclasses.replace(figure, name=f"{figure.name}-{suffix}", title=title, draw=body)


def slug(*parts: str) -> str:
    """A plain name for files and anchors."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")


def ci(values: Sequence[float], form: str = ".3g") -> str:
    """`value` and, on a second line that is set small, its interval."""
    value, low, high = (format(v, form) for v in values)
    return f"{value}\n{low} to {high}"


def share(values: Sequence[float]) -> str:
    """The same for shares, in percent."""
    return f"{percent(values[0], 1)}\n{percent(values[1], 1)} to {percent(values[2], 1)}"


def gone(book: Book, *names: str) -> list[str]:
    """The sentences about what is missing."""
    return [book.missing[n] for n in names if n in book.missing]
