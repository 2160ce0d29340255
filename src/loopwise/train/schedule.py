"""Warmup-stable-decay learning rate as a pure function of the step (Hu et al., 2024, MiniCPM)."""

from typing import NamedTuple

from loopwise.train.config import TrainConfig


class Horizon(NamedTuple):
    """Where the run ends, in optimizer steps, and from which step the learning rate decays."""

    decay_from: int
    total: int


def horizon(config: TrainConfig) -> Horizon:
    """The horizon of a budget given in tokens."""
    return Horizon(config.steps - round(config.steps * config.decay_fraction), config.steps)


def ending_now(config: TrainConfig, step: int) -> Horizon:
    """Begin the decay at `step`, its length in proportion to the steps made: for a budget given in minutes."""
    share = min(config.decay_fraction, 0.99)
    return Horizon(step, step + max(round(step * share / (1 - share)), 1))


def lr_factor(config: TrainConfig, where: Horizon, step: int) -> float:
    """Multiplier of the base learning rate for the update made at `step` (0-based)."""
    warm = min((step + 1) / config.warmup_steps, 1.0) if config.warmup_steps else 1.0
    if step < where.decay_from:
        return warm
    left = (where.total - step) / max(where.total - where.decay_from, 1)
    return warm * (config.final_lr + (1 - config.final_lr) * min(max(left, 0.0), 1.0))
