"""Stages that belong to the study as a whole, not to one checkpoint on one corpus."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loopwise.checkpoint.native import Checkpoint
from loopwise.config import InputError
from loopwise.records import read_json
from loopwise.store import Store
from loopwise.study import joint
from loopwise.study.settings import Settings
from loopwise.study.subject import Corpus, Tell
from loopwise.train.saturation import pooled

Json = dict[str, Any]


def train_arms(checkpoint: Checkpoint, corpora: Sequence[Corpus], settings: Settings, store: Store, tell: Tell) -> Json:
    """Small models trained here; see `joint`."""
    training = [source for corpus in corpora for source in corpus.training]
    held = [source for corpus in corpora for source in corpus.sources]
    parts = {
        "version": joint.VERSION,
        "weights": checkpoint.digest,
        "training": [Path(source).name for source in training],
        "tokens": settings.train_tokens,
        "seeds": settings.seeds,
        "tolerance": settings.tolerance,
    }
    return store.get("joint", parts, lambda: joint.joint(
        checkpoint, training, held, tokens=settings.train_tokens, seeds=settings.seeds, tolerance=settings.tolerance,
        tell=tell))  # fmt: skip


def sweep(folder: Path | None) -> Json:
    """Where loss saturates against sampler and training mean, from the records of `loopwise train --sweep` (see
    `train.saturation.pooled`). Raises `InputError` if there is no such record."""
    files = sorted(folder.glob("saturation/*.json")) if folder else []
    runs = [row for path in files for row in read_json(path)["rows"]]
    if not runs:
        raise InputError(
            "No sweep over training means was found (benchmarks/results/saturation): run 'make saturation'."
        )
    return {"rows": pooled(runs), "runs": len(runs), "files": [path.name for path in files]}
