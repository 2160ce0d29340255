"""Cut one process's part of a step into units: rows that run together at one depth."""

from typing import NamedTuple

from loopwise.train.config import DepthConfig
from loopwise.train.depth import depth_at


class Unit(NamedTuple):
    """Row indices of the local batch and the depth they run at."""

    rows: list[int]
    depth: int


def units(config: DepthConfig, seed: int, step: int, rows: int, accumulation: int) -> list[Unit]:
    """Units of a step with `rows` local sequences; equal on all ranks, so that collectives match.

    `config.scope`: `step` one depth for all micro-batches, `microbatch` one each, `sequence` one per sequence
    (sequences of one micro-batch that drew the same depth run together, so no pass is wasted).
    """
    size = rows // accumulation
    batches = [list(range(i * size, (i + 1) * size)) for i in range(accumulation)]
    if config.scope == "step":
        return [Unit(batch, depth_at(config, seed, step)) for batch in batches]
    if config.scope == "microbatch":
        return [Unit(batch, depth_at(config, seed, step, i)) for i, batch in enumerate(batches)]
    found = []
    for batch in batches:
        by_depth: dict[int, list[int]] = {}
        for row in batch:
            by_depth.setdefault(depth_at(config, seed, step, row), []).append(row)
        found += [Unit(members, depth) for depth, members in sorted(by_depth.items())]
    return found
