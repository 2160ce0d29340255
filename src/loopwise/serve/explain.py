"""What a text looks like from inside: exit signals of its tokens at every depth, for the playground's hover."""

import asyncio
import math
from typing import Any

import numpy as np

from loopwise.config import InputError
from loopwise.data.tokenizer import Tokenizer
from loopwise.engine.engine import Engine
from loopwise.measure.trace import trace
from loopwise.measure.windows import Windows
from loopwise.serve.errors import unavailable

SIGNALS = ("rel_change", "kl")
MOST = 16  # texts that wait; the playground asks for one at a time


class Explainer:
    """Traces one text at a time in a worker thread, beside the engine. All positions run at uniform depth, so values
    can differ a little from those of a decode in which earlier tokens left early."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine, self._tokenizer, self._one, self._asked = engine, tokenizer, asyncio.Lock(), 0

    async def explain(self, tokens: list[int], last: int) -> dict[str, Any]:
        """Signals and first choices for the `last` tokens at depths 1 to the engine's maximum. 503 if many wait."""
        vocab = self._engine.model.config.vocab_size
        if not 2 <= len(tokens) <= self._engine.context:
            raise InputError(f"tokens holds {len(tokens)} ids: give 2 to {self._engine.context}")
        if max(tokens) >= vocab:
            raise InputError(f"token id {max(tokens)} is out of range: use 0 to {vocab - 1}")
        if self._asked >= MOST:
            raise unavailable("too many texts are being traced: try again shortly", "overloaded")
        self._asked += 1
        try:
            async with self._one:
                return await asyncio.to_thread(self._run, tokens, last)
        finally:
            self._asked -= 1

    def _run(self, tokens: list[int], last: int) -> dict[str, Any]:
        ids = [np.array(tokens, dtype=np.int32)]
        windows = Windows(ids=ids, document=np.arange(1), hashes=["0"], context=len(tokens))
        depth = self._engine.max_depth
        found = trace(self._engine.model, windows, max_depth=depth, signals=SIGNALS)
        kept = slice(max(0, found.num_tokens - last), None)
        columns = {name: found.columns[name][:, kept].T.tolist() for name in SIGNALS}
        top = found.columns["top1"][:, kept].T.tolist()
        return {
            "depths": list(range(1, depth + 1)),
            "signals": {name: [[_number(v) for v in row] for row in rows] for name, rows in columns.items()},
            "choices": [[self._tokenizer.token_text(int(i)) for i in row] for row in top],
        }


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
