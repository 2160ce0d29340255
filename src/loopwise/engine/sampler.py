"""Choosing the next token of many rows at once. What a row gets is a function of its own logits, seed and position."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopwise.engine.readback import Readback
from loopwise.engine.request import Alternatives
from loopwise.sampling import SamplingParams, penalise, sample, uniform, upload


class Ask(NamedTuple):
    """What one row wants: its parameters, seed, prompt, output so far, the tokens allowed (None: all), and a token
    forced on it (or -1)."""

    params: SamplingParams
    seed: int
    prompt: Sequence[int]
    output: list[int]
    allowed: Tensor | None
    forced: int


def choose(logits: Float[Tensor, "rows vocab"], asks: Sequence[Ask]) -> Int[Tensor, "rows"]:
    """One token per row. All-greedy rows without adjustments cost one argmax. A mask that allows nothing allows all."""
    touched = [n for n, a in enumerate(asks) if a.allowed is not None or a.params.penalised or a.params.logit_bias]
    if touched:
        logits = logits.clone()
        for number in touched:
            logits[number] = _adjust(logits[number], asks[number])
    if all(ask.params.temperature == 0 for ask in asks):
        tokens = logits.argmax(-1)
    else:
        draws = [uniform(a.seed, len(a.prompt) + len(a.output)) if a.params.temperature else 0.0 for a in asks]
        tokens = sample(logits, [a.params for a in asks], draws)
    forced = [n for n, a in enumerate(asks) if a.forced >= 0]
    if forced:
        tokens[upload(forced, tokens.device)] = upload([asks[n].forced for n in forced], tokens.device)
    return tokens


def _adjust(row: Float[Tensor, "vocab"], ask: Ask) -> Float[Tensor, "vocab"]:
    if not ask.params.plain:
        row = penalise(row, ask.params, ask.prompt, ask.output)
    if ask.allowed is not None and bool(ask.allowed.any()):
        row = row.masked_fill(~ask.allowed.to(row.device), -torch.inf)
    return row


class Reading(NamedTuple):
    """Log-probability of the chosen token, and alternatives."""

    logprob: float
    top: Alternatives


class Readings:
    """Log-probabilities under the unprocessed logits for rows whose `wanted` number of alternatives is not None,
    computed now and read by `take`."""

    def __init__(
        self, logits: Float[Tensor, "rows vocab"], tokens: Int[Tensor, "rows"], wanted: Sequence[int | None]
    ) -> None:
        self.wanted = wanted
        self.rows = [n for n, count in enumerate(wanted) if count is not None]
        if not self.rows:
            return
        if len(self.rows) < len(wanted):
            index = upload(self.rows, logits.device)
            logits, tokens = logits.index_select(0, index), tokens.index_select(0, index)
        log_probs = logits.log_softmax(-1)
        most = min(max(wanted[n] or 0 for n in self.rows), log_probs.shape[1])
        self._back = Readback(log_probs.gather(1, tokens[:, None])[:, 0], *log_probs.topk(most))

    def take(self) -> list[Reading | None]:
        """One entry per row."""
        found: list[Reading | None] = [None] * len(self.wanted)
        if self.rows:
            for n, logprob, value, index in zip(self.rows, *self._back.take(), strict=True):
                count = self.wanted[n] or 0
                found[n] = Reading(logprob, tuple(zip(index[:count], value[:count], strict=True)))
        return found
