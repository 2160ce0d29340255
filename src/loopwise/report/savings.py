"""Depth saved and compute saved at matched quality, side by side for every policy."""

from collections.abc import Sequence

from loopwise.report.axis import linear
from loopwise.report.chart import HALO, Drawing, Panel
from loopwise.report.figure import Figure
from loopwise.report.palette import OTHER, PAPER, SOFT, STYLES, Style
from loopwise.report.run import Allocation, Policy
from loopwise.report.svg import el, label, marker, path, rule_line
from loopwise.report.words import near, percent, spared


def savings_figure(found: Allocation) -> Figure:
    """Depth saved and compute saved at matched quality, side by side, with intervals."""
    rows = [p for p in found.policies if p.matched is not None and p.signal != "depth"]
    rows.sort(key=lambda p: (p.signal != "kl", p.signal != "probe", p.label, p.mode))

    def body(width: float) -> Drawing:
        return _savings(rows, width)

    data = [_saving_row(p) for p in rows]
    caption = (
        f"What each policy saves {near(found.tolerance)} uniform depth {found.reference_depth}. Filled: core passes "
        "saved; hollow: compute saved "
        "once its readouts and checks are paid for; lines: 95% intervals. Left of zero the policy costs more "
        "than it saves."
    )
    header = (
        "policy",
        "mode",
        "depth_saved",
        "ci_low",
        "ci_high",
        "compute_saved",
        "compute_ci_low",
        "compute_ci_high",
    )
    return Figure(
        name="savings", title="Depth saved and compute saved", caption=caption, header=header, rows=data, draw=body
    )


def _saving_row(policy: Policy) -> tuple[str | float | None, ...]:
    assert policy.matched is not None
    compute, ends = spared(policy.matched.cost_ratio, policy.matched.cost_ratio_ci)
    bounds = policy.matched.saving_ci or (None, None)
    return policy.label, policy.mode, policy.matched.saving, *bounds, compute, *(ends or (None, None))


def _savings(rows: Sequence[Policy], width: float) -> Drawing:
    left, row = (190.0 if width > 400 else 132.0), 26.0
    data = [_saving_row(p) for p in rows]
    values = [float(v) for entry in data for v in entry[2:] if isinstance(v, float)]
    x = linear("saved (share of the reference)", [0.0, *(max(v, -1.0) for v in values)], pad=0.06)
    space = Panel(x=x, y=x, left=left, right=width - 18, top=30, bottom=36 + row * len(rows), clip="savings")
    parts = [rule_line(space.px(t), space.top, space.px(t), space.bottom) for t in x.ticks]
    parts += [label(space.px(t), space.bottom + 18, percent(t, 0), size=11.5, anchor="middle") for t in x.ticks]
    parts.append(rule_line(space.px(0), space.top, space.px(0), space.bottom, colour=SOFT, css="axis"))
    parts.append(label(space.right, space.bottom + 36, x.label, anchor="end"))
    for x_, css, text, fill in (
        (left, "dot", "passes saved", SOFT),
        (left + 120, "hollow", "compute saved", "#ffffff"),
    ):
        parts.append(el("path", d=marker("circle", x_, 12, 9.0), fill=fill, stroke=SOFT, class_=f"{css} s-a0"))
        parts.append(label(x_ + 10, 16, text, size=11.5, soft=False))
    for index, (policy, entry) in enumerate(zip(rows, data, strict=True)):
        parts.append(_saving_marks(space, policy, entry, space.top + row * (index + 0.65)))
    return Drawing("".join(parts), space.bottom + 46)


def _saving_marks(space: Panel, policy: Policy, entry: Sequence[str | float | None], y: float) -> str:
    style = STYLES.get(policy.signal, OTHER)
    _, _, saved, low, high, compute, less, more = entry
    name = f"{policy.label}, {policy.mode}" if space.left > 150 else f"{policy.label} {policy.mode}"
    parts = [label(0, y + 4, name, size=11.5, soft=False)]
    if isinstance(saved, float) and isinstance(compute, float):
        parts.append(_rod(space, style, (compute, saved), y, stroke_width=5, stroke_opacity=0.25))
    for one, other, drop in ((low, high, -4.5), (less, more, 4.5)):
        if isinstance(one, float) and isinstance(other, float):
            parts.append(_rod(space, style, (one, other), y + drop, stroke_width=1.4))
    for value, filled, what in ((saved, True, "passes"), (compute, False, "compute")):
        if isinstance(value, float):
            parts.append(_dot(space, style, value, y, filled, f"{name}: {percent(value, 1)} of {what} saved"))
    return "".join(parts)


def _rod(space: Panel, style: Style, ends: tuple[float, float], y: float, **look: object) -> str:
    """A horizontal stroke between two values, cut at the panel's left edge."""
    inside = [(space.px(max(v, space.x.lo)), y) for v in ends]
    return el("path", d=path(inside), stroke=style.colour, class_=f"line {style.css}", **look)


def _dot(space: Panel, style: Style, value: float, y: float, filled: bool, tip: str) -> str:
    """A marker, or its figure at the left edge when it lies beyond."""
    if value < space.x.lo:
        return label(space.left + 2, y + 4, f"◂ {percent(value)}", size=11.5, soft=False, **HALO)
    shape, css = marker(style.marker, space.px(value), y, 9.0), "dot" if filled else "hollow"
    fill = style.colour if filled else PAPER
    return el(
        "path", d=shape, fill=fill, stroke=style.colour, stroke_width=1.5, class_=f"{css} {style.css}", data_tip=tip
    )
