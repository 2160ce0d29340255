"""The menu of a server: which exit policy a request gets, by model id, effort or explicit depth."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from loopwise.checkpoint.native import Checkpoint
from loopwise.config import InputError, nearest
from loopwise.exit.policy import Policy
from loopwise.exit.tiers import Tier, choose_tier, parse_tiers
from loopwise.serve.errors import ApiError, bad
from loopwise.serve.schema import EFFORTS, Asked, Depth

CUSTOM = "custom"


class Chosen(NamedTuple):
    """What a request runs under. `tier` is `custom` where it brought its own policy or bounds."""

    tier: str
    policy: Policy


class Menu:
    """Tiers from cheap to deep under the model id `name`; `name` alone means the `default` tier.

    `reference` is the depth that savings are counted against, `ladder` the tiers that efforts are spread over (None:
    all). Unknown names raise `InputError`.
    """

    def __init__(
        self,
        name: str,
        tiers: Mapping[str, Tier],
        *,
        reference: int,
        default: str | None = None,
        ladder: Sequence[str] | None = None,
    ) -> None:
        self.name, self.tiers, self.reference = name, dict(tiers), reference
        self.ladder = list(self.tiers if ladder is None else ladder)
        deepest = "full" if "full" in self.tiers else list(self.tiers)[-1]
        self.default = choose_tier(self.tiers, default).name if default else deepest

    @property
    def ids(self) -> list[str]:
        """Model ids: the plain name and one for each tier."""
        return [self.name, *(f"{self.name}:{tier}" for tier in self.tiers)]

    @property
    def max_depth(self) -> int:
        """Deepest pass of any tier."""
        return max(self.reference, *(tier.policy.max_depth or 0 for tier in self.tiers.values()))

    def tier_of(self, model: str) -> str | None:
        """The tier that a model id names, None for the plain name. 404 for another model, 400 for an unknown tier."""
        name, colon, tier = model.partition(":")
        if name != self.name:
            message = f"the model '{model}' does not exist: this server has {', '.join(self.ids)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        if colon and tier not in self.tiers:
            raise bad(f"tier '{tier}' is unknown: {nearest(tier, self.tiers)}", "model", "unknown_tier")
        return tier or None

    def by_effort(self, effort: str) -> str:
        """Efforts spread evenly over the ladder, from `none` (cheapest) to `max` (deepest)."""
        return self.ladder[EFFORTS.index(effort) * len(self.ladder) // len(EFFORTS)]  # type: ignore[arg-type]

    def choose(self, asked: Asked) -> Chosen:
        """The policy of a request. A model id and an effort that disagree are refused."""
        named = self.tier_of(asked.model)
        effort = self.by_effort(asked.reasoning_effort) if asked.reasoning_effort else None
        if named and effort and named != effort:
            message = f"reasoning_effort '{asked.reasoning_effort}' means tier '{effort}', the model id names '{named}'"
            raise bad(f"{message}: give one of them", "reasoning_effort", "conflicting_tier")
        tier = named or effort or self.default
        chosen = Chosen(tier, self.tiers[tier].policy)
        return chosen if asked.depth is None else bounded(chosen, asked.depth)


def bounded(chosen: Chosen, depth: Depth) -> Chosen:
    """A policy with the request's own signal or bounds. Recorded policies name files of the server: refused."""
    policy = chosen.policy
    if depth.policy is not None:
        if depth.policy.strip().startswith("replay"):
            raise bad("depth.policy 'replay:' is not available over HTTP: use a signal or depth=N", "depth.policy")
        policy = _parsed(depth.policy)
    low, high = depth.min, depth.max
    if low is not None and high is not None and low > high:
        raise bad(f"depth.min {low} is above depth.max {high}: lower it", "depth.min")
    if policy.signal is None:
        fixed = max(low or 1, min(policy.max_depth or 1, high or 1 << 30))
        policy = dataclasses.replace(policy, min_depth=fixed, max_depth=fixed)
    else:
        policy = dataclasses.replace(policy, min_depth=low or policy.min_depth, max_depth=high or policy.max_depth)
    return chosen if policy == chosen.policy else Chosen(CUSTOM, policy)


def _parsed(text: str) -> Policy:
    try:
        return Policy.parse(text)
    except InputError as error:
        raise bad(f"depth.policy: {error}", "depth.policy", "invalid_value") from None


def menu(
    checkpoint: Checkpoint, name: str, *, extra: Mapping[str, str] | None = None, default: str | None = None
) -> Menu:
    """The checkpoint's calibrated tiers, else uniform depths that promise nothing. `extra` replaces some or adds
    others, which no effort means because nobody knows their place."""
    reference = max(1, min(checkpoint.config.max_depth, round(checkpoint.config.mean_depth)))
    found = checkpoint.tiers
    tiers = parse_tiers(found, "tiers.json") if found is not None else uniform(reference)
    ladder = list(tiers)
    for title, policy in (extra or {}).items():
        tiers[title] = Tier(name=title, policy=Policy.parse(policy))
    for title in tiers:
        if not title or any(character in title for character in ': "\\\n'):
            raise InputError(f"tier name '{title}' is empty or holds a space, quote or colon: choose another")
    return Menu(name, tiers, reference=reference, default=default, ladder=ladder)


def uniform(reference: int) -> dict[str, Tier]:
    """Tiers of a checkpoint that nobody calibrated: half, three quarters and all of its usual depth."""
    shares = {"economy": 0.5, "balanced": 0.75, "full": 1.0}
    depths = {name: max(1, round(reference * share)) for name, share in shares.items()}
    return {name: Tier(name=name, policy=Policy.parse(f"depth={depth}")) for name, depth in depths.items()}
