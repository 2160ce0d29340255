"""Two kinds of figure that all sections share: curves over an axis, and dots with intervals, one row each."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from loopwise.report.axis import Axis, depths, linear, log
from loopwise.report.chart import HALO, Drawing, Panel, Series, draw, legend, panel
from loopwise.report.figure import Cell, Figure
from loopwise.report.palette import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, SOFT, VERMILLION
from loopwise.report.svg import el, label, marker, path, rule_line, width_of

LOOKS = (
    (BLUE, "s-probe", "circle"),
    (VERMILLION, "s-kl", "square"),
    (GREEN, "s-rel", "triangle"),
    (PURPLE, "s-accel", "down"),
    (ORANGE, "s-ent", "diamond"),
    (SKY, "s-cos", "circle"),
    (SOFT, "s-a0", "square"),
)
STUDY = "the study"


class Line(NamedTuple):
    """A curve: name, points, and bounds of each point if there are any."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] | None = None


class Dot(NamedTuple):
    """A row of a dot figure: its name, value, bounds if any, and the group that decides how it looks."""

    name: str
    value: float
    ends: Sequence[float] | None = None
    group: str = ""


def lines(
    name: str,
    title: str,
    caption: str,
    x_label: str,
    y_label: str,
    curves: Sequence[Line],
    *,
    study: Sequence[tuple[float, float]] = (),
    marks: Sequence[tuple[float, str]] = (),
    y_log: bool = False,
    x_depth: bool = True,
    joined: bool = True,
) -> Figure:
    """Curves in one panel, the study's points as stars. `marks` are vertical lines (x, text)."""
    series = [_series(i, one, y_log, joined) for i, one in enumerate(curves)]
    if study:
        star = Series(name=STUDY, points=list(study), colour=INK, css="s-oracle", marker="star", joined=False, size=15,
                      groups=("g-study",), tips=[f"{STUDY}: {v:g} at {d:g}" for d, v in study])  # fmt: skip
        series.append(star)
    heights = [v for s in series for _, v in s.points]
    heights += [v for s in series for ends in s.band or () for v in ends if not y_log]

    def body(width: float) -> Drawing:
        keys = legend(series, width)
        xs = [x for s in series for x, _ in s.points]
        x: Axis = depths(x_label, int(max(xs))) if x_depth else linear(x_label, xs)
        y = log(y_label, heights) if y_log else linear(y_label, heights)
        space = panel(width, x=x, y=y, name=name, legend_height=keys.height)
        extra = "".join(space.mark(at, text, row=i) for i, (at, text) in enumerate(marks))
        return draw(space, series, legend_body=keys.body, extra=extra)

    rows: list[list[Cell]] = [
        [one.name, x, y, *(one.band[i] if one.band else (None, None))]
        for one in curves
        for i, (x, y) in enumerate(one.points)
    ]
    rows += [[STUDY, x, y, None, None] for x, y in study]
    return Figure(name=name, title=title, caption=caption, header=("series", x_label, y_label, "ci_low", "ci_high"),
                  rows=rows, draw=body)  # fmt: skip


def _series(index: int, one: Line, y_log: bool, joined: bool) -> Series:
    colour, css, shape = LOOKS[index % len(LOOKS)]
    kept = [i for i, (_, y) in enumerate(one.points) if y > 0 or not y_log]
    points = [one.points[i] for i in kept]
    band = [(max(one.band[i][0], points[n][1] * 1e-2) if y_log else one.band[i][0], one.band[i][1])
            for n, i in enumerate(kept)] if one.band else None  # fmt: skip
    tips = [f"{one.name}: {y:.4g} at {x:g}" for x, y in points]
    return Series(name=one.name, points=points, colour=colour, css=css, marker=shape, size=6, band=band, tips=tips,
                  groups=(f"g-{index}",), dashed=index >= 4, joined=joined)  # fmt: skip


def dots(
    name: str,
    title: str,
    caption: str,
    x_label: str,
    rows: Sequence[Dot],
    *,
    study: float | None = None,
    zero: bool = False,
    form: Callable[[float], str] = lambda v: f"{v:.3g}",
) -> Figure:
    """One row per dot with its interval; a dashed line where the study's figure lies."""
    groups = list(dict.fromkeys(row.group for row in rows))

    def body(width: float) -> Drawing:
        return _dots(rows, groups, width, x_label, study, zero, form, name)

    data: list[list[Cell]] = [[r.name, r.group, r.value, *(r.ends or (None, None))] for r in rows]
    if study is not None:
        data.append([STUDY, "", study, None, None])
    return Figure(name=name, title=title, caption=caption, header=("row", "group", x_label, "ci_low", "ci_high"),
                  rows=data, draw=body)  # fmt: skip


def _dots(
    rows: Sequence[Dot],
    groups: Sequence[str],
    width: float,
    x_label: str,
    study: float | None,
    zero: bool,
    form: Callable[[float], str],
    name: str,
) -> Drawing:
    longest = max((width_of(row.name, 11.5) for row in rows), default=40.0)
    left = min(longest + 14, width * 0.48)
    values = [v for row in rows for v in (row.value, *(row.ends or ()))] + ([] if study is None else [study])
    x, keys = linear(x_label, values, zero=zero, count=5 if width > 400 else 4), _keys(groups, width)
    top = 12.0 + keys.height
    space = Panel(x=x, y=x, left=left, right=width - 16, top=top + 12, bottom=top + 22 + 24 * len(rows), clip=name)
    parts = [keys.body]
    for tick in x.ticks:
        parts.append(rule_line(space.px(tick), space.top, space.px(tick), space.bottom))
        parts.append(label(space.px(tick), space.bottom + 17, form(tick), size=11.5, anchor="middle"))
    parts.append(label(space.right, space.bottom + 36, x_label, anchor="end"))
    if study is not None:
        parts.append(space.mark(study, STUDY))
    for index, row in enumerate(rows):
        parts.append(_dot(space, row, groups.index(row.group), space.top + 24 * index + 22, form))
    return Drawing("".join(parts), space.bottom + 46)


def _keys(groups: Sequence[str], width: float) -> Drawing:
    if len(groups) < 2:
        return Drawing("", 0)
    parts, x, y = [], 6.0, 12.0
    for index, group in enumerate(groups):
        colour, css, shape = LOOKS[index % len(LOOKS)]
        need = 16 + width_of(group, 11.5) + 16
        if x > 6 and x + need > width:
            x, y = 6.0, y + 18
        parts.append(el("path", d=marker(shape, x, y, 8.0), fill=colour, stroke=colour, class_=f"dot {css}"))
        parts.append(label(x + 10, y + 4, group, size=11.5, soft=False))
        x += need
    return Drawing("".join(parts), y)


def _dot(space: Panel, row: Dot, look: int, y: float, form: Callable[[float], str]) -> str:
    colour, css, shape = LOOKS[look % len(LOOKS)]
    ends = f" [{form(row.ends[0])}, {form(row.ends[1])}]" if row.ends else ""
    parts = [label(0, y + 4, _short(row.name, space.left - 8), size=11.5, soft=False, **HALO)]
    if row.ends:
        bar = [(space.px(v), y) for v in row.ends]
        parts.append(el("path", d=path(bar), stroke=colour, stroke_width=1.6, class_=f"line {css}"))
    parts.append(el("path", d=marker(shape, space.px(row.value), y, 9.0), fill=colour, stroke=colour, stroke_width=1.4,
                    class_=f"dot {css}", data_tip=f"{row.name}: {form(row.value)}{ends}"))  # fmt: skip
    return "".join(parts)


def _short(text: str, width: float) -> str:
    """Cut a name that would run into the panel."""
    while len(text) > 4 and width_of(text, 11.5) > width:
        text = text[:-2].rstrip(" …") + "…"
    return text
