"""Saturation depth and its interval."""

import numpy as np

from loopwise.train.saturation import over_runs, saturation


def test_first_depth_within_tolerance_of_the_best() -> None:
    loss = np.array([3.0, 2.5, 2.105, 2.1, 2.099])
    found = saturation(np.repeat(loss[None], 10, axis=0))
    assert (found.depth, found.low, found.high) == (3, 3, 3)
    assert found.best_loss == 2.099


def test_interval_widens_with_noise_and_holds_the_estimate() -> None:
    generator = np.random.default_rng(0)
    base = 2 + np.exp(-np.arange(1, 13))
    by_window = base + generator.normal(0, 0.02, (40, 12))
    found = saturation(by_window)
    assert found.low <= found.depth <= found.high
    assert found.low < found.high
    assert saturation(by_window) == found  # seeded
    assert sum(found.draws.values()) == 1000
    assert found.low <= min(int(d) for d, n in found.draws.items() if n > 25) + 1


def test_interval_over_runs_holds_the_spread_of_runs_and_of_windows() -> None:
    certain = [{"2": 100}, {"2": 100}, {"6": 100}]
    low, high = over_runs(certain)
    assert (low, high) == (2.0, 6.0)  # a draw may pick one run three times
    assert over_runs([{"3": 1000}]) == (3.0, 3.0)
    low, high = over_runs([{"2": 500, "4": 500}] * 3)
    assert low == 2.0 and high == 4.0
    low, high = over_runs([{"2": 10, "3": 980, "4": 10}] * 100)
    assert 2.9 < low <= 3.0 <= high < 3.1  # many runs that agree
