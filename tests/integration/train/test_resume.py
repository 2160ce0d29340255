"""Runs that end early continue as if nothing had happened, and refuse to continue as something else."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from micro_run import job, small

from loopwise.config import InputError
from loopwise.train.loop import Trainer
from loopwise.train.world import enter

PROGRAM = Path(__file__).with_name("micro_run.py")
TIMING = ("tokens_per_s",)


def start(out: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(out), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for_step(out: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    path = out / "metrics.jsonl"
    while process.poll() is None and (not path.exists() or path.read_text().count('"loss"') < step):
        time.sleep(0.005)
    assert process.poll() is None, process.stderr.read().decode() if process.stderr else "ended early"


def train(out: Path, resume: bool = False, **changes: str) -> dict[str, object]:
    made = small({name.replace("__", "."): value for name, value in changes.items()})
    return Trainer(job(out, made, resume=resume), enter("cpu")).run()


def weights(out: Path) -> bytes:
    return (out / "checkpoint/model.safetensors").read_bytes()


def metrics(out: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMING} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run, in this process."""
    out = tmp_path_factory.mktemp("whole")
    train(out)
    return out


def test_result_and_files(whole: Path) -> None:
    rows = metrics(whole)
    assert rows[-1]["val_loss_by_depth"].keys() == {"1", "2", "4", "8"}  # type: ignore[union-attr]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 30
    assert losses[-1] < losses[0]  # type: ignore[operator]
    assert sorted(p.name for p in (whole / "states").iterdir()) == ["step-00000025", "step-00000030"]


def test_kill_9_then_resume_is_bit_equal(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, "--pause")
    wait_for_step(out, 13, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (out / "states/step-00000010").is_dir()
    assert not (out / "checkpoint").exists()
    train(out, resume=True)
    assert weights(out) == weights(whole)
    assert metrics(out) == metrics(whole)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, None), (signal.SIGTERM, 143)])
def test_signals_save_first(whole: Path, tmp_path: Path, number: signal.Signals, status: int | None) -> None:
    out = tmp_path / "run"
    process = start(out, "--pause")
    wait_for_step(out, 7, process)
    process.send_signal(number)
    _, error = process.communicate()
    if status:
        assert process.returncode == status
    else:  # the program has no top level of its own; the command turns this into exit 130
        assert b"KeyboardInterrupt: saved step" in error
    saved = sorted(p.name for p in (out / "states").iterdir())[-1]
    assert int(saved.removeprefix("step-")) >= 7
    train(out, resume=True)
    assert weights(out) == weights(whole)


def test_damaged_newest_state_still_ends_bit_equal(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    first = job(out, small({"train.tokens": str(8 * 12 * 30)}))
    trainer = Trainer(first, enter("cpu"))
    for _ in range(10):
        trainer.make_step()
        trainer.step, trainer.tokens = trainer.step + 1, trainer.tokens + 96
        if trainer.step % 5 == 0:
            trainer.save()
    for tracker in trainer.trackers:
        tracker.close()
    os.truncate(out / "states/step-00000010/optimizer.safetensors", 100)
    train(out, resume=True)
    assert "step-00000010 is damaged" in capsys.readouterr().err
    assert weights(out) == weights(whole)


def test_changed_recipe_is_refused_with_the_difference(whole: Path) -> None:
    with pytest.raises(InputError, match=r"recipe changed: model\.d_ff was 32, is 48; train\.lr was 0\.003, is 0\.01"):
        train(whole, resume=True, model__d_ff="48", train__lr="1e-2")


def test_changed_data_is_refused_with_the_difference(whole: Path) -> None:
    changed = dataclasses.replace(job(whole, small(), resume=True), fingerprint={"data_sha256": "other"})
    with pytest.raises(InputError, match="data changed: data_sha256 was 'counting', is 'other'"):
        Trainer(changed, enter("cpu"))


def test_a_used_folder_needs_resume(whole: Path) -> None:
    with pytest.raises(InputError, match="add --resume"):
        train(whole)


def test_resuming_a_finished_run_changes_nothing(whole: Path, tmp_path: Path) -> None:
    before = weights(whole)
    result = train(whole, resume=True)
    assert result["tokens"] == 8 * 12 * 30
    assert weights(whole) == before


def test_resume_without_a_run_starts_one(tmp_path: Path) -> None:
    assert train(tmp_path / "new", resume=True, train__tokens="960")["steps"] == 10


def test_nonfinite_loss_stops_and_names_the_last_good_state(tmp_path: Path) -> None:
    made = small()
    trainer = Trainer(job(tmp_path / "run", made), enter("cpu"))
    trainer.save()
    torch.nn.init.constant_(trainer.model.get_parameter("final_norm.weight"), float("inf"))
    before = trainer.model.embedding.weight.detach().clone()
    with pytest.raises(InputError, match=r"stopped at step 0: loss nan.*step-00000000.*train\.lr"):
        trainer.run()
    assert torch.equal(trainer.model.embedding.weight, before)


def test_minutes_end_with_a_decayed_learning_rate(tmp_path: Path) -> None:
    made = small({"train.tokens": "100M", "train.decay_fraction": "0.9", "train.warmup_steps": "0"})
    out = tmp_path / "run"
    Trainer(job(out, made, minutes=1e-6), enter("cpu")).run()  # over after one step, so nine more for the decay
    rates = [row["lr"] for row in metrics(out) if "lr" in row]
    assert rates == pytest.approx([3e-3] + [3e-3 * left / 9 for left in range(9, 0, -1)])
    assert (out / "checkpoint/config.json").is_file()


@pytest.mark.slow
def test_ten_kills_at_random_moments_end_bit_equal(whole: Path, tmp_path: Path) -> None:
    """kill -9 after a random time, again and again; each life continues from the last checkpoint (5 steps apart)."""
    out, chance, log = tmp_path / "run", random.Random(0), []
    for life in range(10):
        process = start(out, "--pause", "--resume")
        wait_for_step(out, min(27, life * 2 + 2), process)
        time.sleep(chance.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        reached = max((row["step"] for row in metrics(out) if "loss" in row), default=0)  # type: ignore[type-var]
        saved = [int(p.name.removeprefix("step-")) for p in (out / "states").glob("step-*")]
        log.append((reached, max(saved, default=0)))
        # at most the steps since the last checkpoint, and one interval more while that is still being written
        assert log[-1][0] - log[-1][1] <= 2 * 5, log  # type: ignore[operator]
    train(out, resume=True)
    print("life: last step, last checkpoint:", log)
    assert weights(out) == weights(whole)
    assert metrics(out) == metrics(whole)
