"""The complete description of one training run: a `Recipe` of four frozen sections (model, train, depth, data)."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from loopwise.config import InputError, ModelConfig, nearest

Sampler = Literal["lognormal", "poisson-lognormal", "fixed", "uniform", "curriculum"]
Scope = Literal["step", "microbatch", "sequence"]
Optimizer = Literal["adamw", "muon"]
Parallel = Literal["ddp", "fsdp"]
Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class DepthConfig:
    """How many core passes a training step makes (see `train.depth`).

    `mean` and `sigma` parametrise the law, `min` and `max` clamp every draw. `scope` says what shares one draw: the
    whole optimizer step, a micro-batch or one sequence. `curriculum` is lognormal whose mean goes linearly from
    `start_mean` to `mean` in the first `ramp_steps` optimizer steps. `backprop` truncates backpropagation to the last
    passes of the loop (0: through all).
    """

    kind: Sampler = "lognormal"
    mean: float = 8.0
    sigma: float = 0.5
    min: int = 1
    max: int = 32
    scope: Scope = "step"
    start_mean: float = 2.0
    ramp_steps: int = 1000
    backprop: int = 0

    def __post_init__(self) -> None:
        _choose("depth.kind", self.kind, get_args(Sampler))
        _choose("depth.scope", self.scope, get_args(Scope))
        _require(self.mean >= 1, "depth.mean", self.mean, "use at least 1")
        _require(self.start_mean >= 1, "depth.start_mean", self.start_mean, "use at least 1")
        _require(self.sigma >= 0, "depth.sigma", self.sigma, "use 0 or more")
        _require(1 <= self.min <= self.max, "depth.min", self.min, f"use 1 to depth.max ({self.max})")
        _require(self.ramp_steps >= 1, "depth.ramp_steps", self.ramp_steps, "use at least 1")
        _require(self.backprop >= 0, "depth.backprop", self.backprop, "use 0 (all passes) or a number of passes")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Optimization, budget and validation.

    `batch_size` counts sequences per optimizer step over all ranks and micro-batches; `accumulation` splits it.
    `warmup_steps` then constant then, for the last `decay_fraction` of the steps, linear to `final_lr` (a fraction).
    `z_loss` weights mean(logsumexp^2). Intervals are in optimizer steps.
    """

    tokens: int
    batch_size: int
    context: int
    accumulation: int = 1
    optimizer: Optimizer = "adamw"
    lr: float = 3e-3
    muon_lr: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    warmup_steps: int = 100
    decay_fraction: float = 0.2
    final_lr: float = 0.0
    clip: float = 1.0
    z_loss: float = 0.0
    seed: int = 0
    checkpoint_interval: int = 500
    keep: int = 2
    eval_interval: int = 500
    eval_batches: int = 4
    eval_depths: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    log_interval: int = 10
    threads: int = 0
    compile: bool = False
    recompute: bool = False
    dtype: Dtype = "float32"
    parallel: Parallel = "ddp"
    device: str = "auto"

    def __post_init__(self) -> None:
        _choose("train.optimizer", self.optimizer, get_args(Optimizer))
        _choose("train.dtype", self.dtype, get_args(Dtype))
        _choose("train.parallel", self.parallel, get_args(Parallel))
        for name in (
            "tokens",
            "batch_size",
            "context",
            "accumulation",
            "checkpoint_interval",
            "keep",
            "log_interval",
            "eval_interval",
            "eval_batches",
        ):
            _require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "use at least 1")
        for name in ("lr", "muon_lr", "eps", "clip"):
            _require(getattr(self, name) > 0, f"train.{name}", getattr(self, name), "use a positive number")
        for name in ("weight_decay", "z_loss", "warmup_steps", "threads"):
            _require(getattr(self, name) >= 0, f"train.{name}", getattr(self, name), "use 0 or more")
        for name in ("decay_fraction", "final_lr"):
            _require(0 <= getattr(self, name) <= 1, f"train.{name}", getattr(self, name), "use a fraction, 0 to 1")
        for name in ("beta1", "beta2"):
            _require(0 <= getattr(self, name) < 1, f"train.{name}", getattr(self, name), "use 0 or more, below 1")
        _require(
            self.batch_size % self.accumulation == 0,
            "train.accumulation",
            self.accumulation,
            f"it must divide train.batch_size ({self.batch_size})",
        )
        depths = self.eval_depths
        _require(bool(depths) and min(depths) >= 1, "train.eval_depths", depths, "give depths of at least 1")

    @property
    def tokens_per_step(self) -> int:
        """Predicted tokens of one optimizer step over all ranks."""
        return self.batch_size * self.context

    @property
    def steps(self) -> int:
        """Optimizer steps that reach `tokens` (rounded up)."""
        return -(-self.tokens // self.tokens_per_step)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One part of the mixture: `text` as for `--text` (file, folder or `hub:...`) and its share of training windows.

    The share goes linearly from `weight` to `final_weight` (default: the same) over the first `DataConfig.mix_steps`
    optimizer steps; shares are normalised. A curriculum of several phases is given as `shares` instead: (step, share)
    knots, linear between. Held-out loss is averaged with the final shares.
    """

    name: str
    text: str
    weight: float = 1.0
    final_weight: float | None = None
    shares: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained on: used by `loopwise prepare` and by the loader; prepared shards are given with `--data`.

    In puzzles (`data.puzzles`) the loss of answers weighs `answer_weight`, that of all other tokens `filler_weight`:
    most of a puzzle is drawn at random, and its gradient is noise that hides the few tokens that can be computed.
    Optimizer steps before `weigh_from` weigh all tokens alike.
    """

    sources: tuple[Source, ...] = ()
    tokenizer: str | None = None
    holdout: float = 0.05
    mix_steps: int = 1000
    answer_weight: float = 1.0
    filler_weight: float = 1.0
    weigh_from: int = 0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete run; the functions in `loopwise.recipes` return these."""

    name: str
    model: ModelConfig
    train: TrainConfig
    depth: DepthConfig = dataclasses.field(default_factory=DepthConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)

    def __post_init__(self) -> None:
        _require(
            self.train.context <= self.model.context,
            "train.context",
            self.train.context,
            f"use at most model.context ({self.model.context})",
        )
        _require(
            self.depth.max <= self.model.max_depth,
            "depth.max",
            self.depth.max,
            f"use at most model.max_depth ({self.model.max_depth})",
        )
        top = max(self.train.eval_depths)
        _require(
            top <= self.model.max_depth,
            "train.eval_depths",
            top,
            f"use depths up to model.max_depth ({self.model.max_depth})",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready dictionary (tuples become lists)."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @property
    def digest(self) -> str:
        """Hash of everything that decides the result: not the interval, thread or device settings of `PRACTICAL`."""
        return hashlib.sha256(json.dumps(self.binding(), sort_keys=True).encode()).hexdigest()

    def binding(self) -> dict[str, Any]:
        """The fields that a resumed run must share with the run it continues, as `section.field -> value`."""
        values = self.to_dict()
        flat = {
            f"{section}.{key}": value
            for section in ("model", "train", "depth", "data")
            for key, value in values[section].items()
        }
        return {key: value for key, value in flat.items() if key not in PRACTICAL}


# May change on resume: they say when to look and where to run, not what is computed. (`tokens` is bound separately:
# a resumed run may be extended, see `checkpoint.compare`.)
PRACTICAL = frozenset(
    f"train.{name}"
    for name in (
        "tokens",
        "checkpoint_interval",
        "keep",
        "eval_interval",
        "eval_batches",
        "eval_depths",
        "log_interval",
        "threads",
        "compile",
        "recompute",
        "device",
        "parallel",
    )
)


def check_batch(train: TrainConfig, processes: int) -> None:
    """Raise `InputError` unless the batch divides evenly over processes and micro-batches."""
    parts = processes * train.accumulation
    _require(
        train.batch_size % parts == 0,
        "train.batch_size",
        train.batch_size,
        f"make it a multiple of {parts} (processes x train.accumulation)",
    )


def _choose(name: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise InputError(f"recipe field '{name}' is {value!r}: {nearest(str(value), valid)}")


def _require(ok: bool, name: str, value: object, remedy: str) -> None:
    if not ok:
        raise InputError(f"recipe field '{name}' is {value!r}: {remedy}")
