"""Depth against known difficulty: puzzles whose answers need k sequential steps (`data/puzzles.py`).

For each kind and k: how often the answer's deciding token is ranked first at each fixed depth, and where that token's
output converges. If depth is what the model thinks with, accuracy rises with depth, later for larger k.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from loopwise.data.puzzles import HELD_OUT_SEED, Label, labelled_tokens, puzzles
from loopwise.data.tokenizer import Tokenizer
from loopwise.measure.convergence import convergence_depth
from loopwise.measure.stats import draw_weights, mean_intervals
from loopwise.measure.trace import Trace
from loopwise.measure.windows import Windows, pack

MIN_ANSWERS = 20  # fewer answers of one difficulty make no row


class Answers(NamedTuple):
    """Puzzles as windows, and for each answer: its row in the columns, its kind, k, and the puzzle it belongs to."""

    windows: Windows
    rows: Int[np.ndarray, "answers"]
    labels: list[Label]


def make_answers(
    tokenizer: Tokenizer, count: int, *, context: int, max_difficulty: int = 8, kind: str = "chain"
) -> Answers:
    """`count` held-out puzzles of one kind. They start without an end-of-document token, as in training."""
    found = list(puzzles(HELD_OUT_SEED, count, max_difficulty=max_difficulty, kinds=(kind,)))
    windows = pack(tokenizer, (p.text for p in found), context=context, lead=False)
    start = np.searchsorted(windows.index["document"], np.arange(count))
    labels = [label for label in labelled_tokens(tokenizer, found) if label.token > 0]
    rows = np.array([start[label.puzzle] + label.token - 1 for label in labels], dtype=np.int64)
    return Answers(windows, rows, labels)


def by_difficulty(found: Trace, answers: Answers, *, epsilon: float, draws: int, seed: int) -> list[dict[str, Any]]:
    """One JSON-ready row per kind and k, intervals over puzzles."""
    settled = convergence_depth(found.columns["kl"][:, answers.rows], epsilon)
    right = found.columns["top1"][:, answers.rows] == found.index["target"][answers.rows]
    puzzle = np.array([label.puzzle for label in answers.labels])
    table = []
    for kind, k in sorted({(label.kind, label.difficulty) for label in answers.labels}):
        mine = np.array([label.kind == kind and label.difficulty == k for label in answers.labels])
        if mine.sum() < MIN_ANSWERS:
            continue
        group = np.unique(puzzle[mine], return_inverse=True)[1]
        weights = draw_weights(int(group.max()) + 1, draws=draws, seed=seed)
        *accuracy, depth = mean_intervals(np.concatenate([right[:, mine], settled[None, mine]]), group, weights)
        table.append({
            "kind": kind,
            "k": k,
            "count": int(mine.sum()),
            "accuracy_by_depth": {str(d): round(a.value, 6) for d, a in enumerate(accuracy, 1)},
            "accuracy_ci_by_depth": {str(d): a.ends for d, a in enumerate(accuracy, 1)},
            "depth": depth.value,
            "depth_ci": depth.ends,
        })  # fmt: skip
    return table
