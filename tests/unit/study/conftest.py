"""A study of a random model on tales, run once for all tests."""

import json
from pathlib import Path

import pytest

from loopwise.checkpoint.native import save
from loopwise.cli.main import main
from loopwise.config import ModelConfig
from loopwise.data.tokenizer import Tokenizer
from loopwise.model.recurrent import RecurrentLM
from loopwise.study import judge

TALES = [f"Tale {i}: once, in {1900 + i}, a fox's {'very ' * (i % 5)}old friend said 'hello'.\n" * 2 for i in range(40)]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.train(TALES, vocab_size=300)
    (folder / "tokenizer.json").write_bytes(tokenizer.data)
    config = ModelConfig(
        vocab_size=300,
        d_model=16,
        num_heads=2,
        d_ff=24,
        prelude_layers=1,
        core_layers=1,
        coda_layers=1,
        context=16,
        max_depth=5,
        mean_depth=3.0,
    )
    return save(folder / "random", RecurrentLM(config).initialise(0), tokenizer=folder / "tokenizer.json")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "tales.jsonl"
    path.write_text("".join(json.dumps({"text": tale}) + "\n" for tale in TALES))
    return path


@pytest.fixture(scope="session")
def words(checkpoint: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("study")
    (folder / "none").mkdir()  # benchmark records of the checkout are none of the test's business
    budgets = [
        "--tokens",
        "400",
        "--live-tokens",
        "64",
        "--quick",
        "--json",
        "--quiet",
        "--benchmarks",
        str(folder / "none"),
    ]
    return ["study", str(checkpoint), "--text", f"tales={text}", *budgets, "--out", str(folder / "out")]


@pytest.fixture(scope="session")
def done(words: list[str]) -> Path:
    """The folder of a finished study; SmolLM2 is not looked for, even where it is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "SOURCE", "package:no-such-package")
        assert main(words) == 0
    return Path(words[-1])
