"""Warmup-stable-decay."""

import dataclasses

import pytest

from loopwise.recipes.catalog import recipe
from loopwise.train.schedule import Horizon, ending_now, horizon, lr_factor

CONFIG = dataclasses.replace(recipe("micro").train, warmup_steps=10, decay_fraction=0.25, tokens=8 * 32 * 100)


def test_shape() -> None:
    where = horizon(CONFIG)
    assert where == Horizon(75, 100)
    factors = [lr_factor(CONFIG, where, step) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:76] == [1.0] * 67
    assert factors[75:] == sorted(factors[75:], reverse=True)
    assert factors[99] == pytest.approx(0.04)


def test_final_lr_and_no_decay() -> None:
    config = dataclasses.replace(CONFIG, final_lr=0.1)
    assert lr_factor(config, Horizon(75, 100), 100) == pytest.approx(0.1)
    flat = dataclasses.replace(CONFIG, decay_fraction=0.0)
    assert lr_factor(flat, horizon(flat), 99) == 1.0


def test_ending_now_keeps_the_share_of_decay() -> None:
    assert ending_now(CONFIG, 300) == Horizon(300, 400)
    assert ending_now(CONFIG, 0).total == 1
