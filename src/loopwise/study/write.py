"""Write a study's report: page, figures with their data, LaTeX tables, and the verdicts as JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loopwise.records import write_bytes, write_json
from loopwise.report.figure import export
from loopwise.study.book import Book
from loopwise.study.page import page
from loopwise.study.paper import latex, verdict_table
from loopwise.study.published import published
from loopwise.study.rules import verdicts
from loopwise.study.verdict import Verdict
from loopwise.study.views import SECTIONS


class Written(NamedTuple):
    """The page, the verdicts, and the names of the tables."""

    report: Path
    verdicts: list[Verdict]
    tables: list[str]


def write(out: Path, book: Book, about: Sequence[tuple[str, str]]) -> Written:
    """Draw everything from the book's records."""
    study = published()
    found = verdicts(study.rows, book)
    sections = [make(book, study) for make in SECTIONS.values()]
    title = f"{', '.join(book.checkpoints)} beside the published study"
    write_bytes(out / "report.html", page(title, about, study, found, sections).encode())
    export([figure for s in sections for figure in s.figures], out / "figures")
    write_bytes(out / "verdicts.md", markdown(title, found).encode())
    tables = [verdict_table(found), *(t for s in sections for t in s.tables if t.rows)]
    for table in tables:
        write_bytes(out / "paper" / f"{table.name}.tex", latex(table).encode())
    document: dict[str, Any] = {
        "about": dict(about),
        "verdicts": [v.to_dict() for v in found],
        "tables": {t.name: {"header": list(t.header), "rows": [list(r) for r in t.rows]} for t in tables[1:]},
        "missing": dict(book.missing),
    }
    write_json(out / "study.json", document)
    return Written(out / "report.html", found, [t.name for t in tables])


def markdown(title: str, found: Sequence[Verdict]) -> str:
    """The table study / ours / verdict for people who read the repository."""
    lines = [
        f"# {title[0].upper()}{title[1:]}",
        "",
        "Written by `loopwise study`; figures and tables: `report.html`.",
        "",
    ]
    lines += ["| quantity | the study | ours | verdict | why |", "|---|---|---|---|---|"]
    lines += [
        f"| {v.quantity} | {v.study} | {v.ours.replace('; ', '<br>')} | **{v.verdict}** | {v.sentence} |" for v in found
    ]
    return "\n".join([*lines, ""])
