"""Training objective: next-token cross-entropy, with an optional z-loss."""

from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


class Loss(NamedTuple):
    """`total` is differentiated; `nats` is the cross-entropy alone, detached."""

    total: Float[Tensor, ""]
    nats: Float[Tensor, ""]


def objective(
    logits: Float[Tensor, "batch time vocab"],
    targets: Int[Tensor, "batch time"],
    z_loss: float = 0.0,
    weights: Float[Tensor, "batch time"] | None = None,
) -> Loss:
    """Mean cross-entropy in nats (weighted, if `weights` are given) plus z_loss * mean(logsumexp^2) (Chowdhery et al.,
    2022, PaLM)."""
    if weights is None:
        nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    else:
        each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        nats = (each * weights.flatten()).sum() / weights.sum()
    total = nats + z_loss * logits.logsumexp(-1).square().mean() if z_loss else nats
    return Loss(total, nats.detach())
