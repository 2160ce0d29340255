"""Charts: a panel with two axes, series drawn into it, a legend above it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loopwise.report.axis import Axis
from loopwise.report.palette import INK, PAPER, SOFT
from loopwise.report.svg import el, escape, label, marker, path, rule_line, width_of

SMALL = 11.5


class Drawing(NamedTuple):
    """Body of an SVG and the height it needs."""

    body: str
    height: float


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve: points, an optional band or per-point bars (lows, highs), and how it looks.

    `tips` are shown on hover. `groups` are the legend keys that the page can hide it by.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    css: str
    marker: str = "circle"
    band: Sequence[tuple[float, float]] | None = None
    bars: Sequence[tuple[float, float]] | None = None
    dashed: bool = False
    dotted: bool = False
    hollow: bool = False
    joined: bool = True
    size: float = 7
    tips: Sequence[str] = field(default_factory=tuple)
    groups: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The rectangle where data are drawn, `left`..`right`, `top`..`bottom` in pixels, with its axes."""

    x: Axis
    y: Axis
    left: float
    right: float
    top: float
    bottom: float
    clip: str

    def px(self, value: float) -> float:
        """Pixel column of an x value."""
        return self.left + self.x.at(value) * (self.right - self.left)

    def py(self, value: float) -> float:
        """Pixel row of a y value."""
        return self.bottom - self.y.at(value) * (self.bottom - self.top)

    def frame(self) -> str:
        """Grid, tick labels and axis labels."""
        parts = []
        for tick in self.y.ticks:
            y = self.py(tick)
            parts.append(rule_line(self.left, y, self.right, y))
            parts.append(label(self.left - 7, y + 4, self.y.name(tick), size=SMALL, anchor="end"))
        for tick in self.x.ticks:
            x = self.px(tick)
            parts.append(rule_line(x, self.bottom, x, self.bottom + 4, colour=SOFT, css="axis"))
            parts.append(label(x, self.bottom + 18, self.x.name(tick), size=SMALL, anchor="middle"))
        parts.append(rule_line(self.left, self.bottom, self.right, self.bottom, colour=SOFT, css="axis"))
        parts.append(label(self.right, self.bottom + 36, self.x.label, anchor="end"))
        box = el(
            "rect", x=self.left, y=self.top - 6, width=self.right - self.left + 8, height=self.bottom - self.top + 6
        )
        return el("clipPath", box, id=self.clip) + "".join(parts)

    def mark(self, value: float, text: str, *, row: int = 0, dashed: bool = True) -> str:
        """A vertical line at an x value, labelled at the top on the side that has room."""
        x = self.px(value)
        toward_end = x + 5 + width_of(text, SMALL) <= self.right
        at, anchor = (x + 5, "start") if toward_end else (x - 5, "end")
        dash = "4 3" if dashed else None
        line = rule_line(x, self.top, x, self.bottom, colour=INK, css="mark", stroke_dasharray=dash)
        return line + label(at, self.top + 11 + 15 * row, text, size=SMALL, anchor=anchor, soft=False, **HALO)

    def level(self, value: float, text: str) -> str:
        """A horizontal dotted line at a y value with its label at the left end."""
        y = self.py(value)
        line = rule_line(self.left, y, self.right, y, colour=INK, css="mark", stroke_dasharray="1 3")
        return line + label(self.left + 4, y - 5, text, size=SMALL, soft=False, **HALO)


HALO = {"paint_order": "stroke", "stroke": PAPER, "stroke_width": 3, "stroke_linejoin": "round", "data_halo": ""}


def panel(
    width: float, *, x: Axis, y: Axis, name: str, legend_height: float = 0, plot: float = 230, right: float = 14
) -> Panel:
    """A panel that fills `width`; the y label takes the first line, the legend follows."""
    left = 16 + max([width_of(y.name(t), SMALL) for t in y.ticks] or [20])
    top = 30 + legend_height
    clip = f"{name}-{width:g}-clip"
    return Panel(x=x, y=y, left=left, right=width - right, top=top, bottom=top + plot, clip=clip)


def draw(space: Panel, series: Sequence[Series], *, extra: str = "", legend_body: str = "") -> Drawing:
    """Frame, y label, legend, series, then `extra` on top."""
    curves = "".join(_curve(space, one) for one in series)
    inside = el("g", curves, clip_path=f"url(#{space.clip})") if curves else ""
    body = label(2, 14, space.y.label) + legend_body + space.frame() + inside + extra
    return Drawing(body, space.bottom + 46)


def legend(series: Sequence[Series], width: float, *, top: float = 22) -> Drawing:
    """Keys in as many rows as the width needs; height 0 when there is but one series."""
    if len(series) < 2:
        return Drawing("", 0)
    parts, x, y = [], 2.0, top + 10
    for one in series:
        need = 30 + width_of(one.name, SMALL) + 12
        if x > 2 and x + need > width:
            x, y = 2.0, y + 19
        parts.append(_key(one, x, y))
        x += need
    return Drawing("".join(parts), y - top + 10)


def _key(one: Series, x: float, y: float) -> str:
    line = _stroke(one, [(x, y), (x + 24, y)]) if one.joined else ""
    dot = _dots(one, [(x + 12, y, None)]) if one.marker else ""
    hit = el("rect", x=x - 2, y=y - 9, width=34 + width_of(one.name, SMALL), height=18, fill="transparent")
    name = label(x + 30, y + 4, one.name, size=SMALL, soft=False)
    return el("g", hit, line, dot, name, data_toggle=one.groups[0] if one.groups else None)


def _curve(space: Panel, one: Series) -> str:
    at = [(space.px(x), space.py(y)) for x, y in one.points if math.isfinite(x) and math.isfinite(y)]
    parts = []
    if one.band:
        upper = [(space.px(x), space.py(high)) for (x, _), (_, high) in zip(one.points, one.band, strict=True)]
        lower = [(space.px(x), space.py(low)) for (x, _), (low, _) in zip(one.points, one.band, strict=True)]
        area = path(upper + lower[::-1]) + "Z"
        parts.append(el("path", d=area, fill=one.colour, fill_opacity=0.18, stroke="none", class_=f"fill {one.css}"))
    for (x, _), (low, high) in zip(at, one.bars or (), strict=False):
        parts.append(_thin(one, [(x, space.py(low)), (x, space.py(high))]))
    if one.joined and len(at) > 1:
        parts.append(_stroke(one, at))
    if one.marker:
        parts.append(_dots(one, _spread(at, one)))
    return el("g", *parts, data_series=" ".join(one.groups) or None)


def _spread(at: Sequence[tuple[float, float]], one: Series) -> list[tuple[float, float, str | None]]:
    """Points with their tips; on a joined curve those that would touch the one before are left to the line."""
    kept: list[tuple[float, float, str | None]] = []
    for index, (x, y) in enumerate(at):
        tip = one.tips[index] if index < len(one.tips) else None
        far = not kept or math.dist((x, y), kept[-1][:2]) > 1.4 * one.size
        if far or not one.joined:
            kept.append((x, y, tip))
    return kept


def _stroke(one: Series, points: Sequence[tuple[float, float]]) -> str:
    dash = "5 3.5" if one.dashed else "1.5 3" if one.dotted else None
    return el(
        "path",
        d=path(points),
        fill="none",
        stroke=one.colour,
        stroke_width=1.8,
        stroke_dasharray=dash,
        stroke_linejoin="round",
        class_=f"line {one.css}",
    )


def _thin(one: Series, points: Sequence[tuple[float, float]]) -> str:
    return el("path", d=path(points), stroke=one.colour, stroke_width=1.4, class_=f"line {one.css}")


def _dots(one: Series, points: Sequence[tuple[float, float, str | None]]) -> str:
    shapes = (el("path", d=marker(one.marker, x, y, one.size), data_tip=tip) for x, y, tip in points)
    fill, css = (PAPER, f"hollow {one.css}") if one.hollow else (one.colour, f"dot {one.css}")
    return el("g", *shapes, fill=fill, stroke=one.colour, stroke_width=1.4, class_=css)


def bars(
    space: Panel, rows: Sequence[tuple[float, float, str]], *, colour: str, css: str, low: float, gap: float = 1
) -> str:
    """Vertical bars of one histogram with unit-wide bins on a linear x axis: (x, height value, tip)."""
    parts = []
    for x, value, tip in rows:
        left, right, y = space.px(x - 0.5) + gap / 2, space.px(x + 0.5) - gap / 2, space.py(value)
        shape = el(
            "rect",
            x=left,
            y=y,
            width=max(right - left, 0.5),
            height=max(space.py(low) - y, 0.0),
            fill=colour,
            class_=f"bar {css}",
            data_tip=tip,
        )
        parts.append(shape)
    return "".join(parts)


def note(text: str, width: float) -> Drawing:
    """A drawing that only says something."""
    return Drawing(el("text", escape(text), x=width / 2, y=40.0, text_anchor="middle", fill=SOFT, class_="soft"), 70)
