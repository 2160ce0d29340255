"""Trackers: JSON lines, and the optional ones by name."""

import json
from pathlib import Path

import pytest

from loopwise.config import InputError
from loopwise.train.progress import JsonLines
from loopwise.train.trackers import flatten, tracker


def test_json_lines_drop_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonLines(path)
    for step in range(1, 6):
        first.log(step, {"loss": 1 / step})
    first.close()
    path.write_text(path.read_text() + '{"step": 6, "lo')  # killed while writing
    second = JsonLines(path, resumed_step=3)
    second.log(4, {"loss": 0.25})
    second.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_flatten_keeps_numbers() -> None:
    values = {"loss": 1.5, "by": {"1": 2, "deep": {"x": 3.0}}, "sample": "text", "flag": True}
    assert flatten(values) == {"loss": 1.5, "by/1": 2, "by/deep/x": 3.0}


def test_unknown_and_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="did you mean 'tensorboard'"):
        tracker("tensorbord", tmp_path, "micro", {})
    monkeypatch.setitem(__import__("sys").modules, "trackio", None)
    with pytest.raises(InputError, match="needs the package 'trackio'"):
        tracker("trackio", tmp_path, "micro", {})


def test_wandb_like_packages_get_flat_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    class Fake:
        init = staticmethod(lambda **words: calls.append(words["name"]))
        log = staticmethod(lambda values, step: calls.append((step, values)))
        finish = staticmethod(lambda: calls.append("finish"))

    monkeypatch.setitem(__import__("sys").modules, "wandb", Fake)
    made = tracker("wandb", tmp_path / "run", "micro", {})
    made.log(3, {"a": {"b": 1}})
    made.close()
    assert calls == ["micro-run", (3, {"a/b": 1}), "finish"]
