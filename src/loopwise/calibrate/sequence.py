"""Learn-then-Test (Angelopoulos et al., 2021) with a fixed sequence of policies, from deep to shallow.

The sequence is fixed on the scouts. Along it each policy is tested at the full level δ = 1 - confidence until the first
one that fails: whatever the sequence, the chance that a policy was passed whose risk is above the tolerance is at most
δ, because that needs the *first* such policy of the sequence to pass.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from loopwise.calibrate.bound import cap_of, p_values
from loopwise.calibrate.sample import MOST, Risk, Sample
from loopwise.exit.policy import Policy
from loopwise.exit.signals import SIGNALS
from loopwise.measure.replay import Outcome, exit_depths, threshold_grid

STEP = 0.25  # passes between neighbours of the sequence, in replay on the scouts
GRID = 160


class Level(NamedTuple):
    """A tested policy: what it did, what documents lost, and the p-value for each tolerance tested."""

    policy: Policy
    outcome: Outcome
    losses: Float[np.ndarray, "documents"]
    p: dict[float, float]


def sequence(scouted: Sample, template: Policy) -> list[Policy]:
    """Policies that differ in threshold, from just below the reference depth to the shallowest possible, whose mean
    depth on the scouts (replay) falls by about `STEP` each."""
    last = template.max_depth or scouted.reference
    bound = dataclasses.replace(template, max_depth=last).bind(scouted.found.max_depth)
    signal = SIGNALS[bound.signal or ""]
    first = max(bound.min_depth, signal.first_depth)
    grid = threshold_grid(scouted.found, signal.name, size=GRID, last=last, first=first)
    policies = [dataclasses.replace(bound, threshold=t) for t in grid if t > 0]
    depths = [float(exit_depths(scouted.found, p).mean()) for p in policies]
    chosen, goal = [], last - STEP
    for policy, depth in zip(policies, depths, strict=True):
        if depth <= goal:
            chosen.append(policy)
            goal = depth - STEP
    return chosen


def walk(
    tested: Sample,
    policies: Iterable[Policy],
    tolerances: list[float],
    confidence: float,
    evaluate: Callable[[Policy], Outcome],
    *,
    risk: Risk,
) -> list[Level]:
    """Test policies in order until every tolerance has failed."""
    alive, levels = set(tolerances), []
    for policy in policies:
        outcome = evaluate(policy)
        losses = tested.losses(outcome, risk)
        p = {t: p_value(losses, t, confidence, risk) for t in sorted(alive)}
        levels.append(Level(policy, outcome, losses, p))
        alive = {t for t in alive if p[t] <= 1 - confidence}
        if not alive:
            break
    return levels


def p_value(losses: Float[np.ndarray, "documents"], tolerance: float, confidence: float, risk: Risk) -> float:
    """The p-value of one policy at one tolerance."""
    return float(p_values(losses, tolerance, cap=cap_of(tolerance, most=MOST[risk]), confidence=confidence))


def passed(levels: list[Level], tolerance: float, confidence: float) -> Level | None:
    """The last level before the first failure at this tolerance, or None."""
    found = None
    for level in levels:
        if level.p.get(tolerance, 1.0) > 1 - confidence:
            break
        found = level
    return found
