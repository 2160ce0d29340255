"""Signals of the state alone, free of fitted tensors: first order, second order, extrapolation."""

import torch
from jaxtyping import Float
from torch import Tensor

from loopwise.exit.look import TINY, Look

SLOWEST = 0.98  # contraction factors are clamped below this, so that a growing change stays a finite large value


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


def extrap(look: Look) -> Float[Tensor, "rows"]:
    """Remaining displacement relative to the state, if every later change shrinks as the last one did:
    (‖d_i‖ / ‖s_i‖) ρ / (1 - ρ) with d_i = s_i - s_{i-1} and ρ = ‖d_i‖ / ‖d_{i-1}‖, at most `SLOWEST`."""
    assert look.prev2 is not None
    now, prev = look.state.float(), look.prev.float()
    last, before = (now - prev).norm(dim=-1), (prev - look.prev2.float()).norm(dim=-1)
    rate = (last / before.clamp_min(TINY)).clamp_max(SLOWEST)
    return last * rate / (1 - rate) / now.norm(dim=-1).clamp_min(TINY)
