"""KV memory: blocks of `block_size` positions, for every layer and plane, and the copying that keeps reads simple.

Deeper queries read plane min(i, d) of a position that left at depth d (`model/kv_layout.py`). Instead of looking d up
at every read, a position that leaves is *settled*: what it left is copied to the planes above, up to the deepest one
that anybody may ask for. A query at depth i then reads plane `write(i)` of every position alike. Copying costs about
1% of reading at the study's depths; it lets attention read whole blocks.

Two storage forms. `columns` (CPU, fp32): keys of a block are transposed, `[kv, width, block_size]`, values are
`[kv, block_size, width]`, and block_size = width, so that both products of attention are weighted sums of rows of one
table (see `paged.py`). Otherwise both are `[block_size, kv, width]`, as paged kernels want them. Blocks of plane p
start at p * blocks.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopwise.model.kv_layout import KVLayout
from loopwise.model.recurrent import RecurrentLM


class KVPool:
    """Keys and values of all layers; `blocks` blocks per plane, and one that belongs to nobody."""

    def __init__(
        self, model: RecurrentLM, layout: KVLayout, *, max_depth: int, blocks: int, block_size: int, columns: bool
    ) -> None:
        c, weight = model.config, model.embedding.weight
        self.layout, self.max_depth, self.size = layout, max_depth, block_size
        self.nowhere, self.blocks = blocks, blocks + 1
        self.columns, self.width = columns, c.width
        self.core = range(c.prelude_layers, c.prelude_layers + c.core_layers)
        planes = [layout.num_planes(max_depth) if i in self.core else 1 for i in range(c.num_layers)]
        assert not columns or block_size == c.width
        kv, size, width = c.kv_heads, block_size, c.width
        forms = ((kv, width, size), (kv, size, width)) if columns else ((size, kv, width),) * 2
        self.keys, self.values = ([_zeros((n * self.blocks, *form), weight) for n in planes] for form in forms)
        shallowest = {
            int(layout.write(i)): i for i in range(max_depth, 0, -1)
        }  # the first depth that writes each plane
        self.planes = torch.tensor(sorted(shallowest), device=weight.device)[:, None]
        self.writers = torch.tensor([shallowest[p] for p in sorted(shallowest)], device=weight.device)[:, None]

    @property
    def num_bytes(self) -> int:
        """Size of the pool."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def plane(self, depth: Int[Tensor, "rows"]) -> Int[Tensor, "rows"]:
        """Block offset of the plane that rows at `depth` write and, positions being settled, read."""
        return self.layout.write(depth) * self.blocks

    def write(
        self,
        layer: int,
        block: Int[Tensor, "rows"],
        place: Int[Tensor, "rows"],
        k: Float[Tensor, "rows kv width"],
        v: Float[Tensor, "rows kv width"],
    ) -> None:
        """Put keys and values at position `place` of `block` (plane offset included)."""
        if self.columns:
            self.keys[layer][block, :, :, place] = k
            self.values[layer][block, :, place] = v
        else:
            self.keys[layer][block, place] = k
            self.values[layer][block, place] = v

    def read(
        self, layer: int, blocks: Int[Tensor, "blocks"]
    ) -> tuple[Float[Tensor, "kv length width"], Float[Tensor, "kv length width"]]:
        """Keys and values of one sequence, copied out of its blocks."""
        k, v = self.keys[layer].index_select(0, blocks), self.values[layer].index_select(0, blocks)
        if not self.columns:
            return k.flatten(0, 1).transpose(0, 1), v.flatten(0, 1).transpose(0, 1)
        return k.permute(1, 0, 3, 2).flatten(1, 2), v.transpose(0, 1).flatten(1, 2)

    def settle(
        self,
        block: Int[Tensor, "rows"],
        place: Int[Tensor, "rows"],
        depth: Int[Tensor, "rows"],
        deepest: Int[Tensor, "rows"],
    ) -> None:
        """Rows left at `depth`: copy what they left to the planes above, as far as queries up to `deepest` look."""
        if len(self.planes) == 1:
            return
        source = self.layout.read(self.writers, depth)
        wanted = (depth < self.writers) & (deepest >= self.writers) & (source != self.planes)
        if block.is_cuda:  # counting what is wanted would wait for the device: copy all, some of it nowhere
            target = torch.where(wanted, block, self.nowhere) + self.planes * self.blocks
            source, target = (block + source * self.blocks).flatten(), target.flatten()
            place = place.repeat(len(self.planes))
        else:
            plane, row = wanted.nonzero().unbind(1)
            if not len(row):
                return
            block, place = block.index_select(0, row), place.index_select(0, row)
            target = block + plane * self.blocks
            source = block + source[plane, row] * self.blocks
        for layer in self.core:
            keys, values = self.keys[layer], self.values[layer]
            if self.columns:
                keys[target, :, :, place] = keys[source, :, :, place]
                values[target, :, place] = values[source, :, place]
            else:
                keys[target, place], values[target, place] = keys[source, place], values[source, place]


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros; on CPU memory that costs nothing until it is written."""
    if like.device.type == "cpu" and like.dtype == torch.float32:
        return torch.from_numpy(np.zeros(shape, dtype=np.float32))
    return torch.zeros(shape, dtype=like.dtype, device=like.device)
