"""Depth samplers: pure, clamped, and with the mean they promise."""

import dataclasses
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwise.train.config import DepthConfig
from loopwise.train.depth import SAMPLERS, _poisson, depth_at

KINDS = sorted(SAMPLERS)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 2**40), st.integers(0, 10**9), st.integers(0, 4096), st.floats(1, 40))
def test_pure_and_clamped(kind: str, seed: int, step: int, draw: int, mean: float) -> None:
    config = DepthConfig(kind=kind, mean=mean, min=2, max=24)  # type: ignore[arg-type]
    first = depth_at(config, seed, step, draw)
    random.seed(seed)  # global random state must not matter
    assert first == depth_at(config, seed, step, draw)
    assert 2 <= first <= 24


@pytest.mark.parametrize(("kind", "expected"), [("lognormal", 8.0), ("poisson-lognormal", 9.0), ("fixed", 8.0)])
def test_mean(kind: str, expected: float) -> None:
    config = DepthConfig(kind=kind, mean=8.0, sigma=0.5, max=1000)  # type: ignore[arg-type]
    draws = [depth_at(config, 0, step) for step in range(6000)]
    assert statistics.fmean(draws) == pytest.approx(expected, rel=0.03)


def test_uniform_covers_its_range() -> None:
    config = DepthConfig(kind="uniform", min=3, max=6)
    draws = [depth_at(config, 1, step) for step in range(2000)]
    assert set(draws) == {3, 4, 5, 6}
    assert statistics.fmean(draws) == pytest.approx(4.5, rel=0.03)


def test_curriculum_goes_from_start_mean_to_mean() -> None:
    config = DepthConfig(kind="curriculum", start_mean=2.0, mean=12.0, sigma=0.2, ramp_steps=100)
    early = statistics.fmean(depth_at(config, seed, 0) for seed in range(500))
    late = statistics.fmean(depth_at(config, seed, 500) for seed in range(500))
    assert early == pytest.approx(2, abs=0.2)
    assert late == pytest.approx(12, abs=0.5)


def test_lognormal_median_follows_the_convention() -> None:
    """The median of exp(N(ln m - s^2/2, s)) is m exp(-s^2/2), not m: 7.06 for m = 8, s = 0.5."""
    config = DepthConfig(max=1000)
    assert statistics.median(depth_at(config, 0, step) for step in range(4000)) == 7


def test_draws_of_one_step_differ_but_steps_share_nothing() -> None:
    config = DepthConfig()
    assert len({depth_at(config, 0, 0, draw) for draw in range(50)}) > 5
    assert len({tuple(depth_at(config, seed, step) for step in range(8)) for seed in range(20)}) == 20


def test_poisson_inversion_matches_the_cumulative_sum() -> None:
    assert _poisson(2.0, 0.0) == 0
    assert _poisson(2.0, 0.4) == 1  # P(X<=0)=0.135, P(X<=1)=0.406
    assert _poisson(2.0, 0.5) == 2
    assert _poisson(900.0, 0.5) == 900  # exp(-900) underflows


def test_replace_keeps_validation() -> None:
    with pytest.raises(ValueError, match=r"depth\.min.*9"):
        dataclasses.replace(DepthConfig(max=8), min=9)
