"""The exit criteria of Huginn's own code, as its stored runs used them (not our signals: see `exit/signals.py`).

A criterion compares consecutive readouts or states of rows: `start(state, vocab)` is its first reference, `value(now,
before)` the number, `leaves(value)` the test.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Criterion(NamedTuple):
    """`reads` the `logits` or the `state`; `view` turns that into what is compared and remembered."""

    reads: str
    view: Callable[[Tensor], Tensor]
    start: Callable[[Tensor, int], Tensor]
    value: Callable[[Tensor, Tensor], Tensor]
    threshold: float
    margin: float  # closer than this to the threshold, exit steps are noise (see the golden files' README)


def _uniform(state: Tensor, vocab: int) -> Tensor:
    return torch.full((*state.shape[:-1], vocab), 1 / vocab).log()


def _kl(now: Tensor, before: Tensor) -> Tensor:
    """KL(before || now)."""
    return (before.exp() * (before - now)).sum(-1)


def _min_p(logits: Tensor) -> Tensor:
    """Log-probabilities with everything under a tenth of the likeliest replaced by 1/vocabulary, renormalised."""
    probs = logits.softmax(-1)
    small = probs < 0.1 * probs.amax(-1, keepdim=True)
    probs = torch.where(small, 1 / logits.shape[-1], probs)
    return (probs / probs.sum(-1, keepdim=True)).log()


def _entropy(logits: Tensor) -> Tensor:
    probs = logits.softmax(-1)
    return -(probs * (probs + 1e-10).log()).sum(-1)


def _cosine(now: Tensor, before: Tensor) -> Tensor:
    return 1 - (now * before).sum(-1) / now.norm(dim=-1) / before.norm(dim=-1)


CRITERIA: dict[str, Criterion] = {
    "kl": Criterion("logits", lambda x: x.log_softmax(-1), _uniform, _kl, 1e-3, 5e-6),
    "minp-kl": Criterion("logits", _min_p, _uniform, _kl, 1e-5, 1e-6),
    "entropy-diff": Criterion(
        "logits", _entropy, lambda s, v: torch.full(s.shape[:-1], 100.0), lambda a, b: (a - b).abs(), 1e-3, 1e-5
    ),
    "argmax-stability": Criterion(
        "logits", lambda x: x.argmax(-1), lambda s, v: torch.full(s.shape[:-1], -1), lambda a, b: (a == b).float(), 5, 0
    ),
    "latent-diff": Criterion(
        "state", lambda x: x, lambda s, v: s, lambda a, b: (a - b).norm(dim=-1) / a.norm(dim=-1), 0.03, 5e-5
    ),
    "cosine": Criterion("state", lambda x: x, lambda s, v: s, _cosine, 1e-3, 1e-6),
}


class Watch:
    """A criterion at work on rows `[batch, time]`: `check(state, logits)` gives values and whether rows leave.

    With `whole`, rows of one sequence are judged together: readouts by the last row, states by their mean value.
    """

    def __init__(self, name: str, state: Tensor, vocab: int, *, whole: bool = False) -> None:
        self.name, self.kind, self.whole = name, CRITERIA[name], whole
        rows = state[:, -1:] if whole and self.kind.reads == "logits" else state
        self.before = self.kind.start(rows, vocab)
        self.length = torch.zeros(rows.shape[:-1])

    def check(self, state: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Value and exit mask, `[batch, time]` (`[batch, 1]` with `whole`)."""
        seen = logits if self.kind.reads == "logits" else state
        assert seen is not None
        if self.whole and self.kind.reads == "logits":
            seen = seen[:, -1:]
        now = self.kind.view(seen)
        value, self.before = self.kind.value(now, self.before), now
        if self.name == "argmax-stability":
            self.length = value = torch.where(value.bool(), self.length + 1, torch.zeros_like(self.length))
            return value, value >= self.kind.threshold
        value = value.mean(1, keepdim=True) if self.whole else value
        return value, value < self.kind.threshold
