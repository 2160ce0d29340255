"""Attention contexts: the only way attention reaches keys and values of other positions.

A context carries `positions` (integer, one per row), `turn` (what goes with each row to every layer: rotary cos/sin and
possibly its token, set by the model; its second axis is the row), `depth` (the 1-based core pass under way, 0 outside
the core) and `windows` (set by models that have some: how many recent positions each layer sees). `attend` gets the
queries, keys and values of one layer for the rows of this call and returns the attention output. The paged context of
the engine lives with the engine.
"""

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class Context(Protocol):
    """What the model needs from a backend."""

    positions: Tensor
    turn: Tensor
    depth: int
    windows: tuple[int, ...]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q over the keys this context makes visible (k, v of this call included).

        Shapes: q `[*rows, heads, width]`, k and v `[*rows, kv_heads, width]`; returns the shape of q.
        """
        ...


class DenseCausal:
    """Whole sequences at once, no cache: row t sees rows 0..t of the same batch element at the same depth.

    `valid` marks real tokens in padded batches (left or right); positions then count real tokens only, and padding
    is never attended to, so each sequence gives what it would give alone.
    """

    def __init__(self, positions: Int[Tensor, "batch time"], valid: Bool[Tensor, "batch time"] | None = None) -> None:
        self.positions, self.depth = positions, 0
        self.turn = positions.new_empty(0, dtype=torch.float32)
        self.windows: tuple[int, ...] = ()
        self.mask = None if valid is None else _mask(valid)

    @classmethod
    def over(cls, tokens: Int[Tensor, "batch time"], valid: Bool[Tensor, "batch time"] | None = None) -> "DenseCausal":
        """Context for `tokens`, with positions 0, 1, ... over the real tokens."""
        if valid is None:
            return cls(torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape))
        return cls((valid.long().cumsum(1) - 1).clamp(min=0), valid)

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "batch time heads width"],
        k: Float[Tensor, "batch time kv width"],
        v: Float[Tensor, "batch time kv width"],
    ) -> Float[Tensor, "batch time heads width"]:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        grouped = q.shape[1] != k.shape[1]
        if q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.is_grad_enabled():
            # The backward of bf16 attention on CPU is three times slower than that of fp32 (torch 2.13, measured).
            q, k, v = q.float(), k.float(), v.float()
        window = self.windows[layer] if self.windows else 0
        mask = self._near(window) if 0 < window < q.shape[2] else self.mask
        with torch.autocast(q.device.type, enabled=False):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
        return out.transpose(1, 2)

    def _near(self, window: int) -> Bool[Tensor, "batch 1 time time"]:
        """The causal mask cut to the last `window` positions."""
        causal = _mask(torch.ones_like(self.positions, dtype=torch.bool)) if self.mask is None else self.mask
        distance = self.positions[:, None, :, None] - self.positions[:, None, None, :]
        return causal & (distance < window)


def _mask(valid: Bool[Tensor, "batch time"]) -> Bool[Tensor, "batch 1 time time"]:
    """Causal mask over real keys; a padding row sees itself so that softmax stays finite."""
    time = valid.shape[1]
    causal = torch.ones(time, time, dtype=torch.bool, device=valid.device).tril()
    eye = torch.eye(time, dtype=torch.bool, device=valid.device)
    return (causal & valid[:, None, :] | eye)[:, None]
