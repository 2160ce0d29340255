"""Training batches as a pure function of (seed, step): nothing to save, so that a resumed run sees the same data.

The token stream is cut into windows of `context` tokens (plus one, the last target). Epoch after epoch, all windows
are visited once each in an order given by a seeded permutation. The batch of a step is the same however many
processes share it: process `rank` takes rows rank, rank + world_size, and so on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from loopwise.config import InputError
from loopwise.data.permutation import Permutation, mix, uniform
from loopwise.data.shards import INDEX

_CHUNK = 4096  # steps whose mixture counts are computed at a time
_ORDER, _ROWS, _SHARE = 1, 2, 3  # domains of the seed, so that no two uses share random numbers

Weights = Callable[[np.ndarray], np.ndarray]


@runtime_checkable
class Tokens(Protocol):
    """A token stream; `TokenShards` is one."""

    def __len__(self) -> int: ...

    def read(self, start: int, length: int) -> np.ndarray:
        """int64 tokens [start, start + length)."""
        ...


class PackedLoader:
    """Batches from one token stream. `batch_size` counts rows over all processes and must divide by `world_size`."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        context: int,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _check(context, batch_size, rank, world_size)
        self.windows = Windows(tokens, context=context, seed=seed)
        self.batch_size = batch_size
        self._rows = np.arange(rank, batch_size, world_size)

    @property
    def num_windows(self) -> int:
        """Windows per epoch."""
        return len(self.windows)

    def epoch(self, step: int) -> float:
        """Passes over the data completed before `step`."""
        return step * self.batch_size / self.num_windows

    def batch(self, step: int) -> Int[Tensor, "rows window"]:
        """Rows of context + 1 tokens of this process at `step` (from 0)."""
        return torch.from_numpy(self.windows.read(step * self.batch_size + self._rows))


class MixtureLoader:
    """Batches from several named token streams, with shares that may change over the run.

    `weights` maps an array of n steps to n rows of shares in the order of `sources`; rows are normalised. The number
    of rows of each source in a step is its share of the batch, rounded up or down at random so that the mean is exact.
    Each source goes through its own windows once per epoch of its own.
    """

    def __init__(
        self,
        sources: Mapping[str, Tokens],
        weights: Weights,
        *,
        context: int,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _check(context, batch_size, rank, world_size)
        if not sources:
            raise InputError("the mixture has no sources: give at least one")
        self.names = tuple(sources)
        self.batch_size = batch_size
        self._windows = [
            Windows(tokens, context=context, seed=mix(seed, place), name=name)
            for place, (name, tokens) in enumerate(sources.items())
        ]
        self._weights, self._seed = weights, seed
        self._mine = slice(rank, None, world_size)
        self._anchors = [np.zeros(len(self.names), dtype=np.int64)]
        self._chunk: tuple[int, np.ndarray] = (-1, np.empty(0))

    def batch(self, step: int) -> Int[Tensor, "rows window"]:
        """Rows of context + 1 tokens of this process at `step` (from 0)."""
        sources, places = self._plan(step)
        sources, places = sources[self._mine], places[self._mine]
        rows = np.empty((len(sources), self._windows[0].length), dtype=np.int64)
        for source in np.unique(sources):
            here = sources == source
            rows[here] = self._windows[source].read(places[here])
        return torch.from_numpy(rows)

    def sources(self, step: int) -> list[str]:
        """Name of the source of each row of this process at `step`."""
        return [self.names[source] for source in self._plan(step)[0][self._mine]]

    def epochs(self, step: int) -> dict[str, float]:
        """Passes over each source completed before `step`."""
        used, _ = self._counts(step)
        return {name: float(n) / len(w) for name, n, w in zip(self.names, used, self._windows, strict=True)}

    def _plan(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """For each row of the whole batch: its source, and its place in that source's order."""
        used, counts = self._counts(step)
        sources = np.repeat(np.arange(len(self.names)), counts)
        places = np.concatenate([start + np.arange(count) for start, count in zip(used, counts, strict=True)])
        order = Permutation(self.batch_size, mix(self._seed, _ROWS, step))(np.arange(self.batch_size))
        return sources[order], places[order]

    def _counts(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of each source before `step`, and at `step`."""
        chunk, place = divmod(step, _CHUNK)
        while len(self._anchors) <= chunk:
            self._anchors.append(self._anchors[-1] + self._rows_of(len(self._anchors) - 1).sum(0))
        if self._chunk[0] != chunk:
            self._chunk = (chunk, self._rows_of(chunk))
        counts = self._chunk[1]
        return self._anchors[chunk] + counts[:place].sum(0), counts[place]

    def _rows_of(self, chunk: int) -> np.ndarray:
        """Rows of each source for every step of a chunk: systematic sampling with one random offset per step."""
        steps = np.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK)
        weights = np.asarray(self._weights(steps), dtype=np.float64)
        if weights.shape != (_CHUNK, len(self.names)) or not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise InputError("mixture weights must be finite, not negative, and one per source: mend them")
        totals = weights.sum(1, keepdims=True)
        if not (totals > 0).all():
            raise InputError("mixture weights are all zero at some step: give one source a positive weight")
        edges = np.cumsum(weights / totals, axis=1) * self.batch_size
        edges[:, -1] = self.batch_size  # whatever rounding says: the counts must add up
        offset = uniform(mix(self._seed, _SHARE), steps)[:, None]
        return np.diff(np.floor(edges + offset).astype(np.int64), axis=1, prepend=0)


class Windows:
    """The windows of one stream in the order of its epochs: place p is window p mod n of epoch p // n, permuted."""

    def __init__(self, tokens: Tokens, *, context: int, seed: int, name: str = "text") -> None:
        self.length = context + 1
        self._tokens, self._context, self._seed = tokens, context, seed
        self._size = (len(tokens) - 1) // context
        if self._size < 1:
            raise InputError(
                f"'{name}' holds {len(tokens)} tokens, fewer than one window of {self.length} (context + 1): "
                "give more text or a smaller context"
            )

    def __len__(self) -> int:
        return self._size

    def read(self, places: np.ndarray) -> np.ndarray:
        """Rows of `length` tokens, int64."""
        epochs, inside = np.divmod(places, self._size)
        windows = np.empty_like(inside)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            windows[here] = Permutation(self._size, mix(self._seed, _ORDER, int(epoch)))(inside[here])
        return np.stack([self._tokens.read(int(w) * self._context, self.length) for w in windows])


@dataclass(frozen=True, kw_only=True)
class LinearWeights:
    """Shares that go linearly from `start` to `end` over `steps` steps and then stay (both normalised first)."""

    start: tuple[float, ...]
    end: tuple[float, ...]
    steps: int

    def __call__(self, steps: np.ndarray) -> np.ndarray:
        """Shares at each step, shape [steps, sources]."""
        start, end = (np.asarray(side, dtype=np.float64) for side in (self.start, self.end))
        progress = np.clip(steps / max(1, self.steps), 0.0, 1.0)[:, None]
        return (1 - progress) * start / start.sum() + progress * end / end.sum()


@dataclass(frozen=True, kw_only=True)
class PiecewiseWeights:
    """Shares given at some steps, one tuple of (step, share) knots per source; linear between, constant outside."""

    knots: tuple[tuple[tuple[int, float], ...], ...]

    def __call__(self, steps: np.ndarray) -> np.ndarray:
        """Shares at each step, shape [steps, sources]; not normalised."""
        columns = [np.interp(steps, [at for at, _ in source], [share for _, share in source]) for source in self.knots]
        return np.stack(columns, axis=1)


def constant(*weights: float) -> LinearWeights:
    """Shares that do not change."""
    return LinearWeights(start=weights, end=weights, steps=1)


def find_sets(folder: Path) -> dict[str, Path]:
    """Prepared sets below `folder`, by name: itself if `prepare` wrote it, else its subfolders that it wrote."""
    if (folder / "train" / INDEX).is_file():
        return {folder.resolve().name: folder}
    found = {}
    if folder.is_dir():
        found = {sub.name: sub for sub in sorted(folder.iterdir()) if (sub / "train" / INDEX).is_file()}
    if not found:
        raise InputError(f"data '{folder}' holds no prepared text: write it with `loopwise prepare`")
    return found


def _check(context: int, batch_size: int, rank: int, world_size: int) -> None:
    for name, value in (("context", context), ("batch_size", batch_size), ("world_size", world_size)):
        if value < 1:
            raise InputError(f"{name} is {value}: use at least 1")
    if batch_size % world_size:
        raise InputError(f"batch_size is {batch_size}: it must divide by the number of processes, {world_size}")
    if not 0 <= rank < world_size:
        raise InputError(f"rank is {rank}: use 0 to {world_size - 1}")
