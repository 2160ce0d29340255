"""Tiers with a promise: thresholds chosen so that the risk stays below a tolerance at a stated confidence."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopwise.calibrate import shift
from loopwise.calibrate.bound import cap_of, documents_needed, share_above
from loopwise.calibrate.sample import MOST, Risk, Sample, documents_for
from loopwise.calibrate.sequence import Level, p_value, passed, sequence, walk
from loopwise.config import InputError
from loopwise.exit.policy import Policy
from loopwise.exit.signals import SIGNALS, Probe
from loopwise.measure.allocate import Mode
from loopwise.measure.live import live
from loopwise.measure.replay import Outcome, replay, token_flops
from loopwise.model.cost import Cost
from loopwise.model.kv_layout import kv_layout
from loopwise.model.recurrent import RecurrentLM

SHARES = {"economy": 1.0, "balanced": 0.5, "quality": 0.25}  # of the tolerance; `full` is the reference depth
SCHEMA = 1
Progress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for. `signal` is a policy whose threshold is to be found; `tolerance` is in nats per token or, for
    the risk `disagreement`, a share of first choices."""

    tolerance: float
    confidence: float
    signal: Policy
    risk: Risk = "loss"
    mode: Mode = "live"
    layout: str = "depth_indexed"

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance is {self.tolerance!r}: use a small number above 0, e.g. 0.01")
        if not 0.5 <= self.confidence < 1:
            raise InputError(f"confidence is {self.confidence!r}: use 0.5 to below 1, e.g. 0.95")
        if self.mode == "replay" and not kv_layout(self.layout).exact:
            raise InputError(f"layout '{self.layout}' needs mode live: replay has no cache")

    @property
    def tolerances(self) -> dict[str, float]:
        """Tolerance of each tested tier."""
        return {name: share * self.tolerance for name, share in SHARES.items()}


def enough(documents: int, request: Request) -> None:
    """Refuse a sample on which not even a policy that loses nothing could pass: `InputError` says how many documents
    would do."""
    ratio = min(cap_of(t, most=MOST[request.risk]) / t for t in request.tolerances.values())
    needed = documents_for(documents_needed(request.confidence, ratio=ratio))
    if documents < needed:
        raise InputError(
            f"the text has {documents} documents and confidence {request.confidence:g} needs at least {needed}: "
            "give more documents (--text may be repeated; --tokens), or lower --confidence"
        )


def calibrate(
    model: RecurrentLM, sample: Sample, request: Request, *, probe: Probe | None = None, progress: Progress
) -> dict[str, Any]:
    """The contents of `tiers.json`, without where they come from. Fields: docs/exit.md."""
    enough(len(sample.windows.hashes), request)
    scouted, tested = sample.split()
    evaluate = _evaluator(model, tested, request, probe)
    policies = sequence(scouted, request.signal)
    policies = policies[_start(model, scouted, policies, request, probe, progress) :]
    levels = walk(tested, _shown(policies, progress), list(request.tolerances.values()), request.confidence, evaluate,
                  risk=request.risk)  # fmt: skip
    top = Policy.parse(f"depth={sample.reference}")
    full = _full(evaluate, tested, top, request)
    tiers = []
    for name, tolerance in request.tolerances.items():
        level = passed(levels, tolerance, request.confidence)
        tiers.append(_tier(model, tested, name, level or full, tolerance, request, probe, certified=level is not None))
    exact = kv_layout(request.layout).exact
    tiers.append(_tier(model, tested, "full", full, 0.0 if exact else request.tolerance, request, probe,
                       certified=exact or full.p[request.tolerance] <= 1 - request.confidence))  # fmt: skip
    return {
        "schema": SCHEMA,
        "risk": request.risk,
        "unit": "document",
        "signal": request.signal.signal,
        "reference_depth": sample.reference,
        "tolerance": request.tolerance,
        "confidence": request.confidence,
        "cap": {name: cap_of(t, most=MOST[request.risk]) for name, t in request.tolerances.items()},
        "mode": request.mode,
        "layout": request.layout,
        "documents": len(tested.windows.hashes),
        "scouts": len(scouted.windows.hashes),
        "tokens": tested.found.num_tokens,
        "data_sha256": sample.windows.digest,
        "shift": _shift(sample, request),
        "tiers": tiers,
        "levels": [_level(level) for level in levels],
    }


def _evaluator(
    model: RecurrentLM, sample: Sample, request: Request, probe: Probe | None
) -> Callable[[Policy], Outcome]:
    """How a policy is evaluated on a sample: by replay or live. Uniform depth with exact KV is replay in both."""

    def evaluate(policy: Policy) -> Outcome:
        exact = policy.signal is None and kv_layout(request.layout).exact
        if request.mode == "replay" or exact:
            return replay(sample.found, policy)
        return live(model, sample.windows, policy, layout=request.layout, probe=probe)

    return evaluate


def _start(
    model: RecurrentLM, scouted: Sample, policies: list[Policy], request: Request, probe: Probe | None,
    progress: Progress,
) -> int:  # fmt: skip
    """Where in the sequence to begin: two policies deeper than the loosest one with which scouts lose at most half of
    the strictest tolerance. In replay testing is free, so there one begins at the top."""
    if request.mode == "replay":
        return 0
    evaluate, low, high = _evaluator(model, scouted, request, probe), -1, len(policies)
    goal = min(request.tolerances.values()) / 2
    while high - low > 1:
        middle = (low + high) // 2
        progress(f"scouting {policies[middle]}", 0.0)
        if scouted.losses(evaluate(policies[middle]), request.risk).mean() <= goal:
            low = middle
        else:
            high = middle
    return max(0, low - 2)


def _shown(policies: list[Policy], progress: Progress) -> Iterator[Policy]:
    for number, policy in enumerate(policies):
        progress(f"testing {policy}", number / len(policies))
        yield policy


def _full(evaluate: Callable[[Policy], Outcome], tested: Sample, top: Policy, request: Request) -> Level:
    outcome = evaluate(top)
    losses = tested.losses(outcome, request.risk)
    p = {t: p_value(losses, t, request.confidence, request.risk) for t in request.tolerances.values()}
    return Level(top, outcome, losses, p)


def _tier(
    model: RecurrentLM, tested: Sample, name: str, level: Level, tolerance: float, request: Request,
    probe: Probe | None, *, certified: bool,
) -> dict[str, Any]:  # fmt: skip
    """One tier. A tier for which no threshold passed is the reference depth itself: it may lose nothing."""
    exact = kv_layout(request.layout).exact
    fallback = level.policy.signal is None
    replayed = replay(tested.found, level.policy)
    decoded = level.outcome
    if request.mode == "replay" and not fallback:
        decoded = live(model, tested.windows, level.policy, layout=request.layout, probe=probe)
    increase = {m: float(tested.losses(o, "loss").mean()) for m, o in (("replay", replayed), ("live", decoded))}
    clipped = int((level.losses > cap_of(tolerance, most=MOST[request.risk])).sum()) if tolerance else 0
    cost, index = Cost.of(model.config), tested.found.index
    flops, whole = (
        token_flops(depth, policy, cost, index["position"]).mean()
        for depth, policy in (
            (level.outcome.depth, level.policy),
            (np.full_like(level.outcome.depth, tested.reference), Policy.parse(f"depth={tested.reference}")),
        )
    )
    return {
        "name": name,
        "policy": str(level.policy),
        "threshold": float(level.policy.threshold if level.policy.signal else tested.reference),
        "mean_depth": float(level.outcome.depth.mean()),
        "loss_increase": increase[request.mode],
        "bound": (0.0 if fallback and exact else tolerance) if certified or (fallback and exact) else None,
        "confidence": request.confidence,
        "tolerance": tolerance,
        "certified": certified,
        "p_value": level.p.get(tolerance),
        "risk": float(level.losses.mean()),
        "disagreement": float(tested.losses(level.outcome, "disagreement").mean()),
        "clipped_documents": clipped,
        "clipped_share_bound": share_above(clipped, len(level.losses), request.confidence),
        "cost_ratio": float(flops / whole),
        "mode": request.mode,
        "layout": request.layout,
        "replay_loss_increase": increase["replay"],
        "live_loss_increase": increase["live"],
        "live_mean_depth": float(decoded.depth.mean()),
        "drift": increase["live"] - increase["replay"],
        "documents": len(level.losses),
        "data_sha256": tested.windows.digest,
    }


def _level(level: Level) -> dict[str, Any]:
    return {
        "policy": str(level.policy),
        "mean_depth": float(level.outcome.depth.mean()),
        "risk": float(level.losses.mean()),
        "p_values": {f"{t:g}": p for t, p in level.p.items()},
    }


def _shift(sample: Sample, request: Request) -> dict[str, Any]:
    """The signal at its first check on all documents of the sample."""
    signal = SIGNALS[request.signal.signal or ""]
    depth = max(request.signal.min_depth, signal.first_depth)
    return shift.summary(sample.found.at(signal.name, depth), sample.found.index["document"], depth)


def check(model: RecurrentLM, sample: Sample, record: dict[str, Any], *, probe: Probe | None = None) -> dict[str, Any]:
    """What the tiers of `record` do on another text, and whether its signal is distributed differently."""
    stored, rows = record["shift"], []
    request = Request(tolerance=record["tolerance"], confidence=record["confidence"],
                      signal=Policy(signal=record["signal"]), risk=record["risk"], mode=record["mode"],
                      layout=record["layout"])  # fmt: skip
    evaluate = _evaluator(model, sample, request, probe)
    for tier in record["tiers"]:
        outcome = evaluate(Policy.parse(tier["policy"]))
        losses = sample.losses(outcome, request.risk)
        rows.append({
            "name": tier["name"],
            "risk": float(losses.mean()),
            "loss_increase": float(sample.losses(outcome, "loss").mean()),
            "mean_depth": float(outcome.depth.mean()),
            "bound": tier["bound"],
            "within": tier["bound"] is None or float(losses.mean()) <= tier["bound"] + 1e-9,
        })  # fmt: skip
    found = shift.distance(sample.found.at(record["signal"], stored["depth"]), stored)
    return {
        "documents": len(sample.windows.hashes),
        "tokens": sample.found.num_tokens,
        "data_sha256": sample.windows.digest,
        "distance": found,
        "warning": shift.warning(found, stored),
        "tiers": rows,
    }
