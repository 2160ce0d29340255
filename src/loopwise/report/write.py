"""Write a run's report: the page, its figures as SVG with CSV beside them, and the README figure."""

from pathlib import Path
from typing import NamedTuple

from loopwise.records import write_bytes
from loopwise.report.figure import export
from loopwise.report.figures import figures, write_headline
from loopwise.report.load import load_run
from loopwise.report.page import page


class Written(NamedTuple):
    """What was written: the page, the folder of figures, the names of the figures, and which parts had no record."""

    report: Path
    figures: Path
    names: list[str]
    missing: list[str]


def write_report(folder: Path, out: Path | None = None) -> Written:
    """Draw the report of a run folder from its records alone.

    `out` is the page (`.html`) or a folder for it; default `folder/report.html`. Figures go to `figures/` beside the
    page, among them `headline.svg`. Raises `InputError` for a folder without records, or a damaged record.
    """
    run = load_run(folder)
    target = _target(folder, out)
    write_bytes(target, page(run).encode())
    drawn = figures(run)
    beside = target.parent / "figures"
    export(list(drawn.values()), beside)
    if drawn:
        write_headline(run, beside / "headline.svg")
    parts = {"measure": run.measure, "allocate": run.allocation, "lens": run.lens, "sample": run.sample}
    return Written(target, beside, list(drawn), [name for name, part in parts.items() if part is None])


def _target(folder: Path, out: Path | None) -> Path:
    if out is None:
        return folder / "report.html"
    return out if out.suffix.lower() in (".html", ".htm") else out / "report.html"
