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
from loopwise.train.saturation import over_runs

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
    """Where loss saturates against sampler and training mean, from the records of `loopwise train --sweep`.

    The depth of a group is the mean over its runs, its interval that of `train.saturation.over_runs`: runs and windows
    both resampled. `past` is the loss at the deepest pass less the best one. Raises `InputError` without such a record.
    """
    runs = [row for path in _sweeps(folder) for row in read_json(path).get("rows", [])]
    groups: dict[tuple[str, float, str], list[Json]] = {}
    for run in runs:
        for source, found in run.get("saturation", {}).items():
            groups.setdefault((run["depth"]["kind"], float(run["depth"]["mean"]), source), []).append(found)
    if not groups:
        raise InputError(
            "No sweep over training means was found (benchmarks/results/saturation): run 'make saturation'."
        )
    rows = []
    for (kind, mean, source), found in sorted(groups.items(), key=lambda group: group[0]):
        low, high = over_runs([one["draws"] for one in found])
        loss = np.mean([one["loss"] for one in found], axis=0)
        rows.append(
            {
                "sampler": kind,
                "mean": mean,
                "source": source,
                "runs": len(found),
                "low": low,
                "high": high,
                "depths": [one["depth"] for one in found],
                "depth": float(np.mean([one["depth"] for one in found])),
                "best": [float(f([one["best_loss"] for one in found])) for f in (np.mean, np.min, np.max)],
                "first": float(loss[0] - loss.min()),
                "past": float(loss[-1] - loss.min()),
            }
        )
    return {"rows": rows, "runs": len(runs), "files": [path.name for path in _sweeps(folder)]}


def _sweeps(folder: Path | None) -> list[Path]:
    return sorted(folder.glob("saturation/*.json")) if folder else []
