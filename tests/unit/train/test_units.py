"""Steps cut into units: every row once, depths as the scope says."""

import pytest

from loopwise.train.config import DepthConfig
from loopwise.train.depth import depth_at
from loopwise.train.units import units


@pytest.mark.parametrize("scope", ["step", "microbatch", "sequence"])
def test_every_row_exactly_once(scope: str) -> None:
    config = DepthConfig(scope=scope, max=12)  # type: ignore[arg-type]
    parts = units(config, 3, 17, rows=12, accumulation=3)
    assert sorted(row for part in parts for row in part.rows) == list(range(12))
    for part in parts:  # a unit stays inside one micro-batch of 4
        assert len({row // 4 for row in part.rows}) == 1


def test_scopes() -> None:
    step = units(DepthConfig(), 0, 5, 8, 4)
    assert {part.depth for part in step} == {depth_at(DepthConfig(), 0, 5)}
    micro = units(DepthConfig(scope="microbatch"), 0, 5, 8, 4)
    assert [part.depth for part in micro] == [depth_at(DepthConfig(), 0, 5, i) for i in range(4)]
    rows = units(DepthConfig(scope="sequence"), 0, 5, 8, 1)
    assert {row: part.depth for part in rows for row in part.rows} == {
        row: depth_at(DepthConfig(), 0, 5, row) for row in range(8)
    }
