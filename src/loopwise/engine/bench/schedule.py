"""Exit depths to replay, so that schedulers are compared on identical work."""

from collections.abc import Sequence

import numpy as np

from loopwise.exit.policy import Policy

# Shares of exit depths with the study's mean of 4.94 of 8 passes, a median of 5 and 14% that go to the end.
STUDY = {2: 12, 3: 15, 4: 17, 5: 17, 6: 15, 7: 10, 8: 14}
STUDY_MEAN = 4.94
DEEPEST = 8


def depths(count: int, seed: int, shares: dict[int, int] = STUDY) -> tuple[int, ...]:
    """`count` depths: shuffles of all shares, one after the other, so that every run of them has their mean."""
    deck = np.repeat(list(shares), list(shares.values()))
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([rng.permutation(deck) for _ in range(-(-count // len(deck)))])
    return tuple(drawn[:count].tolist())


def replay(count: int, seed: int, shares: dict[int, int] = STUDY) -> Policy:
    """A policy that plays `depths` back."""
    return Policy(recorded=depths(count, seed, shares), max_depth=max(shares))


def recorded(depths: Sequence[int], count: int, seed: int) -> Policy:
    """A policy that plays `count` of the recorded depths back, from a place that depends on the seed, round and
    round."""
    start = seed * 997
    return Policy(recorded=tuple(depths[(start + n) % len(depths)] for n in range(count)), max_depth=max(depths))
