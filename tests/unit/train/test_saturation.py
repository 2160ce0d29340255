"""Saturation depth and its interval."""

import numpy as np

from loopwise.train.saturation import saturation


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
