"""Figures of an allocation: quality against depth and against compute, and the savings at matched quality."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from loopwise.report.axis import Axis, depths, linear
from loopwise.report.chart import Drawing, Panel, Series, draw, legend, panel
from loopwise.report.figure import Figure
from loopwise.report.palette import INK, OTHER, SOFT, STYLES, VERMILLION
from loopwise.report.run import Allocation, Point, Policy
from loopwise.report.svg import el, label, marker, path, rule_line
from loopwise.report.words import count, percent, spared

X_DEPTH = "mean depth (core passes, log scale)"
X_COST = "compute, checks included (reference = 1)"


def frontier_figure(found: Allocation, tokens: int) -> Figure:
    """Loss against mean depth."""
    series = _series(found, _mean_depth) + _oracle(found)
    top = max((x for s in series for x, _ in s.points), default=2.0)

    def body(width: float) -> Drawing:
        return _frontier(found, series, width, depths(X_DEPTH, max(2, math.ceil(top))), "frontier")

    matched = _matched_words(found, "depth")
    caption = (
        f"Quality against depth for every exit policy, {count(tokens, 'held-out token')}; down and left is "
        "better. Solid: live "
        "decoding, where later tokens see the context that early exits left behind; dashed: replay of recorded "
        "curves. "
        f"Dotted level: loss of depth {found.reference_depth} for all tokens. Ringed: the cheapest point "
        f"{_near(found)} it. {matched}"
        f"{_interval_words(found)}"
    )
    return Figure(
        name="frontier_depth",
        title="Loss against mean depth",
        caption=caption,
        header=_HEADER,
        rows=_rows(found),
        draw=body,
    )


def cost_frontier_figure(found: Allocation, tokens: int) -> Figure:
    """Loss against compute."""
    series = _series(found, _cost_ratio)
    high = max((x for s in series for x, _ in s.points), default=1.0)
    x = linear(X_COST, [0.0, min(high, 2.0)], zero=True, count=6, pad=0.03)

    def body(width: float) -> Drawing:
        return _frontier(found, series, width, x, "costs")

    caption = (
        "The same policies against what they compute: every pass, every readout and every check of the signal, "
        "relative to "
        f"uniform depth {found.reference_depth}. Signals that read the output move to the right of where their "
        "depth alone would put them; signals of "
        f"the state hardly move. {count(tokens, 'token')}. {_matched_words(found, 'cost')}"
    )
    header = ("policy", "mode", "threshold", "cost_ratio", "loss_nats")
    rows = [(p.label, p.mode, o.threshold, o.cost_ratio, o.loss) for p in found.policies for o in p.points]
    return Figure(
        name="frontier_compute",
        title="Loss against compute, checks included",
        caption=caption,
        header=header,
        rows=rows,
        draw=body,
    )


_HEADER = (
    "policy",
    "mode",
    "threshold",
    "mean_depth",
    "loss_nats",
    "loss_ci_low",
    "loss_ci_high",
    "agreement",
    "cost_ratio",
)


def _rows(found: Allocation) -> list[tuple[str | float | None, ...]]:
    rows: list[tuple[str | float | None, ...]] = []
    for policy in found.policies:
        for p in policy.points:
            low, high = p.loss_ci or (None, None)
            rows.append(
                (policy.label, policy.mode, p.threshold, p.mean_depth, p.loss, low, high, p.agreement, p.cost_ratio)
            )
    if found.oracle:
        rows.append(("oracle", "replay", None, found.oracle.mean_depth, found.oracle.loss, None, None, None, None))
    return rows


def _interval_words(found: Allocation) -> str:
    return f" Intervals in the table: bootstrap over {count(found.groups, found.unit)}." if found.groups else ""


def _matched_words(found: Allocation, what: str) -> str:
    a1 = found.policy("kl")
    if a1 is None or a1.matched is None:
        return ""
    value = a1.matched.mean_depth if what == "depth" else a1.matched.cost_ratio
    if value is None:
        return ""
    shown = f"at a mean depth of {value:.2f}" if what == "depth" else f"at {value:.2f} times its compute"
    return f"A1 ({a1.mode}) gets there {shown}."


def _near(found: Allocation) -> str:
    return f"within {found.tolerance:g} nats of" if found.tolerance else "at the loss of"


def _mean_depth(p: Point) -> float | None:
    return p.mean_depth


def _cost_ratio(p: Point) -> float | None:
    return p.cost_ratio


def _series(found: Allocation, x: Callable[[Point], float | None]) -> list[Series]:
    return [s for s in (_policy_series(one, x) for one in found.policies) if s.points]


def _oracle(found: Allocation) -> list[Series]:
    """The hindsight oracle: a star where it comes as close as policies must, and its own frontier."""
    o = found.oracle
    if o is None:
        return []
    tips = (f"oracle: loss {o.loss:.4f} at mean depth {o.mean_depth:.2f}",)
    look: dict[str, Any] = {"groups": ("p-oracle",), "name": "oracle (hindsight)", "colour": INK, "css": "s-oracle"}
    star = Series(points=[(o.mean_depth, o.loss)], marker="star", joined=False, size=13.0, tips=tips, **look)
    return [star] + ([Series(points=o.points, marker="", dotted=True, **look)] if len(o.points) > 1 else [])


def _policy_series(policy: Policy, x: Callable[[Point], float | None]) -> Series:
    style = STYLES.get(policy.signal, OTHER)
    pairs = sorted(((at, p) for p in policy.points if (at := x(p)) is not None), key=lambda pair: pair[0])
    aside = policy.mode == "replay" and policy.signal != "depth"
    return Series(
        groups=_groups(policy),
        name=policy.label,
        points=[(at, p.loss) for at, p in pairs],
        colour=style.colour,
        css=style.css,
        marker=style.marker,
        dashed=aside,
        hollow=aside,
        size=5.5 if aside else 6.5,
        tips=[_tip(policy, p) for _, p in pairs],
    )


def _tip(policy: Policy, p: Point) -> str:
    limit = f" at threshold {p.threshold:.3g}" if p.threshold is not None and policy.signal != "depth" else ""
    lines = [f"{policy.label} ({policy.mode}){limit}", f"mean depth {p.mean_depth:.2f}, loss {p.loss:.4f} nats"]
    lines += [f"compute {p.cost_ratio:.3f} of the reference"] if p.cost_ratio is not None else []
    return "\n".join(lines)


def _frontier(found: Allocation, series: Sequence[Series], width: float, x: Axis, name: str) -> Drawing:
    keys = legend(_keys(series), width)
    space = panel(width, x=x, y=_loss_axis(found, series), name=name, legend_height=keys.height, plot=270)
    extra = space.level(found.reference_loss, f"depth {found.reference_depth}") if found.reference_loss else ""
    if found.best_fixed and name == "frontier":
        extra += space.mark(found.best_fixed.depth, f"best fixed {found.best_fixed.depth}")
    return draw(space, series, legend_body=keys.body, extra=extra + _rings(found, space, name))


def _groups(policy: Policy) -> tuple[str, ...]:
    """Legend keys: the policy, and the mode unless it is uniform depth, where modes agree."""
    return (f"p-{policy.signal}",) if policy.signal == "depth" else (f"p-{policy.signal}", f"m-{policy.mode}")


def _keys(series: Sequence[Series]) -> list[Series]:
    """One key per policy, then one per mode if there are two."""
    first = {s.groups[0]: replace(s, dashed=False, hollow=False, size=7.0) for s in reversed(series)}
    keys = [first[name] for name in dict.fromkeys(s.groups[0] for s in series)]
    modes = {s.groups[1]: s for s in series if len(s.groups) > 1}
    if len(modes) == 2:
        look: dict[str, Any] = {"points": (), "colour": SOFT, "css": "s-a0", "marker": "circle", "size": 6.0}
        keys.append(Series(name="live", groups=("m-live",), **look))
        keys.append(Series(name="replay", groups=("m-replay",), dashed=True, hollow=True, **look))
    return keys


def _loss_axis(found: Allocation, series: Sequence[Series]) -> Axis:
    """From the best loss to where shallow policies fail; far worse points run out of the panel."""
    losses = sorted(y for s in series if "p-oracle" not in s.groups for _, y in s.points)
    level = found.reference_loss if found.reference_loss is not None else losses[0]
    low = min(losses[0], found.oracle.loss) if found.oracle else losses[0]
    worst = level + max(0.35 * (losses[-1] - level), 3 * (level - low), 0.02)
    return linear("loss (nats per token)", [low, min(worst, losses[-1])])


def _rings(found: Allocation, space: Panel, name: str) -> str:
    """Rings around the points of matched quality."""
    parts = []
    for policy in found.policies:
        if policy.matched is None or found.reference_loss is None or policy.signal == "depth":
            continue
        at = policy.matched.mean_depth if name == "frontier" else policy.matched.cost_ratio
        if at is not None and space.x.at(at) <= 1:
            style = STYLES.get(policy.signal, OTHER)
            loss = policy.matched.loss if policy.matched.loss is not None else found.reference_loss
            ring = marker("circle", space.px(at), space.py(loss), 13.0)
            shape = el("path", d=ring, fill="none", stroke=style.colour, stroke_width=2, class_=f"line {style.css}")
            parts.append(el("g", shape, data_series=" ".join(_groups(policy))))
    return "".join(parts)


def savings_figure(found: Allocation) -> Figure:
    """Depth saved and compute saved at matched quality, side by side, with intervals."""
    rows = [p for p in found.policies if p.matched is not None and p.signal != "depth"]
    rows.sort(key=lambda p: (p.signal != "kl", p.signal != "probe", p.label, p.mode))

    def body(width: float) -> Drawing:
        return _savings(rows, width)

    data = [_saving_row(p) for p in rows]
    caption = (
        f"What each policy saves {_near(found)} uniform depth {found.reference_depth}. Filled: core passes "
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
    space = Panel(x=x, y=x, left=left, right=width - 18, top=12, bottom=18 + row * len(rows), clip="savings")
    parts = [rule_line(space.px(t), space.top, space.px(t), space.bottom) for t in x.ticks]
    parts += [label(space.px(t), space.bottom + 18, percent(t), size=11.5, anchor="middle") for t in x.ticks]
    parts.append(rule_line(space.px(0), space.top, space.px(0), space.bottom, colour=SOFT, css="axis"))
    parts.append(label(space.right, space.bottom + 36, x.label, anchor="end"))
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
                    stroke=style.colour or VERMILLION,
                    stroke_width=1.5,
                    class_=f"{css} {style.css}",
                    data_tip=tip,
                )
            )
    return "".join(parts)
