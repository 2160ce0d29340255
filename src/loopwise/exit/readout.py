"""Signals of the output distribution: they cost a coda and a head at every checked pass."""

from jaxtyping import Float
from torch import Tensor

from loopwise.exit.look import TINY, Look


def kl(p: Float[Tensor, "rows vocab"], q: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows"]:
    """KL(p ‖ q) in nats from log-probabilities."""
    return (p.exp() * (p - q)).sum(-1).clamp_min(0)


def entropy(log_probs: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows"]:
    """Entropy of the readout in nats."""
    return -(log_probs.exp() * log_probs).sum(-1)


def margin(log_probs: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows"]:
    """1 - (p_top1 - p_top2), so that small means decided."""
    top = log_probs.topk(2, dim=-1).values.exp()
    return 1 - (top[:, 0] - top[:, 1])


def both(look: Look) -> tuple[Tensor, Tensor]:
    """Readouts of this pass and of the one before."""
    assert look.log_probs is not None and look.prev_log_probs is not None
    return look.log_probs, look.prev_log_probs


def one(look: Look) -> Tensor:
    """The readout of this pass."""
    assert look.log_probs is not None
    return look.log_probs


def argmax_changed(look: Look) -> Float[Tensor, "rows"]:
    """1 where the first choice differs from the pass before."""
    now, before = both(look)
    return (now.argmax(-1) != before.argmax(-1)).float()


def certificate(look: Look) -> Float[Tensor, "rows"]:
    """The margin certificate: last change of any gap between the first choice and a rival, over the decision margin.

    If later changes shrink by a factor ρ per pass, they add up to at most ρ / (1 - ρ) of the last one: below the
    threshold (1 - ρ) / ρ no rival can overtake. Log-probabilities stand for logits, which differ by a constant.
    """
    now, before = both(look)
    top = now.topk(2, dim=-1)
    first = top.indices[:, :1]
    moved = (now - before) - (now - before).gather(1, first)
    return moved.abs().amax(-1) / (top.values[:, 0] - top.values[:, 1]).clamp_min(TINY)
