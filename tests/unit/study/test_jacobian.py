"""The spectrum by power iteration equals that of the explicit Jacobian."""

import numpy as np
import pytest
import torch

from loopwise.config import ModelConfig
from loopwise.model.recurrent import RecurrentLM
from loopwise.study.jacobian import last_pass, spectrum


def test_power_iteration_equals_the_explicit_matrix():
    config = ModelConfig(
        vocab_size=61, d_model=16, num_heads=2, d_ff=24, prelude_layers=1, core_layers=2, coda_layers=1, context=32
    )
    model = RecurrentLM(config).initialise(0).eval().requires_grad_(False)
    tokens = torch.randint(0, 61, (3, 9), generator=torch.Generator().manual_seed(1))
    at, row = torch.tensor([0, 4, 8]), torch.arange(3)
    point, residual = last_pass(model, tokens, at, 6)
    found = spectrum(model, point, residual, 200, torch.Generator().manual_seed(0))

    def block(own):  # rows do not touch each other, so one matrix holds all three blocks
        return model.core(point.state.index_put((row, at), own), point.e, point.ctx)[row, at]

    whole = torch.autograd.functional.jacobian(block, point.state[row, at])
    for i in range(3):
        matrix = whole[i, :, i]
        assert found.radius[i] == pytest.approx(float(torch.linalg.eigvals(matrix).abs().max()), rel=0.02)
        assert found.singular[i] == pytest.approx(float(torch.linalg.svdvals(matrix).max()), rel=1e-3)
    assert np.isfinite(found.residual).all()
