"""A micro run on synthetic text, as a program: `python micro_run.py OUT [--resume] [--a.b value ...]`.

The tests start it as a process of its own in order to kill it, and under torchrun.
"""

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor

from loopwise.recipes.catalog import recipe
from loopwise.train.config import Recipe
from loopwise.train.job import Job
from loopwise.train.loop import Trainer
from loopwise.train.overrides import override
from loopwise.train.validate import HeldOut
from loopwise.train.world import enter

SMALL = {
    "model.vocab_size": "64",
    "model.d_model": "16",
    "model.num_heads": "2",
    "model.d_ff": "32",
    "train.context": "12",
    "train.warmup_steps": "4",
    "train.tokens": str(8 * 12 * 30),
    "train.checkpoint_interval": "5",
    "train.eval_interval": "15",
    "train.eval_batches": "1",
    "train.log_interval": "1",
    "train.device": "cpu",
}


class Counting:
    """Windows that count upwards modulo 50 from a start drawn from (seed, step)."""

    def __init__(self, seed: int, rows: int, context: int, pause_s: float = 0.0, mine: slice = slice(None)) -> None:
        self.seed, self.rows, self.context, self.pause_s, self.mine = seed, rows, context, pause_s, mine

    def batch(self, step: int) -> Tensor:
        time.sleep(self.pause_s)
        _maybe_die(step)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        start = torch.randint(0, 50, (self.rows, 1), generator=generator)
        return ((start + torch.arange(self.context + 1)) % 50)[self.mine]


def _maybe_die(step: int) -> None:
    """Rank 1 dies at step MICRO_DIE_AT of the first attempt, if that is set."""
    if os.environ.get("MICRO_DIE_AT") == str(step) and (
        os.environ["RANK"],
        os.environ["TORCHELASTIC_RESTART_COUNT"],
    ) == ("1", "0"):
        (Path(sys.argv[1]) / "died").write_text(str(step))
        os.kill(os.getpid(), signal.SIGKILL)


def small(changes: dict[str, str] | None = None) -> Recipe:
    """The micro recipe, smaller."""
    return override(recipe("micro"), SMALL | (changes or {}))


def job(out: Path, made: Recipe, *, resume: bool = False, pause_s: float = 0.0, minutes: float | None = None) -> Job:
    rows, context = made.train.batch_size, made.train.context
    mine = slice(int(os.environ.get("RANK", "0")), None, int(os.environ.get("WORLD_SIZE", "1")))
    return Job(
        recipe=made,
        batches=Counting(made.train.seed, rows, context, pause_s, mine),
        out=out,
        held_out={"counting": HeldOut(Counting(99, 4, context))},
        fingerprint={"data_sha256": "counting"},
        manifest={},
        resume=resume,
        quiet=True,
        minutes=minutes,
    )


def main(argv: list[str]) -> None:
    warnings.simplefilter("error")
    out, rest = Path(argv[0]), argv[1:]
    resume = "--resume" in rest or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    pause = "--pause" in rest
    pairs = [item for item in rest if item not in ("--resume", "--pause")]
    made = small({name[2:]: value for name, value in zip(pairs[::2], pairs[1::2], strict=True)})
    world = enter("cpu")
    result = Trainer(job(out, made, resume=resume, pause_s=0.02 if pause else 0.0), world).run()
    if world.first:
        print(json.dumps(result))
    world.close()


if __name__ == "__main__":
    main(sys.argv[1:])
