"""A model with random weights, a tokenizer, and windows of random tokens."""

from collections.abc import Callable

import numpy as np
import pytest

from loopwise.config import ModelConfig
from loopwise.data.tokenizer import Tokenizer
from loopwise.measure.windows import Windows
from loopwise.model.recurrent import RecurrentLM

STORIES = [
    f"Tale {i}: once, in {1900 + i}, a fox's {'very ' * (i % 5)}old friend said 'hello'.\n" * 4 for i in range(12)
]


@pytest.fixture
def make_model() -> Callable[..., RecurrentLM]:
    """Build a small model; keyword arguments change its shape."""

    def make(**changes) -> RecurrentLM:
        shape = dict(
            vocab_size=61, d_model=32, num_heads=4, num_kv_heads=2, d_ff=48, prelude_layers=1, core_layers=2,
            coda_layers=1, context=32, max_depth=7,
        )  # fmt: skip
        return RecurrentLM(ModelConfig(**{**shape, **changes})).initialise(0).eval().requires_grad_(False)

    return make


@pytest.fixture
def make_windows() -> Callable[..., Windows]:
    """Windows of random tokens, two per document."""

    def make(lengths=(7, 3, 7, 1), vocab=61) -> Windows:
        rng = np.random.default_rng(1)
        ids = [rng.integers(0, vocab, n + 1).astype(np.int32) for n in lengths]
        document = np.arange(len(lengths)) // 2
        names = [str(d) for d in range(int(document.max()) + 1)]
        return Windows(ids=ids, document=document, hashes=names, context=max(lengths))

    return make


@pytest.fixture(scope="session")
def stories() -> list[str]:
    """A dozen short documents."""
    return STORIES


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Trained on the stories."""
    return Tokenizer.train(STORIES, vocab_size=320)
