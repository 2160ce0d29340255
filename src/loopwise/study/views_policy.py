"""Section 4 of the report, from records alone: policies, reading against learning."""

from loopwise.report.figure import Figure
from loopwise.report.frontier import cost_frontier_figure, frontier_figure
from loopwise.report.parse import allocation as parsed
from loopwise.report.savings import savings_figure
from loopwise.study.book import Book, matched
from loopwise.study.draw import Dot, dots
from loopwise.study.published import Published
from loopwise.study.section import Section, Table, ci, gone, renamed, share, slug
from loopwise.study.views_learning import learning


def allocation(book: Book, study: Published) -> Section:
    """Policies."""
    figures, (learned, tables) = [], learning(book)
    for pair in book.having("allocation"):
        found, suffix = parsed(pair.records["allocation"]), slug(pair.checkpoint, pair.corpus)
        figures += [
            renamed(make, suffix, f"{make.title}: {pair.name}")
            for make in (
                frontier_figure(found, found.tokens),
                cost_frontier_figure(found, found.tokens),
                savings_figure(found),
            )
        ]
    return Section(
        key="allocation",
        title="Allocation",
        rows=("a1", "a1_shallow", "a2", "reading"),
        lead=_yardstick(book),
        tables=[_matched(book), *tables],
        figures=[_passes(book), *learned, *figures],
        missing=gone(book, "allocation", "joint"),
    )


def _yardstick(book: Book) -> list[str]:
    parts = []
    for pair in book.having("allocation"):
        best = pair.records["allocation"]["best_fixed"]
        ends = best["depth_ci"]
        parts.append(f"{pair.name} {best['depth']} [{ends[0]:g}, {ends[1]:g}]")
    return ["Best fixed depth, the yardstick that checks nothing: " + "; ".join(parts) + "."] if parts else []


def _matched(book: Book) -> Table:
    rows = []
    for pair in book.having("allocation"):
        for row in pair.records["allocation"]["policies"]:
            rows.append([row["label"] or row["name"], pair.name, row["mode"], row["tokens"], *_cells(row["matched"])])
    return Table(
        "policies",
        "Every policy at matched quality (loss at most 0.01 nats above the training mean's). Compute counts "
        "every pass, readout and check. Small print: 95% intervals over documents.",
        (
            "policy",
            "where",
            "mode",
            "n tokens",
            "mean depth",
            "passes saved",
            "compute",
            "passes saved, best fixed",
            "compute, best fixed",
        ),
        rows,
        (1,),
    )


def _cells(found: dict | None) -> list[str | float | None]:
    if found is None:
        return ["never matches", None, None, None, None]
    ends = found["saving_vs_best_fixed_ci"]
    return [
        found["mean_depth"],
        share([found["saving"], *found["saving_ci"]]),
        ci([found["cost_ratio"], *found["cost_ratio_ci"]], ".2f"),
        share([found["saving_vs_best_fixed"], *ends]),
        ci([found["cost_ratio_vs_best_fixed"], *found["cost_ratio_vs_best_fixed_ci"]], ".2f"),
    ]


def _passes(book: Book) -> Figure:
    rows = []
    for name, text in (
        ("kl", "A1 kl"),
        ("rel_change", "rel_change"),
        ("accel", "accel"),
        ("distil", "distil"),
        ("fisher", "fisher"),
        ("probe", "A2 probe"),
        ("ponder", "PonderNet head"),
    ):
        for pair in book.having("allocation"):
            record = pair.records.get("halting" if name == "ponder" else "allocation")
            for mode in ("replay", "live") if record else ():
                found = matched(record, name, mode) if record else None
                if found and record:
                    depth_ = record["reference_depth"]
                    ends = sorted(depth_ * (1 - v) for v in found["saving_ci"])
                    rows.append(Dot(f"{text}, {pair.corpus}, {mode}", found["mean_depth"], ends, pair.name))
    return dots(
        "matched-depth",
        "Mean depth at matched quality",
        "Core passes per token at a loss within 0.01 nats of the "
        "training mean's, with 95% intervals. Dashed: A1 in the study, 4.94 of 8. Signals that read the model "
        "stand above those that learn when to stop.",
        "mean depth (core passes)",
        rows,
        study=4.94,
        zero=True,
    )
