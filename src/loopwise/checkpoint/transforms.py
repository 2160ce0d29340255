"""Named, lossless changes between a foreign layout and ours. Every one moves values and never computes new ones, so
joining and splitting again gives back every bit."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from loopwise.config import ModelConfig


class Transform(NamedTuple):
    """`join(parts, config)` makes our tensor; `split(tensor, rows, config)` makes the parts again, where `rows` are the
    parts' sizes along their first axis."""

    join: Callable[[Sequence[Tensor], ModelConfig], Tensor]
    split: Callable[[Tensor, Sequence[int], ModelConfig], Sequence[Tensor]]


def _swap_columns(x: Tensor) -> Tensor:
    """[a | b] to [b | a]."""
    return torch.cat(x.chunk(2, dim=1)[::-1], dim=1)


def _flip(x: Tensor, config: ModelConfig) -> Tensor:
    """Exchange the two halves of every head's rows: turns a rotation by -angle into one by +angle."""
    heads = x.unflatten(0, (-1, 2, config.width // 2))
    return heads.flip(1).flatten(0, 2)


def _join_flipped(parts: Sequence[Tensor], config: ModelConfig) -> Tensor:
    q, k, v = parts
    return torch.cat([_flip(q, config), _flip(k, config), v])


def _split_flipped(x: Tensor, rows: Sequence[int], config: ModelConfig) -> Sequence[Tensor]:
    q, k, v = x.split(list(rows))
    return _flip(q, config), _flip(k, config), v


def _join_qk_bias(parts: Sequence[Tensor], config: ModelConfig) -> Tensor:
    """[2, 1, heads, width] (query, key) to the bias of the fused projection; values have none."""
    return torch.cat([parts[0].flatten(), parts[0].new_zeros(config.kv_heads * config.width)])


def _split_qk_bias(x: Tensor, rows: Sequence[int], config: ModelConfig) -> Sequence[Tensor]:
    """Raises AssertionError if the values got a bias, which the foreign layout cannot hold."""
    size = config.num_heads * config.width
    assert not x[2 * size :].any(), "the value bias is not zero"
    return (x[: 2 * size].reshape(2, 1, config.num_heads, config.width),)


TRANSFORMS: dict[str, Transform] = {
    "same": Transform(lambda parts, c: parts[0], lambda x, rows, c: (x,)),
    "stack": Transform(lambda parts, c: torch.cat(list(parts)), lambda x, rows, c: x.split(list(rows))),
    "swap_columns": Transform(lambda parts, c: _swap_columns(parts[0]), lambda x, rows, c: (_swap_columns(x),)),
    "stack_flipped": Transform(_join_flipped, _split_flipped),
    "qk_bias": Transform(_join_qk_bias, _split_qk_bias),
    "first_rows": Transform(lambda parts, c: parts[0][: c.vocab_size], lambda x, rows, c: (x,)),
}
