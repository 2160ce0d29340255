"""How much a study does: one frozen set of budgets for a quick look, one for the whole."""

import dataclasses
from dataclasses import dataclass

from loopwise.config import InputError, nearest

SECTIONS = ("elasticity", "dynamics", "depth", "allocation", "reading", "efficiency", "ceiling")
DEPTHS = 32  # deepest pass that is looked at


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Budgets.

    `tokens` are traced per corpus, `live_tokens` decoded live per threshold, `fit_tokens` train learned exits.
    `jacobians` tokens have the spectrum of their pass estimated in `iterations` products. `prompts` are continued by
    `new_tokens`. `train_tokens` is the budget of each small model trained here, per seed of `seeds` (0: none).
    """

    quick: bool = False
    tokens: int = 6144
    live_tokens: int = 1536
    fit_tokens: int = 6144
    draws: int = 1000
    permutations: int = 4000
    jacobians: int = 64
    iterations: int = 30
    prompts: int = 6
    new_tokens: int = 32
    train_tokens: int = 160_000
    seeds: int = 2
    seed: int = 0
    tolerance: float = 0.01
    sections: tuple[str, ...] = SECTIONS
    policies: str = "A0,kl,rel_change,accel,probe"

    def __post_init__(self) -> None:
        if self.tokens < 256:
            raise InputError(f"tokens is {self.tokens}: use at least 256, fewer say nothing")
        for name in self.sections:
            if name not in SECTIONS:
                raise InputError(f"section '{name}' is unknown: {nearest(name, SECTIONS)}")
        if {"reading", "efficiency"} & set(self.sections) and "allocation" not in self.sections:
            raise InputError(f"sections '{','.join(self.sections)}' lack allocation, which reading and efficiency need")
        if self.draws < 2:
            raise InputError(f"draws is {self.draws}: use at least 2")
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}: use at least 1")


def quick(seed: int = 0) -> Settings:
    """Under five minutes for `tiny` and two corpora on two cores: nothing is trained but linear exits."""
    return Settings(
        quick=True,
        tokens=2048,
        live_tokens=512,
        fit_tokens=1536,
        draws=400,
        permutations=1000,
        jacobians=16,
        iterations=20,
        prompts=2,
        new_tokens=24,
        train_tokens=0,
        seed=seed,
        policies="A0,kl,rel_change,probe",
    )


def with_changes(base: Settings, **changes: int | tuple[str, ...] | None) -> Settings:
    """Replace what is given."""
    return dataclasses.replace(base, **{name: value for name, value in changes.items() if value is not None})
