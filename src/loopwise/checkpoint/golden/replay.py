"""An attention context that caches as other projects do, to replay their stored decodes.

Every project keeps keys and values in *slots* (one per layer and loop, or fewer) and has its own rule for what a query
reads when a slot lacks some positions. Here a slot is a dict from position to (key, value); `slot(layer, depth)` says
where a layer writes and `recall(slot)` which (slot, position) pairs it then reads.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from loopwise.model.recurrent import RecurrentLM

Slot = Callable[[int, int], int]
Recall = Callable[[dict[int, dict[int, tuple[Tensor, Tensor]]], int], list[tuple[int, int]]]


def present(cache: dict[int, dict[int, tuple[Tensor, Tensor]]], slot: int) -> list[tuple[int, int]]:
    """Read the positions that this slot holds, and no others."""
    return [(slot, position) for position in cache[slot]]


def own_slots(model: RecurrentLM) -> Slot:
    """One slot for every layer of every loop: nothing is overwritten. The coda's lie below zero."""
    first, core = model.config.prelude_layers, model.config.core_layers

    def slot(layer: int, depth: int) -> int:
        if layer >= first + core:
            return first + core - 1 - layer
        return layer if layer < first else layer + (depth - 1) * core

    return slot


class Replay:
    """Dense cache for a batch whose rows are at the same positions. With `windowed_chunks`, windows hold only for
    chunks without a prefix (a quirk of one project's fallback)."""

    def __init__(self, slot: Slot, recall: Recall = present, *, windowed_chunks: bool = False) -> None:
        self.slot, self.recall, self.windowed_chunks = slot, recall, windowed_chunks
        self.cache: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}
        self.seen, self.depth = 0, 0
        self.windows: tuple[int, ...] = ()
        self.positions, self.turn = torch.zeros(0, dtype=torch.long), torch.zeros(0)

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "batch time heads width"],
        k: Float[Tensor, "batch time kv width"],
        v: Float[Tensor, "batch time kv width"],
    ) -> Float[Tensor, "batch time heads width"]:
        """Write these rows' keys and values to the layer's slot, read what the project would, attend causally."""
        slot, here = self.slot(layer, self.depth), self.positions[0].tolist()
        held = self.cache.setdefault(slot, {})
        held.update({position: (k[:, i], v[:, i]) for i, position in enumerate(here)})
        chosen = self.recall(self.cache, slot)
        pairs = [self.cache[where][position] for where, position in chosen]
        keys, values = (torch.stack(side, dim=2) for side in zip(*pairs, strict=True))
        where = torch.tensor([position for _, position in chosen])
        mask = where <= self.positions[0][:, None]
        if self.windows and self.windows[layer] and not (self.windowed_chunks and here[0]):
            mask &= where > self.positions[0][:, None] - self.windows[layer]
        grouped = q.shape[2] != keys.shape[1]
        out = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=grouped)
        return out.transpose(1, 2)

    def begin(self, model: RecurrentLM, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time d"]:
        """Prelude of the next tokens; returns what is injected."""
        self.positions = torch.arange(self.seen, self.seen + tokens.shape[1]).expand(tokens.shape)
        self.seen += tokens.shape[1]
        model.rotary.reserve(self.seen)
        return model.prelude(tokens, self)

    def loop(self, model: RecurrentLM, s: Tensor, e: Tensor, depth: int) -> Tensor:
        """One core pass."""
        self.depth = depth
        s = model.core(s, e, self)
        self.depth = 0
        return s

    def forget(self, count: int) -> None:
        """Drop the last `count` positions."""
        self.seen -= count
        self.cache = {slot: {p: kv for p, kv in held.items() if p < self.seen} for slot, held in self.cache.items()}


def run(
    model: RecurrentLM, ctx: Replay, tokens: Int[Tensor, "batch time"], depth: int, state: Tensor | None = None
) -> tuple[Float[Tensor, "batch time vocab"], Float[Tensor, "batch time d"]]:
    """The next tokens at uniform depth: logits and final state. `state` replaces the model's own initial state."""
    e = ctx.begin(model, tokens)
    s = model.init_state(e, ctx) if state is None else state.expand_as(e)
    for i in range(1, depth + 1):
        s = ctx.loop(model, s, e, i)
    return model.coda(s, ctx), s


def pieces(model: RecurrentLM, ctx: Replay, tokens: Tensor, sizes: list[int], depth: int) -> Float[Tensor, "b t vocab"]:
    """Cached run over consecutive pieces; logits of all but the first piece."""
    logits = [run(model, ctx, piece, depth)[0] for piece in tokens.split(sizes, dim=1)]
    return torch.cat(logits[1:], dim=1)


def greedy(step: Callable[[Tensor], Tensor], prompt: Int[Tensor, "batch time"], count: int) -> tuple[Tensor, Tensor]:
    """`count` greedy tokens `[batch, count]` and their logits; `step(tokens)` gives the logits of the last row."""
    tokens, made, seen = prompt, [], []
    for _ in range(count):
        seen.append(step(tokens))
        tokens = seen[-1].argmax(-1, keepdim=True)
        made.append(tokens)
    return torch.cat(made, dim=1), torch.stack(seen, dim=1)
