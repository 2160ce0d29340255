"""The trainer: random-depth steps, validation, checkpoints, and a clean end whatever happens."""

import time
from typing import Any, NamedTuple

import torch
from torch import nn

from loopwise.checkpoint import native
from loopwise.config import InputError
from loopwise.model.recurrent import RecurrentLM
from loopwise.records import write_json
from loopwise.train import optim, schedule, state
from loopwise.train.health import diagnose, gradient_norms
from loopwise.train.interrupt import Interrupt
from loopwise.train.job import Job
from loopwise.train.loss import objective
from loopwise.train.plan import train_flops_per_token, utilisation
from loopwise.train.progress import Bar, JsonLines, Tracker
from loopwise.train.resume import check_same
from loopwise.train.saver import Saver
from loopwise.train.units import units
from loopwise.train.validate import Validation, validate
from loopwise.train.world import World, check, spread, synchronised, whole_model, whole_tensors


class Step(NamedTuple):
    """Figures of one optimizer step, means over processes."""

    loss: float
    grad_norm: float
    depth: float


class Trainer:
    """Owns the model, the optimizers and the position in the run."""

    def __init__(self, job: Job, world: World, trackers: list[Tracker] | None = None) -> None:
        check(job.recipe, world)
        self.job, self.world, self.recipe, self.config = job, world, job.recipe, job.recipe.train
        if self.config.threads:
            torch.set_num_threads(self.config.threads)
        self.states = job.out / "states"
        self.saver = Saver(self.states, self.config.keep)
        self.gradients: dict[str, float] = {}
        self.told: set[str] = set()
        self.step = self.tokens = 0
        self.elapsed_s = 0.0
        self.where = schedule.horizon(self.config)
        found = self._find()
        self.model = RecurrentLM(self.recipe.model).initialise(self.config.seed).to(world.device).train()
        if found:
            self.model.load_state_dict(found.model, strict=False)
        self.model.recurrence.recompute = self.config.recompute
        if self.config.compile:
            self.model.compile_core()
        self.net: nn.Module = spread(self.model, self.recipe, world)
        self.optimizers = optim.build(self.model, self.config)
        if found:
            self._restore(found)
        self.trackers = [*(trackers or [])]
        if world.first:
            self.trackers.append(JsonLines(job.out / "metrics.jsonl", self.step))
        self.bar = Bar(self.where.total, self.step, job.quiet or not world.first)

    def run(self) -> dict[str, Any]:
        """Train to the end of the budget and write `out/checkpoint`; returns the JSON object of `loopwise train`.

        Raises KeyboardInterrupt (Ctrl-C) or SystemExit(143) (SIGTERM) after saving, `InputError` on divergence.
        """
        first, begun_s = self.tokens, self.elapsed_s
        validation: Validation | None = None
        try:
            with Interrupt() as interrupt:
                while self.step < self.where.total:
                    last = self._advance(interrupt)
                    done = self.step == self.where.total
                    if done or self.step % self.config.eval_interval == 0:
                        validation = self.validate()
                    if last or done or self.step % self.config.checkpoint_interval == 0:
                        self.save(final=last or done)
                    if last:
                        interrupt.leave(f"saved step {self.step:,} in {self.states}; continue with --resume")
            validation = validation or self.validate()
            return self._finish(validation, (self.tokens - first) / max(self.elapsed_s - begun_s, 1e-9))
        finally:
            self.saver.wait()
            self.bar.close()
            for tracker in self.trackers:
                tracker.close()

    def _advance(self, interrupt: Interrupt) -> bool:
        """One step and its bookkeeping; returns whether to stop here."""
        begun = time.monotonic()
        figures = self.make_step()
        self.step, self.tokens = self.step + 1, self.tokens + self.config.tokens_per_step
        took = time.monotonic() - begun
        self.elapsed_s += took
        minutes, share = self.job.minutes, 1 - self.config.decay_fraction
        late = minutes is not None and self.elapsed_s >= minutes * 60 * share and self.step < self.where.decay_from
        late_anywhere, stop_anywhere = self.world.mean([float(late), float(interrupt.asked)])
        if late_anywhere:
            self.where = schedule.ending_now(self.config, self.step)
        if self.step % self.config.log_interval == 0 or self.step == self.where.total:
            speed = self.config.tokens_per_step / took
            values = {"tokens": self.tokens, **figures._asdict(), "lr": self.config.lr * self._factor(self.step - 1)}
            self.log(values | {"gradient_norms": self.gradients, "tokens_per_s": round(speed, 1)})
            self.bar.show(self.step, self.where.total, figures.loss, figures.depth, speed)
        return stop_anywhere > 0

    def make_step(self) -> Step:
        """One optimizer step at `self.step`. A non-finite loss or gradient raises before the weights are touched."""
        config, world = self.config, self.world
        windows = self.job.batches.batch(self.step).to(world.device, non_blocking=True)
        parts = units(self.recipe.depth, config.seed, self.step, len(windows), config.accumulation)
        optim.set_lr(self.optimizers, self._factor(self.step))
        loss = depth = 0.0
        for index, part in enumerate(parts):
            share = len(part.rows) / len(windows)
            loss += share * self._backward(windows[part.rows], part.depth, share, index == len(parts) - 1)
            depth += share * part.depth
        norm = optim.whole(nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)).item()
        loss, norm = world.mean([loss, norm])
        if not (abs(loss) < float("inf") and abs(norm) < float("inf")):
            self._diverged(loss, norm)
        if (self.step + 1) % config.log_interval == 0:
            self.gradients = {name: float(f"{norm:.4g}") for name, norm in gradient_norms(self.model).items()}
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return Step(loss, norm, depth)

    def _backward(self, windows: torch.Tensor, depth: int, share: float, last: bool) -> float:
        backprop = self.recipe.depth.backprop
        low = self.config.dtype == "bfloat16"
        with synchronised(self.net, last), torch.autocast(self.world.device.type, torch.bfloat16, enabled=low):
            logits = self.net(windows[:, :-1], depth, backprop_depth=backprop if 0 < backprop < depth else None)
            weights = None
            if self.job.weigh and self.step >= self.recipe.data.weigh_from:
                weights = self.job.weigh(windows)[:, 1:]
            loss = objective(logits, windows[:, 1:], self.config.z_loss, weights)
            (loss.total * share).backward()
        return loss.nats.item()

    def _factor(self, step: int) -> float:
        return schedule.lr_factor(self.config, self.where, step)

    def _diverged(self, loss: float, norm: float) -> None:
        saved = sorted(self.states.glob("step-*"))
        good = f"the last good state is {saved[-1]}" if saved else "no state was saved yet"
        raise InputError(
            f"training stopped at step {self.step}: loss {loss}, gradient norm {norm}; {good}: lower --train.lr, "
            "lengthen --train.warmup_steps or set --train.z_loss 1e-4"
        )

    def validate(self) -> Validation:
        """Held-out figures, logged."""
        model = whole_model(self.model).eval()
        result = validate(model, self.job.held_out, self.config.eval_depths, self.config.eval_batches)
        values = {"tokens": self.tokens, **result.flat()}
        if self.job.sample:
            values["sample"] = self.job.sample(model)
        self.model.train()
        found = diagnose(result, self.gradients, self.recipe.depth.mean)
        self.log(values | ({"warnings": found} if found else {}))
        for name in found.keys() - self.told:
            self.bar.say(f"warning at step {self.step:,}: {found[name]}")
        self.told |= found.keys()
        return result

    def log(self, values: dict[str, Any]) -> None:
        """Send figures of the current step to every tracker."""
        for tracker in self.trackers:
            tracker.log(self.step, values)

    def save(self, final: bool = True) -> None:
        """Write a training state (rank 0; shards are gathered on all), in the background unless `final`."""
        model, optimizer = whole_tensors(self.model), optim.state_tensors(self.model, self.optimizers)
        if self.world.first:
            meta = {
                "step": self.step,
                "tokens": self.tokens,
                "elapsed_s": round(self.elapsed_s, 3),
                "horizon": list(self.where),
                "recipe": self.recipe.to_dict(),
                "fingerprint": dict(self.job.fingerprint),
            }
            self.saver.submit(meta, model, optimizer)
            if final:
                self.saver.wait(strict=True)

    def _find(self) -> state.Saved | None:
        if not self.job.resume:
            if state.exists(self.states):
                raise InputError(f"--out {self.job.out} holds a run: add --resume to continue it or give a new folder")
            self.job.out.mkdir(parents=True, exist_ok=True)
            if self.world.first:
                write_json(self.job.out / "recipe.json", self.recipe.to_dict())
            return None
        found = state.latest(self.states)
        if found:
            check_same(found.meta, self.recipe, self.job.fingerprint)
        self.job.out.mkdir(parents=True, exist_ok=True)
        return found

    def _restore(self, found: state.Saved) -> None:
        meta = found.meta
        optim.load_state_tensors(self.model, self.optimizers, found.optimizer)
        self.step, self.tokens, self.elapsed_s = meta["step"], meta["tokens"], meta["elapsed_s"]
        saved = schedule.Horizon(*meta["horizon"])
        if meta["recipe"]["train"]["tokens"] == self.config.tokens:
            self.where = saved  # else the budget was changed: the new one decides

    def _mfu(self, flops_per_s: float) -> float | None:
        name = torch.cuda.get_device_name() if self.world.device.type == "cuda" else ""
        return utilisation(name, flops_per_s / self.world.size)

    def _finish(self, validation: Validation, speed: float) -> dict[str, Any]:
        result = {
            "checkpoint": str(self.job.out / "checkpoint"),
            "tokens": self.tokens,
            "steps": self.step,
            **validation.flat(),
            "tokens_per_s": round(speed, 1),
            "flops_per_s": (flops := speed * train_flops_per_token(self.recipe)),
            "mfu": self._mfu(flops),
            "elapsed_s": round(self.elapsed_s, 1),
        }
        model = whole_model(self.model)
        if self.world.first:
            told = {key: value for key, value in result.items() if key != "checkpoint"}  # a folder may be moved
            manifest = {**self.job.manifest, "recipe": self.recipe.to_dict(), "result": told}
            native.save(self.job.out / "checkpoint", model, tokenizer=self.job.tokenizer, manifest=manifest)
        return result
