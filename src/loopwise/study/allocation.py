"""Section 4: what each way of choosing a depth per token saves, in replay and live, against the best fixed depth."""

import dataclasses
from typing import Any

import numpy as np

from loopwise.exit.signals import SIGNALS, Probe, supported
from loopwise.measure import allocate as measured
from loopwise.measure.allocate import Plan, allocate, parse_plans
from loopwise.measure.probe import judge
from loopwise.measure.trace import Trace
from loopwise.study.subject import Subject

VERSION = 3
GRID = {True: 16, False: 32}


def allocation(subject: Subject) -> dict[str, Any]:
    """The record of `loopwise allocate --mode both` on this corpus, with the deepest part of the trace cut off."""
    settings, found = subject.settings, upto(subject.trace, subject.reference)
    plans = [plan for plan in _plans(subject) if plan.signal is None or found.has(plan.signal)]
    table = run(subject, plans, found, subject.probe)
    if "probe" in found.columns:
        table["probe"] = judge(found, subject.reference)
    table["a1_against_a0"] = against_fixed(table)
    table["live_tokens"] = settings.live_tokens
    return table


def run(subject: Subject, plans: list[Plan], found: Trace, probe: Probe | None) -> dict[str, Any]:
    """Compare plans in replay and live."""
    settings = subject.settings
    chosen = measured.Settings(reference=subject.reference, tolerance=settings.tolerance, grid=GRID[settings.quick],
                               draws=settings.draws, seed=settings.seed, live_tokens=settings.live_tokens)  # fmt: skip
    return allocate(subject.model, subject.windows, found, plans, chosen, modes=("replay", "live"), probe=probe,
                    progress=lambda what, share: subject.tell(f"{subject.name}: {what}", share))  # fmt: skip


def _plans(subject: Subject) -> list[Plan]:
    plans = parse_plans(subject.settings.policies)
    more = [n for n in ("distil", "fisher") if n in SIGNALS and supported(n, subject.probe)]
    return plans + (parse_plans(",".join(more[:1])) if more else [])


def upto(found: Trace, depth: int) -> Trace:
    """The first depths of a trace."""
    columns = {name: values[:depth] for name, values in found.columns.items()}
    return dataclasses.replace(found, columns=columns, max_depth=depth)


def against_fixed(table: dict[str, Any]) -> list[dict[str, Any]]:
    """At every point of A1's frontier with a mean depth below the reference: its loss less that of uniform depth at
    the same mean depth, interpolated linearly between whole depths. Negative: A1 is better. Replay and live."""
    rows = []
    for mode in ("replay", "live"):
        fixed = next((p for p in table["policies"] if p["name"] == "A0" and p["mode"] == mode), None)
        a1 = next((p for p in table["policies"] if p["signal"] == "kl" and p["mode"] == mode), None)
        if not (fixed and a1):
            continue
        depth, loss = [p["mean_depth"] for p in fixed["points"]], [p["loss_increase"] for p in fixed["points"]]
        for point in a1["points"]:
            if 1.0 < point["mean_depth"] < table["reference_depth"]:
                base = float(np.interp(point["mean_depth"], depth, loss))
                gain = [v - base for v in (point["loss_increase"], *point["loss_increase_ci"])]
                rows.append({"mode": mode, "mean_depth": point["mean_depth"], "difference": gain[0], "ci": gain[1:]})
    return rows
