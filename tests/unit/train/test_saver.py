"""Background saving: the caller's tensors may change at once; a failed write costs nothing but that state."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwise.train import state
from loopwise.train.saver import Saver


def test_snapshot_is_taken_before_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, real = threading.Event(), state.write

    def slow(*args: Any) -> Path:
        gate.wait(10)
        return real(*args)

    monkeypatch.setattr(state, "write", slow)
    saver, weights = Saver(tmp_path, 2), torch.zeros(3)
    saver.submit({"step": 1}, {"w": weights}, {})
    weights += 1  # the next optimizer step: submit has returned while the write still waits
    assert not state.exists(tmp_path)
    gate.set()
    saver.wait(strict=True)
    found = state.latest(tmp_path)
    assert found is not None
    assert torch.equal(found.model["w"], torch.zeros(3))


def test_a_full_disk_is_told_and_the_last_good_state_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saver = Saver(tmp_path, 2)
    saver.submit({"step": 1}, {"w": torch.zeros(3)}, {})
    saver.wait(strict=True)

    def full(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(state, "_save_tensors", full)
    saver.submit({"step": 2}, {"w": torch.ones(3)}, {})
    saver.wait()  # a periodic save: training goes on
    assert "step 2 was not written" in capsys.readouterr().err
    with pytest.raises(OSError, match="No space"):
        saver.wait(strict=True)
    monkeypatch.undo()
    found = state.latest(tmp_path)
    assert found is not None
    assert found.meta["step"] == 1
    saver.submit({"step": 3}, {"w": torch.ones(3)}, {})
    saver.wait(strict=True)  # space again: the failure is forgotten
