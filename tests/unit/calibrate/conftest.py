"""The small random model of the measuring tests."""

from collections.abc import Callable

import pytest

from loopwise.config import ModelConfig
from loopwise.model.recurrent import RecurrentLM


@pytest.fixture
def make_model() -> Callable[..., RecurrentLM]:
    """Build a small model; keyword arguments change its shape."""

    def make(**changes) -> RecurrentLM:
        shape = dict(vocab_size=61, d_model=32, num_heads=4, d_ff=48, prelude_layers=1, core_layers=1, coda_layers=1,
                     context=16, max_depth=6)  # fmt: skip
        return RecurrentLM(ModelConfig(**{**shape, **changes})).initialise(0).eval().requires_grad_(False)

    return make
