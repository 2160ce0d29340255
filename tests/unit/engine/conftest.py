"""A small random model, and the embedded one, for tests of the engine."""

import pytest

from loopwise.checkpoint.native import open_checkpoint
from loopwise.config import ModelConfig
from loopwise.data.tokenizer import Tokenizer
from loopwise.model.recurrent import RecurrentLM


@pytest.fixture(scope="package")
def small() -> RecurrentLM:
    shape = dict(vocab_size=61, d_model=32, num_heads=4, num_kv_heads=2, d_ff=48, context=64, max_depth=8)
    config = ModelConfig(**shape, prelude_layers=1, core_layers=1, coda_layers=1, mean_depth=5.0)
    return RecurrentLM(config).initialise(0).eval().requires_grad_(False)


@pytest.fixture(scope="package")
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.load(open_checkpoint("tiny").tokenizer_path)
