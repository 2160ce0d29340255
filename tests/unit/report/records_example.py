"""A run folder as `measure`, `allocate` and `demo` write it, small and made up."""

from pathlib import Path
from typing import Any

import numpy as np

from loopwise.records import write_arrays, write_json

DEPTHS = range(1, 9)
TYPES = ("whitespace", "digits", "word_start")


def by_depth(values: list[float], first: int = 1) -> dict[str, float]:
    return {str(d): v for d, v in enumerate(values, first)}


def measure() -> dict[str, Any]:
    loss = [3.0 + 2.0**-d for d in DEPTHS]
    counts = {str(d): n for d, n in zip(DEPTHS, (10, 30, 40, 30, 10, 5, 5, 0), strict=True)}
    settled = {
        "threshold": 1e-3,
        "median": 3.0,
        "mean": 3.2,
        "share_after": {"4": 0.15, "8": 0.0},
        "censored": 0.0,
        "histogram": counts,
    }
    row = {
        "count": 40,
        "share": 0.3,
        "share_ci": [0.2, 0.4],
        "median": 3.0,
        "median_ci": [2.0, 4.0],
        "mean": 3.1,
        "mean_ci": [3.0, 3.3],
        "histogram": counts,
    }
    change = [2.0**-d for d in DEPTHS][1:]
    right = {
        "kind": "chain",
        "k": 1,
        "count": 30,
        "accuracy_by_depth": by_depth([0.5] * 8),
        "accuracy_ci_by_depth": {str(d): [0.4, 0.6] for d in DEPTHS},
        "depth": 3.0,
        "depth_ci": [2.5, 3.5],
    }
    return {
        "checkpoint": "tiny",
        "text": ["factbook"],
        "tokens": 130,
        "documents": 9,
        "max_depth": 8,
        "mean_depth": 4.0,
        "ci_over": "documents",
        "num_groups": 9,
        "loss_by_depth": by_depth(loss),
        "loss_ci_by_depth": {str(d): [v - 0.1, v + 0.1] for d, v in enumerate(loss, 1)},
        "kl_by_depth": by_depth(change, 2),
        "kl_prev_by_depth": by_depth(change, 2),
        "state_change_by_depth": by_depth(change, 2),
        "contraction": {"rate": 0.5},
        "convergence": settled,
        "latent_convergence": settled,
        "by_type": dict.fromkeys(TYPES, row),
        "difficulty": [right, {**right, "k": 2}],
    }


def point(depth: float, loss: float, cost: float) -> dict[str, Any]:
    return {
        "threshold": 2.0**-depth,
        "mean_depth": depth,
        "loss": loss,
        "loss_ci": [loss - 0.1, loss + 0.1],
        "loss_increase": loss - 3.06,
        "agreement": 0.9,
        "cost_ratio": cost,
    }


def allocate() -> dict[str, Any]:
    matched = {
        "threshold": 0.125,
        "mean_depth": 3.0,
        "loss": 3.07,
        "saving": 0.25,
        "saving_ci": [0.2, 0.3],
        "cost_ratio": 1.2,
        "cost_ratio_ci": [1.1, 1.3],
        "saving_vs_best_fixed": 0.0,
        "saving_vs_best_fixed_ci": [-0.1, 0.1],
        "cost_ratio_vs_best_fixed": 1.4,
        "cost_ratio_vs_best_fixed_ci": [1.3, 1.5],
    }
    points = [point(d, 3.0 + 2.0**-d, d / 4) for d in (1.0, 2.0, 3.0, 4.0)]
    rows = [
        {
            "name": name,
            "label": None,
            "mode": mode,
            "signal": signal,
            "signal_cost": None,
            "tokens": 130,
            "points": points,
            "matched": None if name == "probe" else matched,
        }
        for name, signal in (("A0", None), ("kl", "kl"), ("rel_change", "rel_change"), ("probe", "probe"))
        for mode in ("replay", "live")
    ]
    return {
        "checkpoint": "tiny",
        "text": ["factbook"],
        "tokens": 130,
        "ci_over": "documents",
        "num_groups": 9,
        "reference_depth": 4,
        "reference_loss": 3.0625,
        "tolerance": 0.01,
        "layout": "depth_indexed",
        "policies": rows,
        "oracle": {"mean_depth": 2.0, "loss": 3.07, "points": [{"mean_depth": 1.5, "loss": 3.1}]},
        "best_fixed": {"depth": 3, "depth_ci": [3.0, 4.0], "loss": 3.07, "cost_ratio": 0.8},
        "probe": {},
    }


def manifest(**weights: str) -> dict[str, Any]:
    entry = {
        "command": "loopwise demo",
        "commit": "abc",
        "created": "2026-12-01T00:00:00+00:00",
        "seed": 0,
        "checkpoint": "tiny",
        "config": {"arguments": {"text": ["factbook"]}},
        "data_sha256": "12",
        "hardware": {"processor": "CPU", "cores": 2, "versions": {"torch": "2.13"}},
        "wall_s": 1.0,
    }
    runs = weights or {"measure": "w", "allocate": "w"}
    return {"schema": 1, "runs": {name: {**entry, "weights_sha256": w} for name, w in runs.items()}}


def write_run(folder: Path) -> Path:
    """Every record of a run."""
    pieces = [" a", "b", "\n", "</script>"]
    write_json(folder / "measure.json", measure())
    write_json(folder / "allocate.json", allocate())
    write_json(folder / "manifest.json", manifest())
    made = {"policy": "kl<0.1", "prompt": "x", "pieces": pieces, "depths": [1, 2, 3, 4], "readouts": 8, "max_depth": 8}
    write_json(folder / "sample.json", made)
    words = {
        "max_depth": 8,
        "pieces": pieces,
        "types": ["word_start"] * 4,
        "starts": {"kl": 0.1},
        "passages": [{"title": "p", "start": 0, "stop": 4}],
        "guess": [[[1, 0]]] * 4,
        "guess_pieces": [" a"],
    }
    write_json(folder / "lens.json", words)
    values = np.tile(2.0 ** -np.arange(1, 9), (4, 1)).astype(np.float32)
    write_arrays(folder / "lens.npz", {"kl": values, "nll": values, "cosine": values})
    return folder
