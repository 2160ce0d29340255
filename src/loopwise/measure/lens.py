"""A readable sample of a trace: text pieces with their curves, for the depth lens of the report."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loopwise.data.tokenizer import Tokenizer
from loopwise.measure.trace import Trace
from loopwise.measure.types import TYPES, token_types
from loopwise.records import write_arrays, write_json

SIGNALS = ("kl", "rel_change", "kl_prev", "accel", "cosine", "entropy", "margin", "probe")
PASSAGES = 4
PASSAGE_TOKENS = 256


class Lens(NamedTuple):
    """`words` is JSON-ready text; `arrays` are `[tokens, depth]` (entry [t, i] is depth i + 1)."""

    words: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def save(self, folder: Path) -> None:
        """Write `lens.json` and `lens.npz`."""
        write_json(folder / "lens.json", self.words)
        write_arrays(folder / "lens.npz", self.arrays)


def make_lens(
    found: Trace,
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    starts: dict[str, float],
    passages: int = PASSAGES,
    tokens: int = PASSAGE_TOKENS,
) -> Lens:
    """The beginning of a few documents, evenly over the text: the predicted tokens and what their readouts did.

    `starts` gives the threshold at which each signal's slider begins.
    """
    documents = np.unique(np.linspace(0, found.index["document"].max(), passages).round().astype(int))
    parts = [np.flatnonzero(found.index["document"] == d)[:tokens] for d in documents]
    rows = np.concatenate(parts)
    sample = found.rows(rows)
    target, token = sample.index["target"], sample.index["token"]
    kinds = token_types(target, token, tokenizer, vocab_size)
    ends = np.cumsum([len(p) for p in parts]).tolist()
    shown = {name: sample.columns[name].T for name in ("nll", *SIGNALS) if name in sample.columns}
    words = {
        "max_depth": found.max_depth,
        "pieces": [tokenizer.token_text(int(t)) for t in target],
        "types": [TYPES[k] for k in kinds],
        "passages": [
            {"title": _title(tokenizer, target[a:b], d), "start": a, "stop": b, "document": int(d)}
            for d, a, b in zip(documents.tolist(), [0, *ends], ends, strict=False)
        ],
        "starts": {name: value for name, value in starts.items() if name in shown},
    } | _guesses(sample.columns["top1"].T, tokenizer)
    arrays = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in shown.items()}
    return Lens(words, arrays)


def _guesses(top1: np.ndarray, tokenizer: Tokenizer) -> dict[str, Any]:
    """First choices: `guess[t]` lists [depth, piece number] where the choice changes; `guess_pieces` is the text."""
    ids, numbers = np.unique(top1, return_inverse=True)
    numbers = numbers.reshape(top1.shape)
    runs = [[[i + 1, int(n)] for i, n in enumerate(row) if i == 0 or n != row[i - 1]] for row in numbers]
    return {"guess": runs, "guess_pieces": [_piece(tokenizer, int(i)) for i in ids]}


def _piece(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_text(token) if token < tokenizer.size else f"<{token}>"


def _title(tokenizer: Tokenizer, tokens: np.ndarray, document: int) -> str:
    """First line of a passage, or its number."""
    lines = tokenizer.decode([int(t) for t in tokens[:32]]).strip().splitlines()
    return lines[0][:60] if lines and lines[0].strip() else f"document {document + 1}"
