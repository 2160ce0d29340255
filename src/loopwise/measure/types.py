"""Token types, decided from the text of a token and of the one before it.

| type | a token that is |
|---|---|
| `whitespace` | blanks and line ends only |
| `digits` | digits, with or without a blank in front |
| `punctuation` | neither letters nor digits nor blanks, with or without a blank in front |
| `word_start` | has letters and begins a word: a blank in front, or no letter right before it |
| `word_continuation` | has letters and goes on with the word of the token before (`ing`, `'s`) |
| `other` | special tokens, bytes that are no text alone, letters mixed with digits |
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from loopwise.data.tokenizer import Tokenizer
from loopwise.measure.stats import histogram_quantile, percentile

TYPES = ("whitespace", "punctuation", "digits", "word_start", "word_continuation", "other")
APOSTROPHES = "'’"
_WORD = -1  # a word token: start or continuation depends on what precedes it


def token_types(
    tokens: Int[np.ndarray, "tokens"], before: Int[np.ndarray, "tokens"], tokenizer: Tokenizer, vocab_size: int
) -> Int[np.ndarray, "tokens"]:
    """Number of each token's type in `TYPES`; `before` holds the token that precedes each one in the text."""
    kinds, starts, ends = _vocabulary(tokenizer, vocab_size)
    found = kinds[tokens]
    continues = starts[tokens] & ends[before]
    start, rest = TYPES.index("word_start"), TYPES.index("word_continuation")
    return np.where(found == _WORD, np.where(continues, rest, start), found)


def _vocabulary(tokenizer: Tokenizer, vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each id: its kind, whether it begins with a letter, whether it ends with one."""
    kinds = np.full(vocab_size, TYPES.index("other"))
    starts, ends = np.zeros(vocab_size, dtype=bool), np.zeros(vocab_size, dtype=bool)
    for token in range(min(tokenizer.size, vocab_size)):
        text = _text(tokenizer.token_bytes(token))
        if text:
            kinds[token] = kind_of(text)
            starts[token], ends[token] = text[0].isalpha() or text[0] in APOSTROPHES, text[-1].isalpha()
    return kinds, starts, ends


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return ""


def kind_of(text: str) -> int:
    """Type of a token's text as a number in `TYPES`, or -1 for a word token."""
    core = text.strip()
    if not core:
        return TYPES.index("whitespace")
    if all(c.isdigit() for c in core):
        return TYPES.index("digits")
    letters, digits = any(c.isalpha() for c in core), any(c.isdigit() for c in core)
    if letters:
        return TYPES.index("other") if digits else _WORD
    return TYPES.index("other") if digits else TYPES.index("punctuation")


def by_type(
    kinds: Int[np.ndarray, "tokens"],
    depths: Int[np.ndarray, "tokens"],
    loss: Sequence[np.ndarray],
    group: Int[np.ndarray, "tokens"],
    weights: Int[np.ndarray, "draws groups"],
    max_depth: int,
) -> dict[str, Any]:
    """Count, share, mean and median convergence depth of each type, with intervals over groups; and its loss at each
    depth of `loss` (`[depth][tokens]`). Types without tokens are left out."""
    num_groups = weights.shape[1]
    flat = (group * len(TYPES) + kinds) * max_depth + depths - 1
    hist = np.bincount(flat, minlength=num_groups * len(TYPES) * max_depth)
    hist = hist.reshape(num_groups, len(TYPES), max_depth).astype(np.float64)
    drawn = np.tensordot(weights.astype(np.float64), hist, axes=1)
    return {
        name: _one_type(hist.sum(0), drawn, number) | {"loss_by_depth": _losses(loss, kinds == number)}
        for number, name in enumerate(TYPES)
        if hist[:, number].sum()
    }


def _one_type(hist: np.ndarray, drawn: np.ndarray, number: int) -> dict[str, Any]:
    scale = np.arange(1, hist.shape[1] + 1)
    total = drawn[:, number].sum(-1)
    means = np.divide(drawn[:, number] @ scale, total, where=total > 0, out=np.full(len(total), np.nan))
    shares = total / drawn.sum((1, 2))
    count = hist[number].sum()
    return {
        "count": int(count),
        "share": float(count / hist.sum()),
        "share_ci": percentile(shares).tolist(),
        "median": float(histogram_quantile(hist[number])),
        "median_ci": percentile(histogram_quantile(drawn[:, number])).tolist(),
        "mean": float(hist[number] @ scale / count),
        "mean_ci": percentile(means).tolist(),
        "histogram": {str(d): int(n) for d, n in zip(scale, hist[number], strict=True)},
    }


def _losses(loss: Sequence[np.ndarray], chosen: np.ndarray) -> dict[str, float]:
    return {str(d): round(float(row[chosen].mean()), 6) for d, row in enumerate(loss, 1)}
