"""Two gloo processes: the same gradients as one, the same number of collectives at every depth, other world sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from micro_run import job, small
from safetensors.torch import load_file

from loopwise.train.loop import Trainer
from loopwise.train.world import enter

HERE = Path(__file__).parent


def torchrun(program: str, *words: str, restarts: int = 0, env: dict[str, str] | None = None) -> str:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        f"--max-restarts={restarts}",
        str(HERE / program),
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def tensors(out: Path, step: int, name: str) -> dict[str, torch.Tensor]:
    return load_file(out / f"states/step-{step:08d}/{name}.safetensors")


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=tolerance, rtol=0, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize(
    ("parallel", "scope", "accumulation"),
    [("ddp", "step", "2"), ("fsdp", "step", "2"), ("ddp", "microbatch", "2"), ("fsdp", "microbatch", "2")],
)
def test_two_processes_equal_one(tmp_path: Path, parallel: str, scope: str, accumulation: str) -> None:
    """After one step exp_avg is 0.1 x the clipped gradient, so equal states mean equal gradients."""
    changes = {"train.tokens": "96", "depth.scope": scope, "train.accumulation": accumulation, "train.clip": "1e6"}
    words = [w for k, v in (changes | {"train.parallel": parallel}).items() for w in (f"--{k}", v)]
    torchrun("micro_run.py", str(tmp_path / "two"), *words)
    Trainer(job(tmp_path / "one", small(changes)), enter("cpu")).run()
    one, two = (tensors(tmp_path / name, 1, "optimizer") for name in ("one", "two"))
    close(
        {k: v for k, v in one.items() if k.endswith("exp_avg")},
        {k: v for k, v in two.items() if k.endswith("exp_avg")},
        1e-7,
    )


def test_collectives_do_not_depend_on_depth() -> None:
    found = json.loads(torchrun("collectives.py").strip().splitlines()[-1])
    assert found["1"] == found["2"] == found["9"]
    gathers = sum(count for name, count in found["9"].items() if "gather" in name)
    assert gathers == 3  # root once, recurrence forward, recurrence backward


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_resume_on_another_world_size(tmp_path: Path, parallel: str) -> None:
    out = tmp_path / "run"
    half = {"train.tokens": str(96 * 10), "train.decay_fraction": "0"}
    Trainer(job(out, small(half)), enter("cpu")).run()
    words = ["--train.tokens", str(96 * 20), "--train.decay_fraction", "0", "--train.parallel", parallel]
    torchrun("micro_run.py", str(out), "--resume", *words)
    whole = tmp_path / "whole"
    Trainer(job(whole, small(half | {"train.tokens": str(96 * 20)})), enter("cpu")).run()
    close(tensors(out, 20, "model"), tensors(whole, 20, "model"), 2e-4)


@pytest.mark.slow
def test_a_rank_that_dies_restarts_the_job(tmp_path: Path) -> None:
    out = tmp_path / "run"
    torchrun("micro_run.py", str(out), restarts=1, env={"MICRO_DIE_AT": "12"})
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 31))
    assert (out / "died").read_text() == "12"
    assert (out / "checkpoint/model.safetensors").is_file()
