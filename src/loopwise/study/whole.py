"""Stages that belong to the study as a whole, not to one checkpoint on one corpus."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loopwise.checkpoint.native import Checkpoint
from loopwise.config import InputError
from loopwise.records import read_json
from loopwise.store import Store
from loopwise.study import joint
from loopwise.study.settings import Settings
from loopwise.study.subject import Corpus, Tell

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
    """Where loss saturates against the training mean, from the records of `loopwise train --sweep`, seeds pooled.

    The depth of a mean and source is the mean over its runs, its interval the widest of theirs: with few seeds the
    spread over seeds is part of the answer. Raises `InputError` if there is no such record.
    """
    files = sorted(folder.glob("saturation/*.json")) if folder else []
    groups: dict[tuple[float, str], list[Json]] = {}
    for path in files:
        found = read_json(path)
        for row in found.get("rows", []):
            if row.get("depth", {}).get("kind", "lognormal") == "lognormal":
                for source, one in row.get("saturation", {}).items():
                    groups.setdefault((float(row["depth"]["mean"]), source), []).append(
                        {**one, "seed": row.get("seed")}
                    )
    if not groups:
        raise InputError(
            "No sweep over training means was found (benchmarks/results/saturation): run 'make saturation'."
        )
    rows = [
        {
            "mean": mean,
            "source": source,
            "runs": len(found),
            "depth": float(np.mean([one["depth"] for one in found])),
            "low": min(one["low"] for one in found),
            "high": max(one["high"] for one in found),
            "depths": [one["depth"] for one in found],
        }
        for (mean, source), found in sorted(groups.items())
    ]
    return {"rows": rows, "files": [path.name for path in files]}
