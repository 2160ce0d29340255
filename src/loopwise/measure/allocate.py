"""Allocation: quality against mean depth for a table of exit policies, in replay and live, with oracles as bounds."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from loopwise.config import InputError, nearest
from loopwise.exit.policy import Policy
from loopwise.exit.signals import SIGNALS, Probe
from loopwise.measure.frontier import Entry, Ground, matched, points
from loopwise.measure.live import live
from loopwise.measure.oracle import oracles
from loopwise.measure.replay import Outcome, replay, threshold_grid
from loopwise.measure.stats import DRAWS
from loopwise.measure.trace import Trace, check_depth
from loopwise.measure.windows import Windows
from loopwise.model.cost import Cost
from loopwise.model.kv_layout import kv_layout
from loopwise.model.recurrent import RecurrentLM

Mode = Literal["replay", "live"]
LABELS = {"A0": "A0", "kl": "A1", "probe": "A2"}
ALIASES = {"A1": "kl", "A2": "probe", "depth": "A0"}
DEFAULT = ("A0", "kl", "rel_change", "accel", "cosine", "margin", "entropy", "probe")
OPTIONS = ("min=", "max=", "patience=", "every=")
GRID = 32


class Plan(NamedTuple):
    """A row of the table: a fixed policy, A0 over all depths (`policy` None), or a signal swept over thresholds."""

    name: str
    policy: Policy | None
    swept: bool

    @property
    def signal(self) -> str | None:
        """The signal that it reads."""
        return self.policy.signal if self.policy else None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to compare. `reference` is D: policies go no deeper unless they say `max=`, and loss and depth of uniform D
    are what savings are stated against. `live_tokens` bounds the tokens decoded live."""

    reference: int
    tolerance: float = 0.01
    grid: int = GRID
    draws: int = DRAWS
    seed: int = 0
    layout: str = "depth_indexed"
    live_tokens: int = 8192

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 10:
            raise InputError(f"tolerance is {self.tolerance!r}: use a small loss in nats, e.g. 0.01")
        for name in ("grid", "draws", "live_tokens"):
            if getattr(self, name) < 2:
                raise InputError(f"{name.replace('_', '-')} is {getattr(self, name)}: use at least 2")
        kv_layout(self.layout)


def parse_plans(text: str) -> list[Plan]:
    """Read `--policies`: comma-separated `A0`, signal names to sweep (with options: `kl,min=2`), or policies with a
    threshold (`kl<1e-3,min=2`) or depth (`depth=4`). Unknown names raise `InputError` with the nearest valid one."""
    parts: list[str] = []
    for piece in filter(None, (p.strip() for p in text.split(","))):
        if piece.startswith(OPTIONS) and parts:
            parts[-1] += "," + piece
        else:
            parts.append(piece)
    if not parts:
        raise InputError(f"policies is empty: name some, e.g. {','.join(DEFAULT)}")
    return [_plan(part) for part in parts]


def _plan(part: str) -> Plan:
    head, _, options = part.partition(",")
    head = ALIASES.get(head, head)
    if head == "A0":
        return Plan("A0", None, True)
    if "<" in head or "=" in head or ":" in head:
        return Plan(part, Policy.parse(part), False)
    if head not in SIGNALS:
        raise InputError(f"policy '{part}' is unknown: {nearest(head, ['A0', 'A1', 'A2', *SIGNALS])}")
    return Plan(
        ",".join(filter(None, (head, options))), Policy.parse(",".join(filter(None, (f"{head}<0", options)))), True
    )


def needs(plans: list[Plan]) -> list[str]:
    """Signals that must be traced."""
    return sorted({plan.signal for plan in plans if plan.signal})


def deepest(plans: list[Plan], reference: int, model: RecurrentLM) -> int:
    """Depth to trace to: the reference, or deeper if a policy asks for it."""
    check_depth("reference-depth", reference, model)
    wanted = [plan.policy.max_depth or reference for plan in plans if plan.policy]
    for depth in wanted:
        check_depth("policy max", depth, model)
    return max(reference, *wanted, 1)


def allocate(
    model: RecurrentLM,
    windows: Windows,
    found: Trace,
    plans: list[Plan],
    settings: Settings,
    *,
    modes: tuple[Mode, ...] = ("replay",),
    probe: Probe | None = None,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> dict[str, Any]:
    """The whole comparison, JSON-ready (fields: docs/measure.md).

    `found` is a trace of `windows` to `deepest(...)` with the signals `needs(...)` names. `progress(what, share)` says
    what is being worked on and which share of it is done.
    """
    cost = Cost.of(model.config)
    ground = _ground(found, cost, settings)
    table = []
    for plan in plans:
        progress(f"replay {plan.name}", 0.0)
        entries = [_replayed(found, t, p) for t, p in _sweep(plan, ground, settings)]
        if "replay" in modes:
            table.append(_row(plan, "replay", ground, entries))
        if "live" in modes:
            table.append(_live_row(model, windows, plan, entries, cost, settings, found, probe, progress))
    fixed = ground.best_fixed(ground.whole, settings.tolerance)
    best = ground.fixed[int(fixed.index[0])]
    reference = ground.fixed[settings.reference - 1].outcome
    limit = float(reference.nll.mean(dtype=np.float64)) + settings.tolerance
    bounds = oracles(found.columns["nll"][: settings.reference], found.columns["top1"][: settings.reference], limit)
    return {
        "reference_depth": settings.reference,
        "reference_loss": limit - settings.tolerance,
        "tolerance": settings.tolerance,
        "layout": settings.layout,
        "tokens": found.num_tokens,
        "ci_over": ground.group_kind,
        "num_groups": ground.weights.shape[1],
        "policies": table,
        "oracle": bounds["hindsight"],
        "oracle_settled": bounds["settled"],
        "best_fixed": _best(ground, best),
        "f0": cost.fixed,
        "fr": cost.per_pass,
        "readout_flops": cost.readout,
        "mean_keys": float((found.index["position"] + 1).mean()),
    }


def _ground(found: Trace, cost: Cost, settings: Settings) -> Ground:
    return Ground.of(found, cost, reference=settings.reference, tolerance=settings.tolerance, draws=settings.draws,
                     seed=settings.seed)  # fmt: skip


def _best(ground: Ground, best: Entry) -> dict[str, Any]:
    drawn = ground.best_fixed(ground.weights, ground.tolerance).depth
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    flops = [ground.flops_at(d, ground.whole)[0] for d in (int(best.threshold), ground.reference)]
    return {
        "depth": int(best.threshold),
        "depth_ci": [float(low), float(high)],
        "loss": float(best.outcome.nll.mean(dtype=np.float64)),
        "cost_ratio": float(flops[0] / flops[1]),
    }


def _sweep(plan: Plan, ground: Ground, settings: Settings) -> list[tuple[float, Policy]]:
    """Thresholds (for A0, depths) with their bound policies, from deep to shallow for signals."""
    if plan.policy is None:
        return [(float(e.threshold), e.policy) for e in ground.fixed]
    last = plan.policy.max_depth or settings.reference
    bound = dataclasses.replace(plan.policy, max_depth=last)
    if not plan.swept:
        return [(bound.threshold if bound.signal else float(last), bound)]
    first = max(bound.min_depth, SIGNALS[bound.signal or ""].first_depth)
    grid = threshold_grid(ground.found, bound.signal or "", size=settings.grid, first=first, last=last)
    return [(t, dataclasses.replace(bound, threshold=t)) for t in grid]


def _replayed(found: Trace, threshold: float, policy: Policy) -> Entry:
    return Entry(threshold, policy, replay(found, policy))


def _row(plan: Plan, mode: Mode, ground: Ground, entries: list[Entry]) -> dict[str, Any]:
    sums = ground.sums(entries)
    signal = SIGNALS[plan.signal] if plan.signal else None
    return {
        "name": plan.name,
        "label": LABELS.get(plan.name.split(",")[0].split("<")[0]),
        "mode": mode,
        "signal": plan.signal,
        "signal_cost": signal.cost if signal else None,
        "tokens": ground.found.num_tokens,
        "points": points(ground, entries, sums),
        "matched": matched(ground, entries, sums),
    }


def _live_row(
    model: RecurrentLM,
    windows: Windows,
    plan: Plan,
    entries: list[Entry],
    cost: Cost,
    settings: Settings,
    found: Trace,
    probe: Probe | None,
    progress: Callable[[str, float], None],
) -> dict[str, Any]:
    """Decode some thresholds live: a search for the loosest that still matches, and two on either side of it."""
    chosen = spread(windows, settings.live_tokens)
    rows = np.isin(found.index["window"], chosen)
    part, ground = windows.take(chosen), _ground(found.rows(rows), cost, settings)
    replayed = [Entry(e.threshold, e.policy, Outcome(*(column[rows] for column in e.outcome))) for e in entries]
    if plan.policy is None and kv_layout(settings.layout).exact:
        return _row(plan, "live", ground, replayed)  # uniform depth: live equals replay (tested), so nothing to decode
    limit = float(ground.fixed[settings.reference - 1].outcome.nll.mean(dtype=np.float64)) + settings.tolerance
    done: dict[int, Entry] = {}

    def matches(index: int) -> bool:
        if index not in done:
            what, count = f"live {replayed[index].policy}", [0]

            def advance(tokens: int) -> None:
                count[0] += tokens
                progress(what, count[0] / part.num_tokens)

            outcome = live(model, part, replayed[index].policy, layout=settings.layout, probe=probe, progress=advance)
            done[index] = replayed[index]._replace(outcome=outcome)
        return float(done[index].outcome.nll.mean(dtype=np.float64)) <= limit

    # A0 runs from shallow to deep, signals from deep to shallow: search along rising exit.
    order = list(range(len(replayed)))[:: -1 if plan.policy is None else 1]
    search(order, matches, start=_loosest(replayed, order, limit))
    row = _row(plan, "live", ground, [done[i] for i in sorted(done)])
    row["replay_points"] = points(
        ground, [replayed[i] for i in sorted(done)], ground.sums([replayed[i] for i in sorted(done)])
    )
    return row


def _loosest(entries: list[Entry], order: list[int], limit: float) -> int:
    """Place in `order` of the last entry that matches in replay."""
    good = [place for place, i in enumerate(order) if entries[i].outcome.nll.mean(dtype=np.float64) <= limit]
    return max(good, default=0)


def search(order: list[int], matches: Callable[[int], bool], *, start: int) -> None:
    """Find the last entry of `order` that matches, supposing that matching ends once; begin at `start`.

    Steps of 1, 2, 4, ... away from `start` bracket the end, halving finds it; then one more entry on either side is
    evaluated for the shape of the frontier.
    """
    low, high = -1, len(order)  # the last place known to match, the first known not to
    place, step = start, 1
    while 0 <= place < len(order) and high - low > 1:
        if matches(order[place]):
            low = max(low, place)
            place = place + step if high == len(order) else (low + high) // 2
        else:
            high = min(high, place)
            place = place - step if low == -1 else (low + high) // 2
        step *= 2
        place = min(max(place, low + 1), high - 1)
    for extra in (low - 3, low, low + 3):
        if 0 <= extra < len(order):
            matches(order[extra])


def spread(windows: Windows, max_tokens: int) -> np.ndarray:
    """Numbers of windows, evenly over the text, that together have about `max_tokens` tokens (at least one)."""
    count = len(windows.ids)
    wanted = max(1, min(count, round(count * max_tokens / max(windows.num_tokens, 1))))
    return np.unique(np.linspace(0, count - 1, wanted).round().astype(int))
