"""Launches of fixed shape: row indices padded to one of a few sizes, recorded once per size and then replayed.

What is launched must be a function of the row indices and of buffers that stay where they are; padding points at a row
that belongs to nobody. On CUDA a recording is a CUDA graph; elsewhere it is the function itself, so that padding and
static buffers can be tested without a GPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Launch = Callable[[Tensor], Sequence[Any]]


def powers_to(most: int) -> tuple[int, ...]:
    """Powers of two below `most`, and `most`."""
    return (*(1 << n for n in range((most - 1).bit_length())), most)


class Padded:
    """`launch` at `sizes`; `filler` is the row that belongs to nobody. More rows than the largest size run as they
    are. Tensors returned are overwritten by the next call of their size."""

    def __init__(self, launch: Launch, sizes: Sequence[int], filler: int) -> None:
        self.launch, self.sizes, self.filler = launch, sorted(sizes), filler
        self._recorded: dict[int, tuple[Tensor, Callable[[], Sequence[Any]]]] = {}

    def __call__(self, index: Tensor) -> list[Any]:
        """What `launch(index)` returns: tensors whose first axis is the row, or None."""
        count = len(index)
        size = next((s for s in self.sizes if s >= count), None)
        if size is None:
            return list(self.launch(index))
        if size not in self._recorded:
            static = torch.full((size,), self.filler, dtype=index.dtype, device=index.device)
            self._recorded[size] = static, record(self.launch, static)
        static, run = self._recorded[size]
        static[:count].copy_(index)
        static[count:].fill_(self.filler)
        return [None if found is None else found[:count] for found in run()]


def record(launch: Launch, index: Tensor) -> Callable[[], Sequence[Any]]:
    """A callable that runs `launch(index)` with whatever `index` holds then. On CUDA the launch runs once before it is
    captured, as kernels that are chosen at run time need, so `index` must name rows that belong to nobody."""
    if not index.is_cuda:
        return lambda: launch(index)
    here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        launch(index)
    here.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = launch(index)

    def run() -> Sequence[Any]:
        graph.replay()
        return found

    return run
