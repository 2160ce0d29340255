"""Signals that read the state through tensors fitted for one checkpoint (`Probe`).

`fisher`, `fisher_raw` and `sketch` *read*: they estimate the change of the output without computing it.
KL(p_i ‖ p_{i-1}) is to second order ½ Δᵀ F Δ, with F the Fisher information of the readout with respect to the state.
Averaged over tokens and cut to its `RANK` leading directions, F = PᵀP costs one thin product. Nothing is learned but
how the model's own readout reacts to its state. `distil` *learns*, yet only to read: it regresses the log of that KL.
`probe` (A2) learns to decide.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from loopwise.exit.look import TINY, Look, Probe


def unit_rms(state: Float[Tensor, "rows d"]) -> Float[Tensor, "rows d"]:
    """The state with root mean square 1: coda and head see it through RMSNorm."""
    state = state.float()
    return state * state.square().mean(-1, keepdim=True).clamp_min(TINY).rsqrt()


def quadratic(look: Look, factor: Tensor | None) -> Float[Tensor, "rows"]:
    """½ ‖P (ŝ_i - ŝ_{i-1})‖², an estimate of KL in nats; ŝ is the state with unit root mean square."""
    assert factor is not None
    return 0.5 * ((unit_rms(look.state) - unit_rms(look.prev)) @ factor.T).square().sum(-1)


def distil_terms(look: Look, factor: Tensor) -> tuple[Float[Tensor, "rows d"], Float[Tensor, "rows 3"]]:
    """What the regression of log KL sees: the normalised state, and the logs of the Fisher estimate, of the squared
    change of the normalised state and of the first differences' product with the state (how the norm moved)."""
    now, prev = unit_rms(look.state), unit_rms(look.prev)
    change = now - prev
    logs = [
        (0.5 * (change @ factor.T).square().sum(-1)).clamp_min(TINY).log(),
        change.square().mean(-1).clamp_min(TINY).log(),
        (look.state.float().norm(dim=-1) / look.prev.float().norm(dim=-1).clamp_min(TINY)).clamp(TINY, 1e3).log(),
    ]
    return now, torch.stack(logs, dim=-1)


def distil(look: Look, depth: Tensor | int, probe: Probe | None) -> Float[Tensor, "rows"]:
    """KL in nats as the regression estimates it, exp(w·ŝ + terms·logs + bias), with terms and bias per depth."""
    assert probe is not None and probe.fisher is not None
    assert probe.distil_state is not None and probe.distil_terms is not None
    now, logs = distil_terms(look, probe.fisher)
    last = len(probe.distil_terms) - 1
    row = min(depth - 1, last) if isinstance(depth, int) else (depth - 1).clamp(max=last)
    terms = probe.distil_terms[row]
    return (now @ probe.distil_state + (terms[..., :-1] * logs).sum(-1) + terms[..., -1]).clamp(-30, 10).exp()


def probe_value(look: Look, depth: Tensor | int, probe: Probe | None) -> Float[Tensor, "rows"]:
    """Probability that the argmax will still change, from the A2 probe."""
    assert probe is not None and probe.weight is not None and probe.bias is not None
    assert probe.mean is not None and probe.scale is not None
    last = probe.weight.shape[0] - 1
    features = (look.state.float() - probe.mean) / probe.scale
    if isinstance(depth, int):
        row = min(depth - 1, last)
        return torch.sigmoid(features @ probe.weight[row] + probe.bias[row])
    rows = (depth - 1).clamp(max=last)
    return torch.sigmoid((features * probe.weight[rows]).sum(-1) + probe.bias[rows])
