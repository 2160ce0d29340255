"""Replay: what an exit policy would do to recorded tokens, with the very rule objects that decoding uses.

Replay takes loss and signals from a uniform-depth trace: a token that leaves at depth d is charged the loss of the
model at fixed depth d, and its context keeps full-depth keys and values. Decoding differs (`live.py`).
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from loopwise.config import InputError
from loopwise.exit.policy import Policy
from loopwise.exit.rules import Rule
from loopwise.exit.signals import Signal
from loopwise.measure.trace import Trace
from loopwise.model.cost import Cost


class Outcome(NamedTuple):
    """What a policy did to each token: loss in nats, exit depth, coda-and-head evaluations, checks, first choice."""

    nll: Float[np.ndarray, "tokens"]
    depth: Int[np.ndarray, "tokens"]
    readouts: Int[np.ndarray, "tokens"]
    checks: Int[np.ndarray, "tokens"]
    top1: Int[np.ndarray, "tokens"]


def replay(found: Trace, policy: Policy) -> Outcome:
    """Apply a policy (bound to the trace's depth or less) to every token. `replay:FILE` policies need one recorded
    depth per token. A policy deeper than the trace, or a signal it lacks, raises `InputError`."""
    policy = policy.bind(found.max_depth)
    depth = exit_depths(found, policy)
    token = np.arange(found.num_tokens)
    readouts, checks = spent(policy)
    return Outcome(
        nll=found.columns["nll"][depth - 1, token],
        depth=depth,
        readouts=readouts[depth - 1],
        checks=checks[depth - 1],
        top1=found.columns["top1"][depth - 1, token],
    )


def exit_depths(found: Trace, policy: Policy) -> Int[np.ndarray, "tokens"]:
    """Exit depth of every token under a bound policy."""
    rule, last = policy.rule(), policy.max_depth or found.max_depth
    recorded = recorded_depths(policy, found.num_tokens)
    carry = rule.init(found.num_tokens)
    depths = np.zeros(found.num_tokens, dtype=np.int64)
    for depth in range(1, last + 1):
        value = recorded
        if policy.signal and rule.checks_at(depth):
            value = torch.from_numpy(np.ascontiguousarray(found.at(policy.signal, depth)))
        leave, carry = rule.step(value, depth, carry)
        depths[(depths == 0) & leave.numpy()] = depth
    return depths


def recorded_depths(policy: Policy, tokens: int) -> torch.Tensor | None:
    """The depths that a `replay:FILE` policy plays, one per token, or None."""
    if policy.recorded is None:
        return None
    if len(policy.recorded) != tokens:
        raise InputError(f"policy 'replay' has {len(policy.recorded)} depths for {tokens} tokens: record this text")
    return torch.tensor(policy.recorded, dtype=torch.float32)


def spent(policy: Policy) -> tuple[Int[np.ndarray, "depth"], Int[np.ndarray, "depth"]]:
    """Readouts and checks of a token by its exit depth, under a bound policy, as the decoder makes them.

    The decoder reads out wherever the rule looks at the output, one pass earlier too for a signal that compares two
    readouts, and once more at the end if the exit state was not read out yet.
    """
    rule, signal = policy.rule(), policy.reads
    depths = np.arange(1, (policy.max_depth or 1) + 1)
    looks = np.array([checks_signal(rule, signal, int(d)) for d in depths])
    reads = np.array([reads_out(rule, signal, int(d)) for d in depths])
    return reads.cumsum() + ~reads, looks.cumsum()


def checks_signal(rule: Rule, signal: Signal | None, depth: int) -> bool:
    """Whether a signal is computed after pass `depth` (playing recorded depths is no check)."""
    return signal is not None and rule.checks_at(depth)


def reads_out(rule: Rule, signal: Signal | None, depth: int) -> bool:
    """Whether the decoder runs coda and head after pass `depth` for the sake of the rule."""
    if signal is None or not signal.readouts:
        return False
    return rule.checks_at(depth) or (signal.readouts > 1 and rule.checks_at(depth + 1))


def token_flops(
    depth: Int[np.ndarray, "tokens"], policy: Policy, cost: Cost, position: Int[np.ndarray, "tokens"]
) -> Float[np.ndarray, "tokens"]:
    """FLOPs of each token that left at `depth` under a bound policy, every readout and check included, with attention
    over the keys that it really has (its position and all before it)."""
    config, signal = cost.config, policy.reads
    check = signal.flops(config.d_model, config.vocab_size) if signal else 0
    rows = [(float(d), float(r), float(c * check)) for d, (r, c) in enumerate(zip(*spent(policy), strict=True), 1)]
    # The cost is linear in the number of keys: its value without any, and what each adds.
    none, one = (
        np.array([cost.flops(d, keys=keys, readouts=r, check_flops=c) for d, r, c in rows]) for keys in (0.0, 1.0)
    )
    return none[depth - 1] + (one - none)[depth - 1] * (position + 1)


def threshold_grid(found: Trace, signal: str, *, size: int, last: int, first: int) -> list[float]:
    """Thresholds that spread exits over depths `first`..`last`: quantiles of the recorded values, to three digits,
    with 0 (never leave early) and one value above all (leave at the first check). Increasing."""
    if first >= last:  # nothing to check before the last pass
        return [0.0]
    if signal == "argmax":
        return [0.0, 0.5]
    values = np.concatenate([found.at(signal, d)[:: max(1, found.num_tokens // 4096)] for d in range(first, last)])
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return [0.0]
    shares = np.linspace(0, 1, size - 1)
    grid = {float(f"{v:.3g}") for v in np.quantile(values, shares)}
    return sorted({0.0, *grid, float(f"{values.max() * 1.01:.3g}")})
