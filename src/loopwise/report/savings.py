"""Depth saved and compute saved at matched quality, side by side for every policy."""

from collections.abc import Sequence

from loopwise.report.axis import linear
from loopwise.report.chart import Drawing, Panel
from loopwise.report.figure import Figure
from loopwise.report.palette import OTHER, SOFT, STYLES
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
    inside = [v if isinstance(v, float) and v >= space.x.lo else None for v in (saved, compute)]
    if all(v is not None for v in inside):
        ends = [(space.px(v), y) for v in inside if v is not None]
        parts.append(
            el(
                "path",
                d=path(ends),
                stroke=style.colour,
                stroke_width=5,
                stroke_opacity=0.25,
                class_=f"line {style.css}",
            )
        )
    for one, other, drop in ((low, high, -4.5), (less, more, 4.5)):
        if isinstance(one, float) and isinstance(other, float) and other > space.x.lo:
            ends = [(space.px(max(one, space.x.lo)), y + drop), (space.px(other), y + drop)]
            parts.append(el("path", d=path(ends), stroke=style.colour, stroke_width=1.4, class_=f"line {style.css}"))
    for value, css, fill, what in (
        (inside[0], "dot", style.colour, "depth"),
        (inside[1], "hollow", "#ffffff", "compute"),
    ):
        if value is not None:
            dot = marker(style.marker, space.px(value), y, 9.0)
            tip = f"{policy.label} ({policy.mode}): {percent(value, 1)} of {what} saved"
            parts.append(
                el(
                    "path",
                    d=dot,
                    fill=fill,
                    stroke=style.colour,
                    stroke_width=1.5,
                    class_=f"{css} {style.css}",
                    data_tip=tip,
                )
            )
    return "".join(parts)
