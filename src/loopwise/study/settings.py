"""How much a study does: one frozen set of budgets for a quick look, one for the whole."""

import dataclasses
from dataclasses import dataclass

from loopwise.config import InputError

DEPTHS = 32  # deepest pass that is looked at


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Budgets.

    `tokens` are traced per corpus, `live_tokens` decoded live per threshold, `fit_tokens` train learned exits.
    `jacobians` tokens have the spectrum of their pass estimated in `iterations` products. `prompts` are continued by
    `new_tokens`. `train_tokens` is the budget of each small model trained here, per seed of `seeds` (0: none).
    """

    quick: bool = False
    tokens: int = 12_000
    live_tokens: int = 4096
    fit_tokens: int = 8192
    draws: int = 1000
    permutations: int = 4000
    jacobians: int = 128
    iterations: int = 40
    prompts: int = 12
    new_tokens: int = 64
    train_tokens: int = 400_000
    seeds: int = 2
    seed: int = 0
    tolerance: float = 0.01
    policies: str = "A0,kl,rel_change,accel,probe"

    def __post_init__(self) -> None:
        if self.tokens < 256:
            raise InputError(f"tokens is {self.tokens}: use at least 256, fewer say nothing")
        if self.draws < 2:
            raise InputError(f"draws is {self.draws}: use at least 2")
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}: use at least 1")


def quick(seed: int = 0) -> Settings:
    """Under five minutes for `tiny` and two corpora on two cores: nothing is trained but linear exits."""
    return Settings(quick=True, tokens=3072, live_tokens=768, fit_tokens=2048, draws=400, permutations=1000,
                    jacobians=32, iterations=24, prompts=3, new_tokens=32, train_tokens=0, seed=seed)  # fmt: skip


def with_budgets(base: Settings, **changes: int | None) -> Settings:
    """Replace the budgets that are given."""
    return dataclasses.replace(base, **{name: value for name, value in changes.items() if value is not None})
