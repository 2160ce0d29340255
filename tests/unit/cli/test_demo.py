"""`loopwise demo` on a random model: every record is written, the JSON keeps its contract, the card fits a terminal."""

import json
from pathlib import Path

import pytest

from loopwise.checkpoint.native import save
from loopwise.cli.main import main
from loopwise.config import ModelConfig
from loopwise.data.tokenizer import Tokenizer
from loopwise.model.recurrent import RecurrentLM

STORIES = [f"Tale {i}: once, in {1900 + i}, a fox's {'very ' * (i % 5)}old friend said 'hello'.\n" for i in range(40)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.train(STORIES, vocab_size=300)
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
    model = RecurrentLM(config).initialise(0)
    return save(folder / "random", model, tokenizer=folder / "tokenizer.json")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "tales.jsonl"
    path.write_text("".join(json.dumps({"text": story}) + "\n" for story in STORIES))
    return path


def test_demo_writes_every_record_and_the_page(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["demo", str(checkpoint), "--text", str(text), "--tokens", "300", "--out", str(out), "--json"]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"report", "loss_by_depth", "policies"} <= result.keys()
    assert list(result["loss_by_depth"]) == ["1", "2", "3", "4", "5"]
    assert {(p["name"], p["mode"]) for p in result["policies"]} >= {("kl", "live"), ("kl", "replay"), ("A0", "live")}
    names = {path.name for path in out.iterdir()}
    assert {"measure.json", "allocate.json", "sample.json", "lens.json", "lens.npz", "manifest.json"} <= names
    page = Path(result["report"]).read_text("utf-8")
    assert 'class="missing"' in page and "random on tales.jsonl" in page
    assert main(["report", str(out)]) == 0
    assert "Depth lens" in page and "absent" not in capsys.readouterr().out


def test_card_fits_eighty_columns(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["demo", str(checkpoint), "--text", str(text), "--tokens", "100", "--out", str(tmp_path), "--quiet"]
    assert main(words) == 0
    card = capsys.readouterr().out
    assert "median convergence depth" in card and "best fixed depth" in card and "report.html" in card
    assert "…" not in card


def test_demo_refuses_bad_input(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", str(checkpoint), "--text", str(tmp_path / "no.txt"), "--out", str(tmp_path)]) == 2
    assert main(["demo", str(checkpoint), "--tokens", "-1", "--out", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2
