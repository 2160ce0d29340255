"""Attention over paged KV: one query per row (`PagedRows`, decoding) or pieces of prompts (`PagedPieces`).

Decoding on CPU copies no KV. With keys stored transposed, the scores of one block are a weighted sum of the `width`
rows of that block (weights: the query), and the output is a weighted sum of the value rows (weights: the softmax). A
weighted sum of table rows is what `embedding_bag` computes, at memory speed and over ragged lists; and because blocks
are square, keys and values share one list of rows. Measured on one Zen 5 core, 32 rows, 12 heads, about 290 positions:
2 ms, against 14 ms for torch's SDPA on contiguous padded memory and 30 ms with a gather before it.

On CUDA in half precision the blocks go to torch's own varlen attention as they are, with the block table; one split per
row, so that a row's sum does not depend on its batch mates. Everything else (fp32 on CUDA, bf16 on CPU) gathers.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from loopwise.engine.pool import KVPool

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # an older torch
    varlen_attn = None


class _Bags(NamedTuple):
    """Which table rows to sum: `rows` (int32) for blocks in use, in order (row, head, block), `width` at a time."""

    rows: Tensor
    key_offsets: Tensor
    value_offsets: Tensor
    used: Tensor  # flat (row, head, block) number of each block in use
    head: Tensor  # flat (row, head) number of each block in use


class PagedRows:
    """One query per row, each of another sequence, at any depth."""

    def __init__(self, pool: KVPool, heads: int, kv_heads: int) -> None:
        self.pool, self.heads, self.group = pool, heads, heads // kv_heads
        device = pool.keys[0].device
        half = pool.keys[0].dtype in (torch.bfloat16, torch.float16)
        self.varlen = varlen_attn is not None and half and device.type == "cuda"
        self.kv_of = torch.arange(heads, device=device) // self.group
        self.lane = torch.arange(pool.width, dtype=torch.int32, device=device)
        self.scale = pool.width**-0.5
        self.depth, self.windows = 0, ()
        self.positions = self.turn = torch.zeros(0)
        self.kv_heads = kv_heads

    def at(
        self,
        positions: Int[Tensor, "rows"],
        table: Int[Tensor, "rows blocks"],
        plane: Int[Tensor, "rows"] | None,
        turn: Float[Tensor, "two rows columns"] | None,
        count: int | None = None,
    ) -> "PagedRows":
        """Point at the rows of the next launch; `plane` is their block offset in the core, None outside it. `count` is
        how many blocks the longest row uses, or more; None asks the device, which waits for it."""
        size = self.pool.size
        self.positions, self.depth = positions, 0
        if turn is not None:
            self.turn = turn
        last = positions // size
        count = int(last.max()) + 1 if count is None else count
        blocks = table[:, :count] if plane is None else table[:, :count] + plane[:, None]
        self.block, self.place = blocks.gather(1, last[:, None])[:, 0], positions % size
        self.biases: dict[int, Tensor] = {}
        self.count = count
        if self.pool.columns:
            self.bags = self._bags(blocks, last, count)
        else:
            self.blocks = blocks
        return self

    def _bags(self, blocks: Tensor, last: Tensor, count: int) -> _Bags:
        rows, heads, width = len(last), self.heads, self.pool.width
        in_use = (torch.arange(count, device=last.device) <= last[:, None])[:, None].expand(rows, heads, count)
        first = (blocks[:, None] * self.kv_heads + self.kv_of[:, None]) * width
        used = in_use.reshape(-1).nonzero()[:, 0]
        table_rows = first.reshape(-1).index_select(0, used).int()[:, None] + self.lane
        ends = (in_use.reshape(-1).int() * width).cumsum(0, dtype=torch.int32)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        return _Bags(table_rows.reshape(-1), starts, starts.view(-1, count)[:, 0].contiguous(), used, used // count)

    def _bias(self, layer: int) -> Float[Tensor, "rows 1 length"]:
        """0 where a row may look, -inf elsewhere."""
        window = self.windows[layer] if self.windows else 0
        if window not in self.biases:
            here = torch.arange(self.count * self.pool.size, device=self.positions.device)
            hidden = here > self.positions[:, None]
            if window:
                hidden |= here <= self.positions[:, None] - window
            self.biases[window] = torch.zeros_like(hidden, dtype=torch.float32).masked_fill_(hidden, -torch.inf)[
                :, None
            ]
        return self.biases[window]

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "rows heads width"],
        k: Float[Tensor, "rows kv width"],
        v: Float[Tensor, "rows kv width"],
    ) -> Float[Tensor, "rows heads width"]:
        """Write k and v of these rows, then attend over all positions of each row's sequence."""
        self.pool.write(layer, self.block, self.place, k, v)
        if self.pool.columns:
            return self._bag(layer, q)
        return self._varlen(layer, q) if self.varlen else self._gathered(layer, q)

    def _bag(self, layer: int, q: Tensor) -> Tensor:
        rows, heads, width = q.shape
        bags, size = self.bags, self.pool.size
        weights = (q * self.scale).reshape(rows * heads, width).index_select(0, bags.head).view(-1)
        scores = _sum(self.pool.keys[layer].view(-1, size), bags.rows, bags.key_offsets, weights)
        shares = scores.view(rows, heads, -1).add_(self._bias(layer)).softmax(-1)
        weights = shares.view(-1, size).index_select(0, bags.used).view(-1)
        return _sum(self.pool.values[layer].view(-1, width), bags.rows, bags.value_offsets, weights).view_as(q)

    def _varlen(self, layer: int, q: Tensor) -> Tensor:
        assert varlen_attn is not None
        rows, window = q.shape[0], self.windows[layer] if self.windows else 0
        starts = torch.arange(rows + 1, dtype=torch.int32, device=q.device)
        out = varlen_attn(
            q, self.pool.keys[layer], self.pool.values[layer], starts, None, 1, self.count * self.pool.size,
            window_size=(window - 1 if window else -1, 0), enable_gqa=self.group > 1, num_splits=1,
            seqused_k=(self.positions + 1).int(), block_table=self.blocks.int(),
        )  # fmt: skip
        assert isinstance(out, Tensor)
        return out

    def _gathered(self, layer: int, q: Tensor) -> Tensor:
        rows, flat = q.shape[0], self.blocks.reshape(-1)
        k, v = self.pool.keys[layer].index_select(0, flat), self.pool.values[layer].index_select(0, flat)
        k, v = (t.view(rows, -1, self.kv_heads, q.shape[2]).transpose(1, 2) for t in (k, v))
        bias = self._bias(layer)[:, :, None].to(q.dtype)
        out = F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=bias, enable_gqa=self.group > 1)
        return out[:, :, 0]


def _sum(table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of table rows, one per bag; empty bags give zeros."""
    return torch.embedding_bag(table, rows, offsets, False, 0, False, weights)[0]


class Span(NamedTuple):
    """Rows of one sequence in a prompt launch: how many are live, and the sequence's blocks."""

    rows: int
    blocks: Tensor


class PagedPieces:
    """Pieces of several prompts, one after the other; rows of a piece see their own sequence up to themselves."""

    def __init__(self, pool: KVPool, heads: int, kv_heads: int) -> None:
        self.pool, self.grouped = pool, heads != kv_heads
        self.depth, self.windows = 0, ()
        self.positions = self.turn = torch.zeros(0)
        self.spans: list[Span] = []
        self.offset = 0

    def at(
        self,
        positions: Int[Tensor, "rows"],
        blocks: Int[Tensor, "rows"],
        spans: list[Span],
        depth: int,
        turn: Float[Tensor, "two rows columns"] | None,
    ) -> "PagedPieces":
        """Point at the rows of the next call: positions, the block of each (without plane), and how many per piece."""
        pool = self.pool
        self.positions, self.spans, self.depth = positions, [s for s in spans if s.rows], depth
        if turn is not None:
            self.turn = turn
        self.offset = int(pool.layout.write(depth)) * pool.blocks if depth else 0
        self.block, self.place = blocks + self.offset, positions % pool.size
        self.masks: dict[tuple[int, int], Tensor] = {}
        return self

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "rows heads width"],
        k: Float[Tensor, "rows kv width"],
        v: Float[Tensor, "rows kv width"],
    ) -> Float[Tensor, "rows heads width"]:
        """Write k and v of these rows, then attend piece by piece."""
        self.pool.write(layer, self.block, self.place, k, v)
        out = torch.empty_like(q)
        start = 0
        for number, span in enumerate(self.spans):
            here = slice(start, start + span.rows)
            keys, values = self.pool.read(layer, span.blocks + self.offset)
            mask = self._mask(number, layer, here, keys.shape[1])
            out[here] = F.scaled_dot_product_attention(
                q[here].transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, enable_gqa=self.grouped
            )[0].transpose(0, 1)
            start += span.rows
        return out

    def _mask(self, number: int, layer: int, rows: slice, length: int) -> Tensor:
        window = self.windows[layer] if self.windows else 0
        if (number, window) not in self.masks:
            here, at = torch.arange(length, device=self.positions.device), self.positions[rows, None]
            seen = here <= at
            self.masks[number, window] = (seen & (here > at - window) if window else seen)[None, None]
        return self.masks[number, window]
