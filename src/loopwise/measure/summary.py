"""The measurement record: everything `loopwise measure` says about a trace, JSON-ready (fields: docs/measure.md)."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from loopwise.data.tokenizer import Tokenizer
from loopwise.measure.convergence import EPSILON, LATENT_EPSILON, contraction, convergence_depth, describe
from loopwise.measure.stats import DRAWS, draw_weights, mean_intervals
from loopwise.measure.trace import Trace
from loopwise.measure.types import by_type, token_types
from loopwise.measure.windows import groups

MEANS = {  # name of the curve in the record: column
    "kl": "kl",
    "kl_prev": "kl_prev",
    "entropy": "entropy",
    "margin": "margin",
    "state_change": "rel_change",
    "cosine": "cosine",
    "accel": "accel",
}
USEFUL = 0.01  # nats: the useful depth is the first fixed depth within this of the best one


def summarise(
    found: Trace,
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    mean_depth: float,
    epsilon: float = EPSILON,
    latent_epsilon: float = LATENT_EPSILON,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Any]:
    """Loss, change, convergence and token types of one trace. `mean_depth` is the training mean."""
    group, kind = groups(found.index)
    weights = draw_weights(int(group.max()) + 1, draws=draws, seed=seed)
    record: dict[str, Any] = {
        "tokens": found.num_tokens,
        "documents": int(found.index["document"].max()) + 1,
        "windows": int(found.index["window"].max()) + 1,
        "max_depth": found.max_depth,
        "mean_depth": mean_depth,
        "ci_over": kind,
        "num_groups": weights.shape[1],
    }
    record |= curves("loss", found.columns["nll"], group, weights)
    right = np.stack([found.correct(d) for d in range(1, found.max_depth + 1)])
    record |= curves("accuracy", right, group, weights)
    for name, column in MEANS.items():
        if column in found.columns:
            record |= curves(name, found.columns[column], group, weights)
    record["saturation"] = saturation(found.columns["nll"], round(mean_depth))
    output = convergence_depth(found.columns["kl"], epsilon)
    latent = convergence_depth(found.columns["rel_change"], latent_epsilon)
    record["convergence"] = describe(output, found.max_depth, epsilon)
    record["latent_convergence"] = describe(latent, found.max_depth, latent_epsilon)
    change = {int(d): v for d, v in record["state_change_by_depth"].items()}
    record["contraction"] = contraction(change, min(round(mean_depth), found.max_depth))
    loss = list(found.columns["nll"])
    for field, tokens, before in _kinds(found, tokenizer):
        kinds = token_types(tokens, before, tokenizer, vocab_size)
        record[field] = by_type(kinds, output, loss, group, weights, found.max_depth)
    return record


def curves(
    name: str,
    values: Float[np.ndarray, "depth tokens"] | np.ndarray,
    group: Int[np.ndarray, "tokens"],
    weights: Int[np.ndarray, "draws groups"],
) -> dict[str, dict[str, Any]]:
    """`NAME_by_depth` and `NAME_ci_by_depth`, for the depths at which every value is defined."""
    depths = [d for d in range(1, len(values) + 1) if np.isfinite(values[d - 1]).all()]
    found = mean_intervals(np.stack([values[d - 1] for d in depths]).astype(np.float32), group, weights)
    return {
        f"{name}_by_depth": {str(d): i.value for d, i in zip(depths, found, strict=True)},
        f"{name}_ci_by_depth": {str(d): i.ends for d, i in zip(depths, found, strict=True)},
    }


def saturation(nll: Float[np.ndarray, "depth tokens"], reference: int) -> dict[str, Any]:
    """The best fixed depth, the useful depth (first within `USEFUL` nats of it), and how the loss moves from the
    training mean to the last depth."""
    loss = nll.mean(axis=1, dtype=np.float64)
    best, reference = int(loss.argmin()), min(reference, len(loss))
    return {
        "best_depth": best + 1,
        "best_loss": float(loss[best]),
        "useful_depth": int((loss <= loss[best] + USEFUL).argmax()) + 1,
        "useful_within": USEFUL,
        "reference_depth": reference,
        "change_to_last": float(loss[-1] - loss[reference - 1]),
    }


def _kinds(found: Trace, tokenizer: Tokenizer) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Type by the token that is predicted, and by the token that is read; each with the token before it."""
    token, target, first = found.index["token"], found.index["target"], found.index["position"] == 0
    before = np.where(first, tokenizer.eos_id, np.roll(token, 1))
    return [("by_type", target, token), ("by_input_type", token, before)]
