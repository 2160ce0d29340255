"""Figures of an allocation: quality against depth and against compute, and the savings at matched quality."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from loopwise.report.axis import Axis, depths, linear
from loopwise.report.chart import Drawing, Panel, Series, draw, legend, panel
from loopwise.report.figure import Figure
from loopwise.report.palette import INK, OTHER, SOFT, STYLES
from loopwise.report.run import Allocation, Point, Policy
from loopwise.report.svg import el, marker
from loopwise.report.words import count, near

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
        f"Quality against depth for every exit policy, {count(tokens, 'held-out token')}{_live_words(found)}; "
        "down and left is "
        "better. Solid: live "
        "decoding, where later tokens see the context that early exits left behind; dashed: replay of recorded "
        "curves. "
        f"Zero: uniform depth {found.reference_depth} on the same tokens. Ringed: the shallowest point of each policy "
        f"{near(found.tolerance)} it. {matched}"
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
        f"the state hardly move. {count(tokens, 'token')}{_live_words(found)}. {_matched_words(found, 'cost')}"
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
    "loss_increase",
    "increase_ci_low",
    "increase_ci_high",
    "agreement",
    "cost_ratio",
)


def _rows(found: Allocation) -> list[tuple[str | float | None, ...]]:
    rows: list[tuple[str | float | None, ...]] = []
    for policy in found.policies:
        for p in policy.points:
            ends = (*(p.loss_ci or (None, None)), p.increase, *(p.increase_ci or (None, None)))
            rows.append(
                (policy.label, policy.mode, p.threshold, p.mean_depth, p.loss, *ends, p.agreement, p.cost_ratio)
            )
    if found.oracle:
        rows.append(("oracle", "replay", None, found.oracle.mean_depth, found.oracle.loss, *[None] * 7))
    return rows


def _live_words(found: Allocation) -> str:
    """How many tokens were decoded live, where that is fewer."""
    live = {p.tokens for p in found.policies if p.mode == "live" and p.tokens is not None and p.tokens != found.tokens}
    return f" ({min(live):,} of them live)" if live else ""


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


def above(p: Point, found: Allocation) -> float:
    """Loss above the reference depth, on the point's own tokens where that is recorded."""
    return p.increase if p.increase is not None else p.loss - (found.reference_loss or 0.0)


def _mean_depth(p: Point) -> float | None:
    return p.mean_depth


def _cost_ratio(p: Point) -> float | None:
    return p.cost_ratio


def _series(found: Allocation, x: Callable[[Point], float | None]) -> list[Series]:
    return [s for s in (_policy_series(one, x, found) for one in found.policies) if s.points]


def _oracle(found: Allocation) -> list[Series]:
    """The hindsight oracle: a star where it comes as close as policies must, and its own frontier."""
    o = found.oracle
    if o is None:
        return []
    tips = (f"oracle: loss {o.loss:.4f} at mean depth {o.mean_depth:.2f}",)
    look: dict[str, Any] = {"groups": ("p-oracle",), "name": "oracle (hindsight)", "colour": INK, "css": "s-oracle"}
    base = found.reference_loss or 0.0
    star = Series(points=[(o.mean_depth, o.loss - base)], marker="star", joined=False, size=13.0, tips=tips, **look)
    return [star] + (
        [Series(points=[(d, v - base) for d, v in o.points], marker="", dotted=True, **look)]
        if len(o.points) > 1
        else []
    )


def _policy_series(policy: Policy, x: Callable[[Point], float | None], found: Allocation) -> Series:
    style = STYLES.get(policy.signal, OTHER)
    pairs = sorted(((at, p) for p in policy.points if (at := x(p)) is not None), key=lambda pair: pair[0])
    aside = policy.mode == "replay" and policy.signal != "depth"
    return Series(
        groups=_groups(policy),
        name=policy.label,
        points=[(at, above(p, found)) for at, p in pairs],
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
    lines += [f"{p.increase:+.4f} nats against the reference depth"] if p.increase is not None else []
    lines += [f"compute {p.cost_ratio:.3f} of the reference"] if p.cost_ratio is not None else []
    return "\n".join(lines)


def _frontier(found: Allocation, series: Sequence[Series], width: float, x: Axis, name: str) -> Drawing:
    keys = legend(_keys(series), width)
    space = panel(width, x=x, y=_loss_axis(found, series), name=name, legend_height=keys.height, plot=270)
    extra = space.level(0.0, f"depth {found.reference_depth}")
    if found.tolerance:
        extra += space.level(found.tolerance, f"+{found.tolerance:g}")
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
    rises = sorted(y for s in series if "p-oracle" not in s.groups for _, y in s.points)
    tolerance = found.tolerance or 0.01
    worst = max(0.35 * rises[-1], 4 * tolerance)
    return linear(
        f"loss above uniform depth {found.reference_depth} (nats)", [min(rises[0], 0.0), min(worst, rises[-1])]
    )


def _rings(found: Allocation, space: Panel, name: str) -> str:
    """Rings around the points of matched quality."""
    parts = []
    for policy in found.policies:
        point = _matched_point(policy)
        at = None if point is None else point.mean_depth if name == "frontier" else point.cost_ratio
        if point is not None and at is not None and policy.signal != "depth" and space.x.at(at) <= 1:
            style = STYLES.get(policy.signal, OTHER)
            ring = marker("circle", space.px(at), space.py(above(point, found)), 13.0)
            shape = el("path", d=ring, fill="none", stroke=style.colour, stroke_width=2, class_=f"line {style.css}")
            parts.append(el("g", shape, data_series=" ".join(_groups(policy))))
    return "".join(parts)


def _matched_point(policy: Policy) -> Point | None:
    """The point of a frontier that its matched entry speaks of."""
    m = policy.matched
    if m is None or not policy.points:
        return None
    return min(
        policy.points, key=lambda p: (abs(p.mean_depth - m.mean_depth), abs((p.threshold or 0) - (m.threshold or 0)))
    )
