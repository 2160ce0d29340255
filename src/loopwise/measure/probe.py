"""A2: a linear probe on states that predicts whether the model's first choice will still change.

Oracle labels come from the model itself: at depth i a token is positive if the argmax at some later depth up to the
reference depth differs from the argmax at i. One logistic regression per depth (or one for all, `pooled`) is fitted on
documents that evaluation never sees. Quality is judged on those: area under the ROC curve, Brier score, and expected
calibration error (ECE) over ten equal-width bins.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score
from torch import Tensor

from loopwise.config import InputError
from loopwise.exit.signals import Probe
from loopwise.measure.trace import Trace, check_depth, passes
from loopwise.measure.windows import Windows
from loopwise.model.recurrent import RecurrentLM
from loopwise.records import write_bytes

MIN_TOKENS = 512
BINS = 10
SURE = 20.0  # logit of a depth whose labels are all alike: no regression can be fitted, the answer is known


class Labelled(NamedTuple):
    """States of every token after passes 1..depth - 1, and whether the argmax still changes up to `depth`."""

    states: Float[Tensor, "depths tokens d"]
    changes: Bool[np.ndarray, "depths tokens"]


def will_change(top1: Int[np.ndarray, "depth tokens"]) -> Bool[np.ndarray, "depths tokens"]:
    """Oracle labels for all depths but the last: does the first choice at any later depth differ from this one?"""
    moved = top1[1:] != top1[:-1]  # the first later choice that differs is a change between neighbours
    return np.logical_or.accumulate(moved[::-1], axis=0)[::-1]


@torch.inference_mode()
def label(model: RecurrentLM, windows: Windows, depth: int) -> Labelled:
    """Run `depth` passes over training windows; keep states and labels. Memory: depth x tokens x d values."""
    check_depth("reference-depth", depth, model)
    states = torch.empty(depth - 1, windows.num_tokens, model.config.d_model)
    top1 = np.empty((depth, windows.num_tokens), dtype=np.int64)
    for batch in windows.batches(1024, model.embedding.weight.device):
        for i, state, _, _, ctx in passes(model, batch.tokens, depth):
            logits = model.logits(model.hidden(state, ctx)[batch.valid])
            top1[i - 1, batch.rows] = logits.argmax(-1).cpu().numpy()
            if i < depth:
                states[i - 1, batch.rows] = state[batch.valid].float().cpu()
    return Labelled(states, will_change(top1))


def fit(found: Labelled, *, pooled: bool = False, strength: float = 1.0) -> Probe:
    """Fit the probe on standardised states; `strength` is scikit-learn's C (inverse L2 penalty).

    Fewer than `MIN_TOKENS` tokens, or a reference depth of 1, raise `InputError`.
    """
    depths, tokens = found.changes.shape
    if tokens < MIN_TOKENS:
        raise InputError(f"the probe has {tokens} training tokens: give at least {MIN_TOKENS} with --probe-text")
    if depths < 1:
        raise InputError("the probe needs a reference depth of at least 2: raise --reference-depth")
    flat = found.states.flatten(0, 1)
    mean, scale = flat.mean(0), flat.std(0).clamp_min(1e-6)
    parts = [(flat, found.changes.ravel())] if pooled else list(zip(found.states, found.changes, strict=True))
    rows = [_regress(((x - mean) / scale).numpy(), y, strength) for x, y in parts]
    weight = torch.tensor(np.stack([w for w, _ in rows]), dtype=torch.float32)
    bias = torch.tensor([b for _, b in rows], dtype=torch.float32)
    return Probe(weight=weight, bias=bias, mean=mean, scale=scale)


def _regress(x: np.ndarray, y: np.ndarray, strength: float) -> tuple[np.ndarray, float]:
    if y.all() or not y.any():
        return np.zeros(x.shape[1]), SURE if y.all() else -SURE
    found = LogisticRegression(C=strength, max_iter=200, tol=1e-3).fit(x, y)
    return found.coef_[0], float(found.intercept_[0])


def judge(found: Trace, depth: int) -> dict[str, Any]:
    """Quality of the recorded probe on evaluation tokens, by depth and pooled: share of positives, AUC (None where
    all labels are alike), Brier score and ECE."""
    labels = will_change(found.columns["top1"][:depth])
    values = found.columns["probe"][: depth - 1]
    by_depth = {str(i + 1): score(labels[i], values[i]) for i in range(depth - 1)}
    return {"depth": depth, "pooled": score(labels.ravel(), values.ravel()), "by_depth": by_depth}


def score(labels: Bool[np.ndarray, "tokens"], values: Float[np.ndarray, "tokens"]) -> dict[str, float | None]:
    """AUC, Brier score and ECE of probabilities against labels."""
    mixed = labels.any() and not labels.all()
    return {
        "positive": float(labels.mean()),
        "auc": float(roc_auc_score(labels, values)) if mixed else None,
        "brier": float(brier_score_loss(labels, values.astype(np.float64), pos_label=True)),
        "ece": calibration_error(labels, values),
    }


def calibration_error(labels: Bool[np.ndarray, "tokens"], values: Float[np.ndarray, "tokens"]) -> float:
    """Mean over equal-width bins, weighted by their tokens, of |mean probability - share of positives|."""
    place = np.minimum((values * BINS).astype(int), BINS - 1)
    gap = np.bincount(place, weights=values.astype(np.float64) - labels, minlength=BINS)
    return float(np.abs(gap).sum() / len(labels))


def save_probe(path: Path, probe: Probe, *, about: dict[str, str]) -> Path:
    """Write `probe.safetensors` atomically; `about` says what it was trained on. `Checkpoint.probe` reads it."""
    temporary = path.with_name(f".{path.name}.writing")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_file({n: t.contiguous() for n, t in probe._asdict().items() if t is not None}, temporary, metadata=about)
        write_bytes(path, temporary.read_bytes())
    finally:
        temporary.unlink(missing_ok=True)
    return path
