"""Accelerations on a map whose fixed point is known, and plain passes against the model itself."""

import numpy as np
import pytest
import torch

from loopwise.calibrate.accelerate import METHODS, History, run
from loopwise.measure.trace import trace
from loopwise.measure.windows import Windows


@pytest.mark.parametrize("name", METHODS)
def test_methods_reach_the_fixed_point_of_a_linear_map(name):
    """f(s) = A s + b with one slow direction: mixing gets closer in eight passes than plain iteration does."""
    rate = torch.tensor([0.8, 0.3, 0.1, 0.05])
    bias = torch.ones(4)
    state, history = torch.zeros(2, 3, 4), History([], [])
    for _ in range(8):
        history.states.append(state)
        history.outputs.append(rate * state + bias)
        state = METHODS[name](history)
    error = (state - bias / (1 - rate)).norm() / (bias / (1 - rate)).norm() / 6**0.5
    plain = 0.8**8
    assert error < (plain * 1.05 if name == "plain" else plain / 2)


def test_plain_run_is_the_trace(make_model):
    model, rng = make_model(), np.random.default_rng(0)
    ids = [rng.integers(0, 61, 9).astype(np.int32) for _ in range(3)]
    windows = Windows(ids=ids, document=np.arange(3), hashes=["a", "b", "c"], context=8)
    found = run(model, windows, 4, METHODS["plain"])
    known = trace(model, windows, max_depth=4, signals=["rel_change"])
    assert found["loss"] == pytest.approx(known.columns["nll"].mean(1).tolist(), abs=1e-4)
    assert found["residual"][1:] == pytest.approx(known.columns["rel_change"][1:].mean(1).tolist(), abs=1e-4)
