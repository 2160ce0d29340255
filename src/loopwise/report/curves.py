"""Figures of one measurement by depth: loss, successive change, convergence histogram."""

from collections.abc import Mapping, Sequence

from loopwise.report.axis import depths, linear, log
from loopwise.report.chart import Drawing, Panel, Series, bars, draw, legend, panel
from loopwise.report.figure import Figure
from loopwise.report.palette import BLUE, GREEN, PURPLE, VERMILLION
from loopwise.report.run import Allocation, Convergence, Curve, Measure, TypeRow
from loopwise.report.svg import label
from loopwise.report.words import TYPE_NAMES, count, span

DEPTH = "depth (core passes, log scale)"


def loss_figure(found: Measure, allocation: Allocation | None) -> Figure:
    """Loss by fixed depth with its interval, the training mean and the best fixed depth marked."""
    reach, cut = _reach(found.loss)
    curve, best = found.loss, allocation.best_fixed if allocation else None
    line = Series(
        name="loss",
        points=curve.points,
        band=None if cut else curve.band,
        colour=BLUE,
        css="s-probe",
        size=6,
        tips=[f"depth {d}: {v:.4f} nats{span(curve.at(d))}" for d, v in curve.points],
    )

    def body(width: float) -> Drawing:
        y = linear("loss (nats per token)", reach)
        space = panel(width, x=depths(DEPTH, found.max_depth), y=y, name="loss")
        return draw(space, [line], extra=_marks(space, found.mean_depth, best.depth if best else None))

    first, last = curve.values[0], curve.values[-1]
    caption = (
        f"Mean loss of {count(found.tokens, 'held-out token')} when every token takes the same depth: "
        f"{first:.3f} nats at depth "
        f"{curve.depths[0]}, {last:.3f} at depth {curve.depths[-1]}. {_interval(curve, cut)}, bootstrap over "
        f"{count(found.groups, found.unit)}. "
        f"{_marked(found.mean_depth, best.depth if best else None)}"
    )
    rows = [(d, *curve.at(d)) for d in curve.depths]
    return Figure(
        name="loss_by_depth",
        title="Loss by depth",
        caption=caption,
        header=("depth", "loss_nats", "ci_low", "ci_high"),
        rows=rows,
        draw=body,
    )


def _reach(curve: Curve) -> tuple[list[float], bool]:
    """What the loss axis must hold, and whether it leaves the band out: documents often differ far more from each
    other than depths do, and the curve must stay readable."""
    low, high = min(curve.values), max(curve.values)
    room = 0.8 * max(high - low, 1e-3)
    ends = [min(curve.lows or (low,)), max(curve.highs or (high,))]
    cut = ends[0] < low - room or ends[1] > high + room
    return [low, high] if cut else ends, cut


def _interval(curve: Curve, cut: bool) -> str:
    if not cut:
        return "Band: 95% confidence interval"
    _, low, high = curve.at(curve.depths[-1])
    wide = f", {low:.2f} to {high:.2f} at the last depth," if low is not None and high is not None else ""
    return f"The 95% interval{wide} is wider than the panel, since documents differ more than depths do (see the table)"


def _marked(mean: float | None, best: int | None) -> str:
    parts = [f"the training mean ({mean:g})"] if mean else []
    parts += [f"the best fixed depth ({best}), the smallest within the tolerance of the reference"] if best else []
    return f"Marked: {' and '.join(parts)}." if parts else ""


def _marks(space: Panel, mean: float | None, best: int | None) -> str:
    parts = []
    if best:
        parts.append(space.mark(best, f"best fixed {best}"))
    if mean:
        parts.append(space.mark(mean, f"training mean {mean:g}", row=1 if best else 0))
    return "".join(parts)


def change_figure(found: Measure) -> Figure:
    """Successive KL in both directions and the relative state change, on a log axis."""
    named = (
        ("kl", "KL(now‖before), nats", found.kl, VERMILLION, "s-kl", "circle"),
        ("kl_prev", "KL(before‖now), nats", found.kl_prev, PURPLE, "s-accel", "down"),
        ("change", "relative state change", found.change, GREEN, "s-rel", "triangle"),
    )
    series = [
        Series(
            groups=(f"c-{key}",),
            name=name,
            points=curve.positive,
            colour=colour,
            css=css,
            marker=shape,
            size=6,
            dashed=key == "kl_prev",
            hollow=key == "kl_prev",
            band=curve.positive_band,
            tips=[f"{name} at depth {d}: {v:.2e}" for d, v in curve.positive],
        )
        for key, name, curve, colour, css, shape in named
        if curve
    ]

    def body(width: float) -> Drawing:
        keys = legend(series, width)
        y = log("mean change made by one pass (log scale)", [v for s in series for _, v in s.points])
        space = panel(width, x=depths(DEPTH, found.max_depth), y=y, name="change", legend_height=keys.height)
        marks = space.mark(found.mean_depth, f"training mean {found.mean_depth:g}") if found.mean_depth else ""
        return draw(space, series, legend_body=keys.body, extra=marks)

    rate = (
        f" The state change shrinks by a factor of {found.rate:.2f} per pass up to the training mean."
        if found.rate
        else ""
    )
    caption = (
        "How much one more pass changes the output distribution (KL divergence of consecutive readouts, both "
        "directions) "
        f"and the latent state (norm of the difference over the norm), mean over {count(found.tokens, 'token')}.{rate}"
        + (" Bands: 95% intervals." if any(s.band for s in series) else "")
    )
    header = ("depth", "kl_nats", "kl_prev_nats", "state_change")
    every = sorted({d for _, _, curve, *_ in named if curve for d in curve.depths})
    rows = [(d, *(curve.at(d)[0] if curve else None for _, _, curve, *_ in named)) for d in every]
    return Figure(
        name="change_by_depth",
        title="Output and state change by depth",
        caption=caption,
        header=header,
        rows=rows,
        draw=body,
    )


def convergence_figure(found: Measure) -> Figure:
    """Convergence depth, one small histogram per token type on a common axis."""
    settled = found.convergence
    assert settled is not None
    types: list[TypeRow] = [t for t in found.types if sum(t.histogram.values())]
    every = TypeRow(name="all", count=found.tokens, share=1.0, median=settled.median, histogram=settled.histogram)
    shown = [every, *sorted(types, key=lambda t: (t.median, t.mean or 0))]
    deepest = _deepest(settled, found.max_depth)

    def body(width: float) -> Drawing:
        return _ridges(shown, width, deepest, found)

    tail = settled.share_after.get(round(found.mean_depth)) if found.mean_depth else None
    caption = (
        f"Convergence depth of {count(found.tokens, 'token')}: the first depth after which every later KL between "
        f"consecutive readouts stays below {settled.threshold:g} nats. Each row is scaled to its own total; the "
        "tick marks its "
        f"median. Median over all: {settled.median:g}."
        + (f" Still moving after the training mean ({found.mean_depth:g}): {tail:.1%}." if tail is not None else "")
        + (
            f" Not settled at depth {found.max_depth} (censored): {settled.censored:.1%}."
            if settled.censored is not None
            else ""
        )
    )
    every_depth = range(1, found.max_depth + 1)
    rows = [(d, *(t.histogram.get(d, 0) for t in shown)) for d in every_depth]
    return Figure(
        name="convergence_by_type",
        title="Where tokens settle, by type",
        caption=caption,
        header=("depth", *(t.name for t in shown)),
        rows=rows,
        draw=body,
    )


def _deepest(settled: Convergence, max_depth: int) -> int:
    """Last depth worth drawing on its own: past the 99.5% quantile bars would be invisible; the rest joins it."""
    total, seen = sum(settled.histogram.values()), 0
    for depth in range(1, max_depth + 1):
        seen += settled.histogram.get(depth, 0)
        if seen >= 0.995 * total:
            return min(max_depth, max(depth + 1, 8))
    return max_depth


def _ridges(shown: Sequence[TypeRow], width: float, deepest: int, found: Measure) -> Drawing:
    row, top = 52.0, 20.0
    x = linear("convergence depth (core passes)", [0.5, deepest + 0.5], pad=0)
    every = max(1, round(deepest / (8 if width > 400 else 5)))
    ticks = [t for t in range(1, deepest, every) if deepest - t >= 0.8 * every] + [deepest]
    x = type(x)(label=x.label, kind="linear", lo=x.lo, hi=x.hi, ticks=tuple(map(float, ticks)))
    parts, wide, left = [], width > 400, 128.0 if width > 400 else 112.0
    for index, one in enumerate(shown):
        base = top + row * (index + 1)
        folded = _fold(one.histogram, deepest)
        total = sum(folded.values()) or 1
        y = linear("", [0, max(folded.values()) / total], zero=True, pad=0)
        space = Panel(x=x, y=y, left=left, right=width - 10, top=base - row + 14, bottom=base, clip=f"r{index}")
        tips = [
            (float(d), n / total, f"{one.name}, depth {_bin(d, deepest, found.max_depth)}: {n:,} of {total:,}")
            for d, n in folded.items()
        ]
        colour, css = (BLUE, "s-probe") if index else (GREEN, "s-rel")
        parts.append(bars(space, tips, colour=colour, css=css, low=0))
        at = space.px(min(one.median, deepest))
        parts.append(label(at, base + 9, "▲", size=8, anchor="middle", soft=False))
        name = TYPE_NAMES.get(one.name, "all tokens" if one.name == "all" else one.name)
        parts.append(label(0, base - 16, name, soft=False, font_weight=600 if not index else None))
        parts.append(label(0, base - 1, f"{one.count:,}" + (" tokens" if wide else ""), size=11))
        if index == len(shown) - 1:
            bottom = Panel(
                x=x,
                y=type(y)(label="", kind="linear", lo=0, hi=1, ticks=()),
                left=left,
                right=width - 10,
                top=base,
                bottom=base + 12,
                clip="ridge-axis",
            )
            parts.append(_axis(bottom, deepest, found.max_depth))
    return Drawing("".join(parts), top + row * len(shown) + 58)


def _axis(space: Panel, deepest: int, max_depth: int) -> str:
    texts = [
        label(space.px(t), space.bottom + 16, _bin(int(t), deepest, max_depth), size=11.5, anchor="middle")
        for t in space.x.ticks
    ]
    return "".join(texts) + label(space.right, space.bottom + 34, space.x.label, anchor="end")


def _fold(histogram: Mapping[int, int], deepest: int) -> dict[int, int]:
    folded = dict.fromkeys(range(1, deepest + 1), 0)
    for depth, n in histogram.items():
        folded[min(depth, deepest)] += n
    return folded


def _bin(depth: int, deepest: int, max_depth: int) -> str:
    return f"{depth}–{max_depth}" if depth == deepest < max_depth else str(depth)
