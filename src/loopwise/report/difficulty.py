"""Figures of puzzles with known difficulty: accuracy by depth, and convergence depth against steps needed."""

from collections.abc import Sequence

from loopwise.report.axis import depths, linear
from loopwise.report.chart import Drawing, Series, draw, legend, panel
from loopwise.report.figure import Figure
from loopwise.report.palette import BLUE, VERMILLION, depth_shade
from loopwise.report.run import Difficulty, Measure
from loopwise.report.words import count

MARKERS = ("circle", "triangle", "square", "diamond", "down")


def accuracy_figure(kind: str, rows: Sequence[Difficulty], measure: Measure, deep: int) -> Figure:
    """Accuracy by fixed depth, one curve per number of steps."""
    hardest = max(r.k for r in rows)
    series = [
        Series(
            groups=(f"k-{r.k}",),
            name=f"{r.k} step{'s' if r.k > 1 else ''}",
            points=r.accuracy.points,
            colour=depth_shade(_place(r.k, hardest, deep), deep, dark=False).back,
            css=f"c{_place(r.k, hardest, deep)}",
            marker=MARKERS[(r.k - 1) % len(MARKERS)],
            size=6.5,
            tips=[f"{count(r.k, 'step')}, depth {d}: {v:.1%} of {r.count:,}" for d, v in r.accuracy.points],
        )
        for r in rows
    ]

    def body(width: float) -> Drawing:
        keys = legend(series, width)
        x = depths("depth (core passes, log scale)", measure.max_depth)
        y = linear("share of answers right", [0, 1], zero=True, pad=0.02)
        space = panel(width, x=x, y=y, name=f"accuracy-{kind}", legend_height=keys.height)
        marks = space.mark(measure.mean_depth, f"training mean {measure.mean_depth:g}") if measure.mean_depth else ""
        return draw(space, series, legend_body=keys.body, extra=marks)

    n = sum(r.count for r in rows)
    caption = (
        f"Answers of '{kind}' puzzles that are right when every token takes the same depth, by the number of "
        "sequential steps "
        f"that the answer needs ({count(n, 'answer')}; n per curve in the table)."
        + (" 95% intervals, bootstrap over puzzles, are in the table." if rows[0].accuracy.lows else "")
    )
    header = ("steps", "answers", "depth", "share_right", "ci_low", "ci_high")
    data = [(r.k, r.count, d, *r.accuracy.at(d)) for r in rows for d in r.accuracy.depths]
    return Figure(
        name=f"accuracy_{kind}",
        title=f"Accuracy by depth and difficulty: {kind}",
        caption=caption,
        header=header,
        rows=data,
        draw=body,
    )


def _place(k: int, hardest: int, deep: int) -> int:
    """The depth whose shade a difficulty takes: spread over the part of the scale that is legible as a line."""
    low = 1 + 0.32 * (deep - 1)
    return min(deep, max(1, round(low + (deep - low) * (k - 1) / max(hardest - 1, 1))))


def settle_figure(rows: Sequence[Difficulty], measure: Measure) -> Figure:
    """Mean convergence depth of answers against the steps they need."""
    kinds = sorted({r.kind for r in rows})
    looks = ((VERMILLION, "s-kl", "circle"), (BLUE, "s-probe", "triangle"))
    series = []
    for index, kind in enumerate(kinds):
        mine = [r for r in rows if r.kind == kind and r.depth is not None]
        colour, css, shape = looks[index % 2]
        ends = [(r.depth_ci[0], r.depth_ci[1]) for r in mine if r.depth_ci]
        series.append(
            Series(
                groups=(f"t-{kind}",),
                name=kind,
                points=[(float(r.k), float(r.depth or 0)) for r in mine],
                colour=colour,
                css=css,
                marker=shape,
                bars=ends if len(ends) == len(mine) else None,
                tips=[
                    f"{kind}, {count(r.k, 'step')}: settles at {r.depth:.2f} on average ({count(r.count, 'answer')})"
                    for r in mine
                ],
            )
        )
    hardest = max(r.k for r in rows)

    def body(width: float) -> Drawing:
        keys = legend(series, width)
        x = linear("sequential steps that the answer needs", [1, hardest], pad=0.06)
        x = type(x)(
            label=x.label, kind="linear", lo=x.lo, hi=x.hi, ticks=tuple(float(k) for k in range(1, hardest + 1))
        )
        y = linear("mean convergence depth (core passes)", [0, *(v for s in series for _, v in s.points)], zero=True)
        space = panel(width, x=x, y=y, name="settle", legend_height=keys.height)
        return draw(space, series, legend_body=keys.body)

    caption = (
        "Where the output settles on answers of known difficulty "
        f"({count(sum(r.count for r in rows), 'answer')}). A curve that rises "
        f"means that harder answers really take more passes; a flat one that depth does not follow difficulty."
        + (" Bars: 95% intervals." if any(s.bars for s in series) else "")
    )
    data = [(r.kind, r.k, r.count, r.depth, *(r.depth_ci or (None, None))) for r in rows]
    header = ("kind", "steps", "answers", "mean_convergence_depth", "ci_low", "ci_high")
    return Figure(
        name="settle_by_difficulty",
        title="Convergence depth against difficulty",
        caption=caption,
        header=header,
        rows=data,
        draw=body,
    )
