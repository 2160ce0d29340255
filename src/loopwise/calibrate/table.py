"""The table of one checkpoint on one text: what each family saves at matched quality, in replay and decoded live."""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from loopwise.calibrate.families import CANDIDATES, GRID, PREDICTED, below, families, predicted
from loopwise.exit.policy import Policy
from loopwise.exit.signals import Probe
from loopwise.measure.allocate import spread
from loopwise.measure.frontier import Entry, Ground, matched
from loopwise.measure.live import live
from loopwise.measure.replay import replay, threshold_grid
from loopwise.measure.stats import percentile
from loopwise.measure.trace import Trace
from loopwise.measure.windows import Windows
from loopwise.model.recurrent import RecurrentLM

A1 = "kl"
UNPRICED = Policy.parse("rel_change<1,max=32")  # stands for exits that no policy string describes
KEPT = (
    "threshold", "policy", "mean_depth", "saving", "saving_ci", "saving_vs_best_fixed", "saving_vs_best_fixed_ci",
    "cost_ratio", "cost_ratio_ci", "compute_saving", "cost_ratio_vs_best_fixed", "agreement",
)  # fmt: skip


class Arena(NamedTuple):
    """A checkpoint on a text: model, windows, trace, fitted tensors, and uniform depths to compare with."""

    model: RecurrentLM
    windows: Windows
    found: Trace
    probe: Probe
    ground: Ground


def table(arena: Arena, args: argparse.Namespace, note: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """All families on one text: replay, then live on some of the windows, then timed; `note` hears what begins."""
    reference, ground = arena.ground.reference, arena.ground
    note("replaying every family")
    swept = families(arena.found, reference)
    entries = {n: [Entry(t, p, replay(arena.found, p)) for t, p in family] for n, family in swept.items()}
    rows = [_row(name, "replay", ground, found) for name, found in entries.items()]
    only = {PREDICTED: _predicted(arena), CANDIDATES: _candidates(arena)}
    rows += [_row(name, "replay", ground, found) for name, found in only.items()]
    for row in rows[-len(only) :]:
        for name in ("policy", "cost_ratio", "cost_ratio_ci", "compute_saving", "cost_ratio_vs_best_fixed"):
            (row["matched"] or {}).pop(name, None)  # their checks are none that a policy makes: see `net`
    best = int(ground.best_fixed(ground.whole, ground.tolerance).index[0]) + 1
    _agree(rows, entries | only, ground)
    if args.live_tokens:
        rows += _live_rows(arena, entries, args, note)
    return {
        "tolerance": ground.tolerance,
        "ci_over": ground.group_kind,
        "best_fixed": best,
        "loss_by_depth": [float(f"{e.outcome.nll.mean(dtype=np.float64):.5f}") for e in ground.fixed],
        "rows": rows,
    }


def _predicted(arena: Arena) -> list[Entry]:
    last = arena.ground.reference
    grid = threshold_grid(arena.found, "rel_change", size=GRID, last=last, first=2)
    return [Entry(t, UNPRICED, predicted(arena.found, t, last)) for t in grid if t > 0]


def _candidates(arena: Arena) -> list[Entry]:
    last = arena.ground.reference
    values = arena.found.columns[CANDIDATES][1 : last - 1]
    grid = np.quantile(values, np.linspace(0, 1, GRID))
    return [Entry(float(t), UNPRICED, below(arena.found, CANDIDATES, float(t), last)) for t in grid]


def _row(name: str, mode: str, ground: Ground, entries: list[Entry]) -> dict[str, Any]:
    found = matched(ground, entries, ground.sums(entries))
    signal = entries[0].policy.reads
    return {
        "name": name,
        "mode": mode,
        "signal": signal.name if signal else None,
        "signal_cost": signal.cost if signal else None,
        "tokens": ground.found.num_tokens,
        "matched": {k: found[k] for k in KEPT} if found else None,
    }


def _agree(rows: list[dict[str, Any]], entries: dict[str, list[Entry]], ground: Ground) -> None:
    """Add what is left of A1's saving (`of_a1`, with an interval over groups), and how exit depths at the matched
    thresholds agree with A1's: rank correlation, share equal, share within 1."""
    chosen = {r["name"]: r["matched"]["threshold"] for r in rows if r["matched"]}
    depths = {n: next(e.outcome.depth for e in entries[n] if e.threshold == t) for n, t in chosen.items()}
    if A1 not in depths:
        return
    saved = {name: _savings(entries[name], ground) for name in depths}
    for row in rows:
        if (mine := depths.get(row["name"])) is not None:
            apart, flat = np.abs(mine - depths[A1]), mine.std() == 0 or depths[A1].std() == 0
            row["of_a1"], row["of_a1_ci"] = _ratio(saved[row["name"]], saved[A1])
            row["with_a1"] = {
                "spearman": None if flat else float(np.corrcoef(rankdata(mine), rankdata(depths[A1]))[0, 1]),
                "equal": float((apart == 0).mean()),
                "within_one": float((apart <= 1).mean()),
                "deeper_by": float((mine - depths[A1]).mean()),
            }


def _savings(entries: list[Entry], ground: Ground) -> np.ndarray:
    """Passes saved at the matched threshold: on the sample itself, then in every bootstrap draw."""
    weights = np.concatenate([ground.whole, ground.weights])
    return ground.reference - ground.choose(ground.sums(entries), weights, ground.tolerance).depth


def _ratio(mine: np.ndarray, other: np.ndarray) -> tuple[float | None, list[float] | None]:
    """Ratio of savings with its interval; None where A1 saves nothing."""
    if not other[0] > 0:
        return None, None
    drawn = mine[1:][other[1:] > 0] / other[1:][other[1:] > 0]
    drawn = drawn[np.isfinite(drawn)]
    return float(mine[0] / other[0]), [float(v) for v in percentile(drawn)] if len(drawn) else None


def _live_rows(
    arena: Arena, replayed: dict[str, list[Entry]], args: argparse.Namespace, note: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The families asked for, decoded, on every fourth threshold, until the loosest that matches is found."""
    chosen = spread(arena.windows, args.live_tokens)
    rows_of = np.flatnonzero(np.isin(arena.found.index["window"], chosen))
    part = arena._replace(windows=arena.windows.take(chosen), found=arena.found.rows(rows_of))
    old = arena.ground
    ground = Ground.of(part.found, old.cost, reference=old.reference, tolerance=old.tolerance, draws=1000, seed=0)
    done: dict[str, list[Entry]] = {}
    for name in ["A0", *args.live_policies.split(",")]:
        if name not in replayed:
            continue
        note(f"decoding live under {name}")
        entries = replayed[name] if name == "A0" else replayed[name][::4]
        here = [e._replace(outcome=type(e.outcome)(*(c[rows_of] for c in e.outcome))) for e in entries]
        # Uniform depth on exact KV is the same live and in replay (a test says so).
        done[name] = here if name == "A0" else _decoded(part, ground, here)
    rows = [_row(name, "live", ground, found) for name, found in done.items()]
    _agree(rows, done, ground)
    note("timing")
    _time(part, ground, rows, args)
    return rows


def _decoded(part: Arena, ground: Ground, entries: list[Entry]) -> list[Entry]:
    """Decode at the loosest threshold that matches and at those tried on the way to it, supposing that matching ends
    once along the family. The search begins where replay says."""
    limit = float(ground.fixed[ground.reference - 1].outcome.nll.mean(dtype=np.float64)) + ground.tolerance
    found: list[Entry] = []
    low, high = -1, len(entries)  # the last place known to match, the first known not to
    place = max((i for i, e in enumerate(entries) if e.outcome.nll.mean(dtype=np.float64) <= limit), default=0)
    step = 1
    while high - low > 1:
        outcome = live(part.model, part.windows, entries[place].policy, probe=part.probe)
        found.append(entries[place]._replace(outcome=outcome))
        if outcome.nll.mean(dtype=np.float64) <= limit:
            low, place = place, place + step if high == len(entries) else (place + high) // 2
        else:
            high, place = place, place - step if low < 0 else (low + place) // 2
        place, step = min(max(place, low + 1), high - 1), 2 * step
    return found


def _time(part: Arena, ground: Ground, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Add the processor time of decoding the same windows under each matched policy, over that of the reference depth
    and of the best fixed depth: medians of rounds in which every policy runs once. One thread, so on an idle machine
    this is wall time; on a busy one it is what wall time would be."""
    best = int(ground.best_fixed(ground.whole, ground.tolerance).index[0]) + 1
    timed = part.windows.take(spread(part.windows, args.wall_tokens))
    policies = {r["name"]: r["matched"]["policy"] for r in rows if r["matched"]}
    policies |= {"reference": f"depth={ground.reference}", "best": f"depth={best}"}
    seconds: dict[str, list[float]] = {name: [] for name in policies}
    for _ in range(args.repeats):
        for name, text in policies.items():
            begun = time.process_time()
            live(part.model, timed, Policy.parse(text), probe=part.probe)
            seconds[name].append(time.process_time() - begun)
    middle = {name: median(s) for name, s in seconds.items()}
    for row in rows:
        if row["name"] in middle:
            row["time"] = {
                "seconds": middle[row["name"]],
                "ratio": middle[row["name"]] / middle["reference"],
                "ratio_vs_best_fixed": middle[row["name"]] / middle["best"],
                "rows": len(timed.ids),
            }
