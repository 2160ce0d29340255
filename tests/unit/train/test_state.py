"""Training states: atomic, checked, pruned."""

import json
from pathlib import Path

import pytest
import torch

from loopwise.train import state

TENSORS = {"a": torch.arange(6.0).reshape(2, 3)}


def _write(folder: Path, step: int, keep: int = 2) -> Path:
    return state.write(folder, {"step": step}, TENSORS, {"a/exp_avg": torch.ones(2)}, keep)


def test_round_trip_and_pruning(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        _write(tmp_path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000010", "step-00000015"]
    found = state.latest(tmp_path)
    assert found is not None
    assert found.meta["step"] == 15
    assert torch.equal(found.model["a"], TENSORS["a"])
    assert list(found.optimizer) == ["a/exp_avg"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "no-meta", "bad-meta", "missing"])
def test_damaged_newest_falls_back(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path, 5)
    newest = _write(tmp_path, 10)
    weights, meta = newest / "model.safetensors", newest / "trainer.json"
    data = bytearray(weights.read_bytes())
    if damage == "truncate":
        weights.write_bytes(data[:-3])
    elif damage == "flip":
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "no-meta":
        meta.unlink()
    elif damage == "bad-meta":
        meta.write_text(json.dumps([1]))
    else:
        weights.unlink()
    found = state.latest(tmp_path)
    assert found is not None
    assert found.meta["step"] == 5
    assert "step-00000010 is damaged" in capsys.readouterr().err
    _write(tmp_path, 10)  # the name is free again
    again = state.latest(tmp_path)
    assert again is not None
    assert again.meta["step"] == 10


def test_failed_write_leaves_the_last_good_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, 5)

    def full(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(state, "_save_tensors", full)
    with pytest.raises(OSError, match="No space"):
        _write(tmp_path, 10)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000005"]


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "states").write_text("")
    with pytest.raises(OSError):
        _write(tmp_path / "states", 5)


def test_nothing_there(tmp_path: Path) -> None:
    assert state.latest(tmp_path) is None
    assert not state.exists(tmp_path)
    leftover = tmp_path / ".writing-00000005-1"
    leftover.mkdir()
    assert state.latest(tmp_path) is None
    assert not leftover.exists()
