"""Small text and tokenizers for the data tests."""

import random
from pathlib import Path

import pytest
from hypothesis import settings

from loopwise.data.tokenizer import Tokenizer

# Machines are slow and shared: no example may fail for its time, and thirty say enough here.
settings.register_profile("data", deadline=None, max_examples=30)
settings.load_profile("data")

SENTENCE = "the river runs past an old stone house where seven people keep bees and sell honey"


def make_texts(count: int, *, words: int = 30, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(SENTENCE.split()) for _ in range(words)) + f" {number}." for number in range(count)]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return make_texts(60)


@pytest.fixture(scope="session")
def tokenizer(texts: list[str]) -> Tokenizer:
    return Tokenizer.train(texts, vocab_size=320)


@pytest.fixture
def text_file(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "stories.txt"
    path.write_text("\n\n".join(texts), "utf-8")
    return path
