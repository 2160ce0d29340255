"""All figures of a run, and the one that stands in the README."""

from pathlib import Path

from loopwise.records import write_bytes
from loopwise.report.chart import Drawing
from loopwise.report.curves import change_figure, convergence_figure, loss_figure
from loopwise.report.difficulty import accuracy_figure, settle_figure
from loopwise.report.figure import Figure
from loopwise.report.frontier import cost_frontier_figure, frontier_figure
from loopwise.report.run import Run
from loopwise.report.savings import savings_figure
from loopwise.report.svg import document, el, label

HEADLINE_WIDTH = 900.0


def figures(run: Run) -> dict[str, Figure]:
    """Every figure whose record is there, by name."""
    found: list[Figure] = []
    measure, allocation = run.measure, run.allocation
    if measure:
        found.append(loss_figure(measure, allocation))
        if measure.kl or measure.kl_prev or measure.change:
            found.append(change_figure(measure))
        if measure.convergence:
            found.append(convergence_figure(measure))
        for kind in sorted({row.kind for row in measure.difficulty}):
            found.append(accuracy_figure(kind, [r for r in measure.difficulty if r.kind == kind], measure, run.deep))
        if any(row.depth is not None for row in measure.difficulty):
            found.append(settle_figure(measure.difficulty, measure))
    if allocation and any(p.points for p in allocation.policies):
        found.append(frontier_figure(allocation, allocation.tokens))
        if any(p.cost_ratio is not None for one in allocation.policies for p in one.points):
            found.append(cost_frontier_figure(allocation, allocation.tokens))
        if any(p.matched and p.matched.saving is not None and p.signal != "depth" for p in allocation.policies):
            found.append(savings_figure(allocation))
    return {figure.name: figure for figure in found}


def headline(run: Run) -> str:
    """One SVG for the README: loss by depth beside the frontier (or whatever two figures the run has)."""
    every = figures(run)
    chosen = [
        every[name]
        for name in ("loss_by_depth", "frontier_compute", "frontier_depth", "convergence_by_type")
        if name in every
    ]
    chosen = chosen[:2]
    width = (HEADLINE_WIDTH - 30) / max(len(chosen), 1)
    drawn: list[Drawing] = [figure.draw(width) for figure in chosen]
    height = max((d.height for d in drawn), default=60.0) + 34
    parts = []
    for index, (figure, drawing) in enumerate(zip(chosen, drawn, strict=True)):
        title = label(0, 12, figure.title, size=15, soft=False, font_weight=600)
        body = title + el("g", drawing.body, transform="translate(0 28)")
        parts.append(el("g", body, transform=f"translate({12 + index * (width + 12):.0f} 12)"))
    desc = " ".join(figure.caption for figure in chosen)
    title = "; ".join(figure.title for figure in chosen) or "No figure"
    return document(
        "".join(parts), width=HEADLINE_WIDTH, height=height, title=title, desc=desc, name="headline", standalone=True
    )


def write_headline(run: Run, path: Path) -> Path:
    """Write the README figure."""
    write_bytes(path, (headline(run) + "\n").encode())
    return path
