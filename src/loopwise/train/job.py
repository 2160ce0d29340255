"""One training run as the trainer takes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loopwise.model.recurrent import RecurrentLM
from loopwise.train.config import Recipe
from loopwise.train.validate import Batches, HeldOut

Weigh = Callable[[torch.Tensor], torch.Tensor]  # windows to the loss weight of each of their tokens


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: what (recipe, data), where (out) and for how long (recipe.train.tokens and, if given, minutes).

    `fingerprint` names the data (shard hashes, tokenizer) and is compared on resume; `manifest` goes into the finished
    checkpoint. `sample`, if given, writes text with the model at each validation.
    """

    recipe: Recipe
    batches: Batches
    held_out: Mapping[str, HeldOut]
    out: Path
    tokenizer: Path | None = None
    fingerprint: Mapping[str, Any]
    manifest: Mapping[str, Any]
    weigh: Weigh | None = None
    minutes: float | None = None
    resume: bool = False
    quiet: bool = False
    sample: Callable[[RecurrentLM], str] | None = None
