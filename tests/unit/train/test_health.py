"""Detectors: quiet on a healthy run, one piece of advice per sickness."""

import torch

from loopwise.model.recurrent import RecurrentLM
from loopwise.recipes.catalog import recipe
from loopwise.train.health import diagnose, gradient_norms
from loopwise.train.validate import Validation, correlation

GRADIENTS = {"coda": 0.3, "embedding": 0.5, "prelude": 0.2, "recurrence": 0.7}


def _validation(loss: dict[int, float], state_correlation: float = 0.2) -> Validation:
    return Validation(loss, {"text": loss}, {2: 0.1}, 3.0, state_correlation)


def test_healthy() -> None:
    assert diagnose(_validation({1: 3.0, 4: 2.5, 32: 2.5}), GRADIENTS, 4.0) == {}


def test_each_sickness() -> None:
    good = {1: 3.0, 4: 2.5, 32: 2.5}
    assert set(diagnose(_validation(good, 0.97), GRADIENTS, 4.0)) == {"collapse"}
    assert set(diagnose(_validation({**good, 32: 3.1}), GRADIENTS, 4.0)) == {"divergence"}
    assert set(diagnose(_validation({**good, 32: float("nan")}), GRADIENTS, 4.0)) == {"divergence"}
    assert set(diagnose(_validation(good), {**GRADIENTS, "recurrence": 1e-5}, 4.0)) == {"starved"}
    assert diagnose(_validation(good), {}, 4.0) == {}  # before the first logged step


def test_correlation_of_states() -> None:
    same = torch.ones(2, 5, 8)
    assert abs(correlation(same) - 1) < 1e-6
    orthogonal = torch.eye(8)[None]
    assert abs(correlation(orthogonal)) < 1e-6
    assert correlation(torch.ones(2, 1, 8)) == 0.0


def test_gradient_norms_add_up_to_the_whole() -> None:
    model = RecurrentLM(recipe("micro").model).initialise(0)
    model(torch.arange(12).reshape(2, 6), 3).square().mean().backward()
    norms = gradient_norms(model)
    assert set(norms) == {"embedding", "prelude", "recurrence", "coda"}
    whole = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item()
    assert abs(sum(n**2 for n in norms.values()) ** 0.5 - whole) < 1e-5 * whole
