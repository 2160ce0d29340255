"""Exit signals: pure functions of consecutive states and readouts that give one scalar per row; small means settled.

A signal never decides: a rule (`exit/rules.py`) compares its value with a threshold. Every signal declares what it
needs and what it costs, and that cost is part of every number reported for a policy that uses it.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from torch import Tensor

from loopwise.config import InputError
from loopwise.exit.fitted import distil, probe_value, quadratic
from loopwise.exit.latent import accel, cosine, extrap, rel_change
from loopwise.exit.look import A2, RANK, TINY, Look, Probe
from loopwise.exit.readout import argmax_changed, both, certificate, entropy, kl, margin, one

__all__ = ["SIGNALS", "TINY", "Look", "Probe", "Signal", "kl", "require", "supported"]

Cost = Literal["free", "probe", "readout"]


class Signal(NamedTuple):
    """A named signal.

    `value(look, depth, probe)` gives one fp32 scalar per row. `cost` is `free` (a few vector operations), `probe` (one
    small product) or `readout` (coda and head at every checked pass). `readouts` is how many consecutive readouts it
    compares (0, 1 or 2), `states` how many states before the current one it needs (0, 1 or 2), and `first_depth` the
    first depth at which the value is defined. `flops(d_model, vocab)` is the arithmetic of one check without readout.
    `tensors` names the fields of `Probe` that it needs.
    """

    name: str
    value: Callable[[Look, Tensor | int, Probe | None], Tensor]
    cost: Cost
    states: int
    readouts: int
    first_depth: int
    flops: Callable[[int, int], int]
    tensors: tuple[str, ...] = ()


def _factor(name: str) -> Callable[[Look, Tensor | int, Probe | None], Tensor]:
    """`quadratic` with the named factor."""
    return lambda look, depth, probe: quadratic(look, getattr(probe, name))


_DISTIL = ("fisher", "distil_state", "distil_terms")

SIGNALS: dict[str, Signal] = {
    s.name: s
    for s in (
        Signal("kl", lambda x, i, p: kl(*both(x)), "readout", 0, 2, 2, lambda d, v: 4 * v),
        Signal("kl_prev", lambda x, i, p: kl(*both(x)[::-1]), "readout", 0, 2, 2, lambda d, v: 4 * v),
        Signal("argmax", lambda x, i, p: argmax_changed(x), "readout", 0, 2, 2, lambda d, v: v),
        Signal("certificate", lambda x, i, p: certificate(x), "readout", 0, 2, 2, lambda d, v: 5 * v),
        Signal("entropy", lambda x, i, p: entropy(one(x)), "readout", 0, 1, 1, lambda d, v: 3 * v),
        Signal("margin", lambda x, i, p: margin(one(x)), "readout", 0, 1, 1, lambda d, v: 3 * v),
        Signal("rel_change", lambda x, i, p: rel_change(x.state, x.prev), "free", 1, 0, 2, lambda d, v: 5 * d),
        Signal("cosine", lambda x, i, p: cosine(x.state, x.prev), "free", 1, 0, 2, lambda d, v: 9 * d),
        Signal("accel", lambda x, i, p: accel(x), "free", 2, 0, 3, lambda d, v: 8 * d),
        Signal("extrap", lambda x, i, p: extrap(x), "free", 2, 0, 3, lambda d, v: 8 * d),
        Signal("fisher", _factor("fisher"), "probe", 1, 0, 2, lambda d, v: (2 * RANK + 9) * d, ("fisher",)),
        Signal("fisher_raw", _factor("fisher_raw"), "probe", 1, 0, 2, lambda d, v: (2 * RANK + 9) * d, ("fisher_raw",)),
        Signal("sketch", _factor("sketch"), "probe", 1, 0, 2, lambda d, v: (2 * RANK + 9) * d, ("sketch",)),
        Signal("distil", distil, "probe", 1, 0, 2, lambda d, v: (2 * RANK + 17) * d, _DISTIL),
        Signal("probe", probe_value, "probe", 0, 0, 1, lambda d, v: 4 * d, A2),
    )
}


def supported(name: str, probe: Probe | None) -> bool:
    """Whether a signal can be computed with these fitted tensors (those that need none always can)."""
    needs = SIGNALS[name].tensors
    return not needs or (probe is not None and not probe.lacks(needs))


def require(policy: object, signal: Signal | None, probe: Probe | None) -> None:
    """Refuse a policy whose signal needs tensors that the checkpoint lacks; raises `InputError` naming them."""
    if signal is None or supported(signal.name, probe):
        return
    lacking = list(signal.tensors) if probe is None else probe.lacks(signal.tensors)
    what = "has no probe.safetensors" if probe is None else f"has a probe.safetensors without '{lacking[0]}'"
    remedy = "choose another signal, or loopwise calibrate --fit-text"
    raise InputError(f"policy '{policy}': this checkpoint {what}: {remedy}")
