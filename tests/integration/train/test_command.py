"""`loopwise prepare` and `loopwise train` as a person calls them."""

import json
from pathlib import Path

import pytest

from loopwise.cli.main import main
from loopwise.config import ModelConfig

TINY = ["--train.tokens", "2560", "--train.context", "16", "--model.vocab_size", "300", "--train.eval_batches", "1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("text")
    lines = [json.dumps({"text": f"{i} sheep and {i * 3} goats walk to town {i % 7}. " * 3}) for i in range(120)]
    (root / "text.jsonl").write_text("\n".join(lines))
    assert (
        main(["prepare", "--text", str(root / "text.jsonl"), "--out", str(root / "data"), "--vocab", "300", "--json"])
        == 0
    )
    return root / "data"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


def test_train_resume_and_json(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ["train", "micro", "--data", str(data), "--out", str(out), *TINY]
    status, text, err = call(capsys, *words, "--json", "--track", "tensorboard")
    assert status == 0
    result = json.loads(text)
    assert result["tokens"] == 2560
    assert set(result["val_loss_by_depth"]) == {"1", "2", "4", "8"}
    assert result["tokens_per_s"] > 0
    checkpoint = Path(result["checkpoint"])
    assert ModelConfig.load(checkpoint / "config.json").vocab_size == 300
    assert (checkpoint / "tokenizer.json").read_bytes() == (data / "tokenizer.json").read_bytes()
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    assert manifest["recipe"]["depth"]["kind"] == "lognormal"
    assert manifest["data_sha256"]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert any("|" in row.get("sample", "") for row in rows)
    assert any(row.get("gradient_norms") for row in rows)
    assert list((out / "tensorboard").iterdir())

    status, _, err = call(capsys, *words)
    assert (status, err.count("\n")) == (2, 1)
    assert "add --resume" in err
    status, _, err = call(capsys, *words, "--resume", "--train.lr", "1e-2")
    assert (status, err.count("\n")) == (2, 1)
    assert "train.lr was 0.003, is 0.01" in err
    status, text, _ = call(capsys, *words, "--resume", "--tokens", "3k")
    assert status == 0
    assert text.startswith("trained 3,072 tokens")


def test_dry_run_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, text, _ = call(capsys, "train", "base-135m", "--dry-run", "--device", "h100", "--price", "2", "--json")
    assert status == 0
    assert json.loads(text)["dollars"] > 0
    assert not list(tmp_path.iterdir())


def test_sweep(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "micro", "--data", str(data), "--out", str(tmp_path / "s"), *TINY, "--train.tokens", "1k"]
    words += ["--model.max_depth", "8", "--depth.max", "8", "--sweep", "depth.mean=2,4", "--sweep", "train.seed=1"]
    status, text, _ = call(capsys, *words, "--json")
    assert status == 0
    found = json.loads(text)
    assert [row["changes"] for row in found["rows"]][1] == {"depth.mean": "4", "train.seed": "1"}
    assert [row["mean"] for row in found["by_mean"]] == [2.0, 4.0]
    swept = json.loads((tmp_path / "s/sweep.json").read_text())
    assert {row["checkpoint"] for row in swept["rows"]} == {"mean2,seed1/checkpoint", "mean4,seed1/checkpoint"}
    assert all(row["manifest"]["data_sha256"] and row["manifest"]["seed"] == 1 for row in swept["rows"])
    assert all(len(row["depths"]) == 1 for row in found["by_mean"])
    before = (tmp_path / "s/mean4,seed1/metrics.jsonl").stat().st_mtime_ns
    status, text, _ = call(capsys, *words)
    assert status == 0
    assert "saturates" in text
    assert (tmp_path / "s/mean4,seed1/metrics.jsonl").stat().st_mtime_ns == before  # not trained again


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "mirco"], "did you mean 'micro'"),
        (["train", "micro"], "--data is missing"),
        (["train", "micro", "--data", "nowhere"], "nowhere"),
        (["train", "micro", "--minutes", "0"], "--minutes is 0"),
        (["train", "micro", "--tokens", "many"], "train.tokens"),
        (["train", "micro", "--dry-run", "--device", "h10"], "did you mean 'h100'"),
        (["train", "micro", "--data", "x", "--sweep", "depth.mean"], "FIELD=VALUE"),
        (["prepare", "--text", "nowhere.txt", "--out", "x"], "nowhere.txt"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = call(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert told in err
