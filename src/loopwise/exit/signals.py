"""Exit signals: pure functions of consecutive states and readouts that give one scalar per row; small means settled.

A signal never decides: a rule (`exit/rules.py`) compares its value with a threshold. Every signal declares what it
needs and what it costs, and that cost is part of every number reported for a policy that uses it.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Cost = Literal["free", "probe", "readout"]
TINY = 1e-12


class Look(NamedTuple):
    """What a signal may look at after pass i, one row each; `None` where the signal's needs do not ask for it.

    `state` s_i, `prev` s_{i-1}, `prev2` s_{i-2} (for depth 1: prev is the initial state and prev2 repeats it),
    `log_probs` and `prev_log_probs` fp32 log-softmax of the readouts at i and i-1, `hidden` the head's input at i.
    """

    state: Float[Tensor, "rows d"]
    prev: Float[Tensor, "rows d"]
    prev2: Float[Tensor, "rows d"] | None = None
    log_probs: Float[Tensor, "rows vocab"] | None = None
    prev_log_probs: Float[Tensor, "rows vocab"] | None = None


class Probe(NamedTuple):
    """Linear probe (A2): probability that the argmax will still change, sigmoid(w·features + b), per depth or pooled.

    `weight` is `[depths, d]`, `bias` `[depths]`, `mean` and `scale` `[d]` standardise the state. Row j serves depth
    j + 1; the last row serves every deeper pass, so a pooled probe has one row.
    """

    weight: Float[Tensor, "depths d"]
    bias: Float[Tensor, "depths"]
    mean: Float[Tensor, "d"]
    scale: Float[Tensor, "d"]


class Signal(NamedTuple):
    """A named signal.

    `value(look, depth, probe)` gives one fp32 scalar per row. `cost` is `free` (a few vector operations), `probe` (one
    small product) or `readout` (coda and head at every checked pass). `readouts` is how many consecutive readouts it
    compares (0, 1 or 2), `states` how many states before the current one it needs (0, 1 or 2), and `first_depth` the
    first depth at which the value is defined. `flops(d_model, vocab)` is the arithmetic of one check without readout.
    """

    name: str
    value: Callable[[Look, Tensor | int, Probe | None], Tensor]
    cost: Cost
    states: int
    readouts: int
    first_depth: int
    flops: Callable[[int, int], int]


def kl(p: Float[Tensor, "rows vocab"], q: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows"]:
    """KL(p ‖ q) in nats from log-probabilities."""
    return (p.exp() * (p - q)).sum(-1).clamp_min(0)


def rel_change(now: Float[Tensor, "rows d"], before: Float[Tensor, "rows d"]) -> Float[Tensor, "rows"]:
    """‖s_i - s_{i-1}‖ / ‖s_i‖."""
    now, before = now.float(), before.float()
    return (now - before).norm(dim=-1) / now.norm(dim=-1).clamp_min(TINY)


def cosine(now: Float[Tensor, "rows d"], before: Float[Tensor, "rows d"]) -> Float[Tensor, "rows"]:
    """1 - cos(s_i, s_{i-1}), computed from normalised states so that small angles keep their precision."""
    a = torch.nn.functional.normalize(now.float(), dim=-1)
    b = torch.nn.functional.normalize(before.float(), dim=-1)
    return 0.5 * (a - b).square().sum(-1)


def accel(look: Look) -> Float[Tensor, "rows"]:
    """‖s_i - 2 s_{i-1} + s_{i-2}‖ / ‖s_i‖: the change of the change (arXiv 2509.23314)."""
    assert look.prev2 is not None
    now = look.state.float()
    second = now - 2 * look.prev.float() + look.prev2.float()
    return second.norm(dim=-1) / now.norm(dim=-1).clamp_min(TINY)


def entropy(log_probs: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows"]:
    """Entropy of the readout in nats."""
    return -(log_probs.exp() * log_probs).sum(-1)


def margin(log_probs: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows"]:
    """1 - (p_top1 - p_top2), so that small means decided."""
    top = log_probs.topk(2, dim=-1).values.exp()
    return 1 - (top[:, 0] - top[:, 1])


def probe_value(look: Look, depth: Tensor | int, probe: Probe | None) -> Float[Tensor, "rows"]:
    """Probability that the argmax will still change, from the A2 probe."""
    assert probe is not None
    last = probe.weight.shape[0] - 1
    features = (look.state.float() - probe.mean) / probe.scale
    if isinstance(depth, int):
        row = min(depth - 1, last)
        return torch.sigmoid(features @ probe.weight[row] + probe.bias[row])
    rows = (depth - 1).clamp(max=last)
    return torch.sigmoid((features * probe.weight[rows]).sum(-1) + probe.bias[rows])


def _both(look: Look) -> tuple[Tensor, Tensor]:
    assert look.log_probs is not None and look.prev_log_probs is not None
    return look.log_probs, look.prev_log_probs


def _one(look: Look) -> Tensor:
    assert look.log_probs is not None
    return look.log_probs


def _argmax_changed(look: Look) -> Float[Tensor, "rows"]:
    now, before = _both(look)
    return (now.argmax(-1) != before.argmax(-1)).float()


SIGNALS: dict[str, Signal] = {
    s.name: s
    for s in (
        Signal("kl", lambda x, i, p: kl(*_both(x)), "readout", 0, 2, 2, lambda d, v: 4 * v),
        Signal("kl_prev", lambda x, i, p: kl(*_both(x)[::-1]), "readout", 0, 2, 2, lambda d, v: 4 * v),
        Signal("argmax", lambda x, i, p: _argmax_changed(x), "readout", 0, 2, 2, lambda d, v: v),
        Signal("entropy", lambda x, i, p: entropy(_one(x)), "readout", 0, 1, 1, lambda d, v: 3 * v),
        Signal("margin", lambda x, i, p: margin(_one(x)), "readout", 0, 1, 1, lambda d, v: 3 * v),
        Signal("rel_change", lambda x, i, p: rel_change(x.state, x.prev), "free", 1, 0, 2, lambda d, v: 5 * d),
        Signal("cosine", lambda x, i, p: cosine(x.state, x.prev), "free", 1, 0, 2, lambda d, v: 9 * d),
        Signal("accel", lambda x, i, p: accel(x), "free", 2, 0, 3, lambda d, v: 8 * d),
        Signal("probe", probe_value, "probe", 0, 0, 1, lambda d, v: 4 * d),
    )
}
