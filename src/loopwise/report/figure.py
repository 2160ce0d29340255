"""A figure: what is drawn, what is said about it, and the data it was drawn from, for the page and for export."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopwise.records import write_bytes
from loopwise.report.chart import Drawing
from loopwise.report.svg import document, el, escape

WIDE, NARROW = 540, 340  # pixels: a column of the page, a phone
Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure. `draw(width)` gives the body; `header` and `rows` are its data, and its table for those who cannot
    see it; `caption` says what is seen, n, and the interval."""

    name: str
    title: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    draw: Callable[[float], Drawing]

    def svg(self, width: float = WIDE, *, standalone: bool = True) -> str:
        """The figure as one SVG element."""
        body, height = self.draw(width)
        name = f"{self.name}-{width:g}"
        return document(
            body, width=width, height=height, title=self.title, desc=self.caption, name=name, standalone=standalone
        )

    def csv(self) -> str:
        """The data as CSV, full precision, empty where there is no value."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return out.getvalue()

    def html(self) -> str:
        """The figure in both widths with caption and data table."""
        wide = self.svg(WIDE, standalone=False).replace("<svg ", '<svg class="wide" ', 1)
        narrow = self.svg(NARROW, standalone=False).replace("<svg ", '<svg class="narrow" ', 1)
        data = el("details", el("summary", "Data"), table(self.header, self.rows, caption=self.title))
        caption = el("figcaption", escape(self.caption))
        return el("figure", el("h3", escape(self.title)), wide, narrow, caption, data, id=f"fig-{self.name}")


def export(figures: Sequence[Figure], folder: Path) -> list[str]:
    """Write each figure as `NAME.svg` and `NAME.csv`; returns the file names."""
    names = []
    for figure in figures:
        write_bytes(folder / f"{figure.name}.svg", (figure.svg() + "\n").encode())
        write_bytes(folder / f"{figure.name}.csv", figure.csv().encode())
        names += [f"{figure.name}.svg", f"{figure.name}.csv"]
    return names


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]], *, caption: str, text: Sequence[int] = ()) -> str:
    """An HTML table whose first column names the row; columns in `text` hold words and may wrap. A cell's second line
    is set small."""
    css = ["txt" if i in text else None for i in range(len(header))]
    head = el("tr", *(el("th", escape(h), scope="col", class_=c) for h, c in zip(header, css, strict=True)))
    body = []
    for row in rows:
        cells = [el("th", _cell(row[0]), scope="row")]
        cells += [el("td", _cell(cell), class_=css[i + 1]) for i, cell in enumerate(row[1:])]
        body.append(el("tr", *cells))
    inner = el("thead", head) + el("tbody", *body or [el("tr", el("td", "no rows"))])
    grid = el(
        "div", el("table", inner, aria_label=caption), class_="scroll", tabindex="0", role="region", aria_label=caption
    )
    return el("p", escape(caption), class_="caption") + grid


def _cell(cell: Cell) -> str:
    """A cell's first line, and what follows it in small print."""
    first, _, rest = show(cell).partition("\n")
    return escape(first) + (el("small", escape(rest)) if rest else "")


def show(cell: Cell) -> str:
    """A cell for people: four significant digits, a dash for nothing."""
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1e4 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
