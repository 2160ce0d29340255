"""`loopwise bench train`: what random depth costs against fixed depth, and against a plain transformer.

Three trainings of the same width on the same tokens, interleaved step by step so that a busy machine troubles all
alike: `sampled` depth, `fixed` depth at exactly the same mean, and `plain`: an unrolled transformer with its own
weights in every layer, of equal FLOPs per token. Times are of whole optimizer steps.
"""

import argparse
import dataclasses
import time
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from loopwise import hardware, records
from loopwise.config import InputError, ModelConfig
from loopwise.model.cost import Cost
from loopwise.model.recurrent import RecurrentLM
from loopwise.train import optim
from loopwise.train.config import Recipe
from loopwise.train.depth import depth_at
from loopwise.train.loss import objective


class Arm(NamedTuple):
    """One of the trainings compared: a name, its depths by step, and its model."""

    name: str
    depths: list[int]
    model: ModelConfig


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `loopwise bench train`."""
    parser.add_argument("--recipe", default="tiny", metavar="NAME", help="model, batch and sampler (default tiny)")
    parser.add_argument("--steps", type=int, default=24, metavar="N", help="timed steps of each arm (default 24)")
    parser.add_argument("--no-plain", action="store_true", help="leave the plain transformer out")


def bench_train(recipe: Recipe, *, steps: int = 24, plain: bool = True) -> dict[str, Any]:
    """Rows, ratios and the manifest. `overhead` is time per step, sampled against fixed, minus one."""
    if steps < 2:
        raise InputError(f"--steps is {steps}: use at least 2")
    device = hardware.pick_device(recipe.train.device)
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    arms = _arms(recipe, steps, plain)
    runners = {arm.name: _Runner(arm, recipe, device) for arm in arms}
    for runner in runners.values():
        runner.warm()
    for index in range(steps):
        for runner in runners.values():
            runner.step(index)
    rows = [row for arm in arms for row in runners[arm.name].rows()]
    return {"rows": rows, "ratios": _ratios(runners), "manifest": _manifest(recipe, steps)}


def equal_mean(recipe: Recipe, steps: int) -> list[int]:
    """`steps` consecutive draws of the recipe's sampler whose mean is the nearest integer to their law's mean."""
    seed = recipe.train.seed
    drawn = [depth_at(recipe.depth, seed, step) for step in range(4000 + steps)]
    goal = round(fmean(drawn)) * steps
    for start in range(4000):
        if sum(drawn[start : start + steps]) == goal:
            return drawn[start : start + steps]
    raise InputError(f"no {steps} consecutive draws have an integer mean: use another --steps")


def _arms(recipe: Recipe, steps: int, plain: bool) -> list[Arm]:
    depths = equal_mean(recipe, steps)
    mean = sum(depths) // steps
    arms = [Arm("sampled", depths, recipe.model), Arm("fixed", [mean] * steps, recipe.model)]
    if plain:
        arms.append(Arm("plain", [1] * steps, unroll(recipe.model, mean, recipe.train.context / 2)))
    return arms


def unroll(model: ModelConfig, depth: int, keys: float) -> ModelConfig:
    """A plain transformer of (nearly) the FLOPs per token of `model` at `depth`: every pass has its own layers, and the
    MLPs are widened by what the injection cost."""
    goal = Cost.of(model).flops(depth, keys=keys)
    plain = dataclasses.replace(model, core_layers=depth * model.core_layers, injection="none")
    widths = range(model.d_ff, 4 * model.d_ff, 8)
    best = min(widths, key=lambda w: abs(Cost.of(dataclasses.replace(plain, d_ff=w)).flops(1, keys=keys) - goal))
    return dataclasses.replace(plain, d_ff=best)


class _Runner:
    """Trains one arm, one step at a time, and keeps the time of each."""

    def __init__(self, arm: Arm, recipe: Recipe, device: torch.device) -> None:
        self.arm, self.recipe, self.config, self.device = arm, recipe, recipe.train, device
        self.model = RecurrentLM(arm.model).initialise(0).to(device).train()
        if self.config.compile:
            self.model.compile_core()
        self.optimizers = optim.build(self.model, self.config)
        self.seconds: list[float] = []

    def warm(self) -> None:
        """Two steps at the shallowest and deepest depths: compilation and memory allocation are not timed."""
        for depth in (min(self.arm.depths), max(self.arm.depths)):
            self._step(_tokens(self.recipe, 0, self.device), depth)

    def step(self, index: int) -> None:
        windows = _tokens(self.recipe, index, self.device)
        begun = time.perf_counter()
        self._step(windows, self.arm.depths[index])
        self.seconds.append(time.perf_counter() - begun)

    def _step(self, windows: Int[Tensor, "rows window"], depth: int) -> None:
        backprop, share = self.recipe.depth.backprop, 1 / self.config.accumulation
        low = self.config.dtype == "bfloat16"
        for part in windows.chunk(self.config.accumulation):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
                logits = self.model(part[:, :-1], depth, backprop_depth=backprop if 0 < backprop < depth else None)
                (objective(logits, part[:, 1:], self.config.z_loss).total * share).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def flops(self) -> float:
        """Training FLOPs per token, mean over the steps made."""
        cost, keys = Cost.of(self.arm.model), self.config.context / 2
        limit = self.recipe.depth.backprop or max(self.arm.depths)
        return fmean(cost.flops(d, keys=keys) + 2 * cost.flops(min(d, limit), keys=keys) for d in self.arm.depths)

    def tokens_per_s(self) -> float:
        return self.config.tokens_per_step * len(self.seconds) / sum(self.seconds)

    def rows(self) -> list[dict[str, Any]]:
        name, speed = self.arm.name, self.tokens_per_s()
        return [
            {"name": f"{name}: tokens/s", "value": speed, "unit": "tokens/s"},
            {"name": f"{name}: mean depth", "value": fmean(self.arm.depths), "unit": "passes"},
            {"name": f"{name}: step", "value": fmean(self.seconds), "unit": "s"},
            {"name": f"{name}: median step", "value": median(self.seconds), "unit": "s"},
            {"name": f"{name}: model FLOPs", "value": self.flops() * speed, "unit": "FLOP/s"},
        ]


def _ratios(runners: dict[str, _Runner]) -> dict[str, float]:
    """`sampled_overhead`: extra time per step at equal mean depth; `..._per_flop`: the same after dividing by FLOPs
    (with truncated backpropagation sampled depth needs slightly fewer). `against_plain`: tokens/s of fixed depth over
    plain; `..._per_flop`: FLOP/s over FLOP/s."""
    sampled, fixed = runners["sampled"], runners["fixed"]
    found = {
        "sampled_overhead": fixed.tokens_per_s() / sampled.tokens_per_s() - 1,
        "sampled_overhead_per_flop": fixed.tokens_per_s() * fixed.flops() / (sampled.tokens_per_s() * sampled.flops())
        - 1,
    }
    if plain := runners.get("plain"):
        found["against_plain"] = fixed.tokens_per_s() / plain.tokens_per_s()
        found["against_plain_per_flop"] = found["against_plain"] * fixed.flops() / plain.flops()
        found["sampled_against_plain"] = sampled.tokens_per_s() / plain.tokens_per_s()
    return {name: round(value, 4) for name, value in found.items()}


def _tokens(recipe: Recipe, step: int, device: torch.device) -> Int[Tensor, "rows window"]:
    generator = torch.Generator().manual_seed(step)
    size = (recipe.train.batch_size, recipe.train.context + 1)
    return torch.randint(0, recipe.model.vocab_size, size, generator=generator).to(device)


def _manifest(recipe: Recipe, steps: int) -> dict[str, Any]:
    return records.manifest(
        command=f"loopwise bench train --recipe {recipe.name} --steps {steps}",
        config=recipe.to_dict(),
        data_sha256="random tokens",
        seed=recipe.train.seed,
        hardware=hardware.describe(),
        commit=hardware.commit(),
    )
