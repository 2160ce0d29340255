"""Evaluation text as windows of token ids; documents stay apart, because confidence intervals resample documents.

A document becomes `EOS, tokens, EOS` (in training, too, a document follows the end of another one) and is cut into
windows of at most `context` predictions; neighbouring windows share one token, so that every token of the document,
and the EOS that ends it, is predicted exactly once. A window starts with an empty context. Windows of different
documents are never joined.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int

from loopwise.config import InputError
from loopwise.data.tokenizer import Tokenizer
from loopwise.records import sha256

POOL, POOL_DOCUMENTS = 8, 64  # with a token budget, this many times the budget and as many documents are read
MIN_GROUPS = 8  # with fewer documents, confidence intervals resample windows


class Batch:
    """Windows that run together: `tokens` and `targets` `[windows, time]` (right-padded with 0), `valid`, and `rows`,
    the place of each valid prediction in the columns of the whole text."""

    def __init__(self, windows: "Windows", chosen: np.ndarray, device: torch.device | str) -> None:
        lengths = windows.lengths[chosen]
        time = int(lengths.max())
        padded = np.zeros((len(chosen), time + 1), dtype=np.int64)
        for row, window in enumerate(chosen):
            padded[row, : lengths[row] + 1] = windows.ids[window]
        ids = torch.from_numpy(padded).to(device)
        mask = np.arange(time) < lengths[:, None]
        self.tokens, self.targets = ids[:, :-1], ids[:, 1:]
        self.valid = torch.from_numpy(mask).to(device)
        self.rows = (windows.offsets[chosen][:, None] + np.arange(time))[mask]
        self.windows = chosen


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows of one text in order. `ids[w]` holds the inputs of window w and, one further, its last target.

    `document[w]` numbers the documents 0, 1, ...; `hashes[document]` is the sha256 of a document's text.
    """

    ids: list[np.ndarray]
    document: np.ndarray
    hashes: list[str]
    context: int

    @cached_property
    def lengths(self) -> np.ndarray:
        """Predictions of each window."""
        return np.array([len(ids) - 1 for ids in self.ids], dtype=np.int64)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Place of each window's first prediction in the columns."""
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)

    @property
    def num_tokens(self) -> int:
        """Predictions in total."""
        return int(self.lengths.sum())

    @cached_property
    def digest(self) -> str:
        """sha256 of all ids, their windows and documents."""
        head = np.concatenate([self.lengths, self.document]).astype("<i8").tobytes()
        return sha256(head + np.concatenate(self.ids).astype("<i8").tobytes())

    @cached_property
    def index(self) -> dict[str, np.ndarray]:
        """Columns of one entry per prediction: `token` (input), `target`, `document`, `window`, `position`."""
        window = np.repeat(np.arange(len(self.ids)), self.lengths)
        return {
            "token": np.concatenate([ids[:-1] for ids in self.ids]).astype(np.int32),
            "target": np.concatenate([ids[1:] for ids in self.ids]).astype(np.int32),
            "document": self.document[window].astype(np.int32),
            "window": window.astype(np.int32),
            "position": (np.arange(self.num_tokens) - self.offsets[window]).astype(np.int32),
        }

    def batches(self, batch_tokens: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """All windows, longest first, in batches of at most `batch_tokens` padded positions (at least one window)."""
        order = np.argsort(-self.lengths, kind="stable")
        start = 0
        while start < len(order):
            count = max(1, batch_tokens // int(self.lengths[order[start]]))
            yield Batch(self, order[start : start + count], device)
            start += count

    def take(self, chosen: Int[np.ndarray, "windows"]) -> "Windows":
        """Some of the windows; documents are numbered anew."""
        documents, numbers = np.unique(self.document[chosen], return_inverse=True)
        hashes = [self.hashes[d] for d in documents]
        return Windows(ids=[self.ids[w] for w in chosen], document=numbers, hashes=hashes, context=self.context)


def groups(index: dict[str, np.ndarray]) -> tuple[np.ndarray, str]:
    """What confidence intervals resample: the number of each prediction's document, and the word `documents`; or, if
    there are fewer than `MIN_GROUPS` of them, its window and `windows`."""
    name = "document" if index["document"].max() + 1 >= MIN_GROUPS else "window"
    return np.unique(index[name], return_inverse=True)[1], name + "s"


def pack(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    context: int,
    max_tokens: int | None = None,
    exclude: frozenset[str] = frozenset(),
    lead: bool = True,
) -> Windows:
    """Tokenise documents and cut them into windows.

    With `max_tokens`, documents are read until `POOL` times that many tokens and `POOL_DOCUMENTS` documents are there
    (or the text ends), and windows are then taken from the documents in turn (all first windows, all second ones, ...),
    so that a budget covers many documents; the last window is cut to meet it. Documents whose hash is in `exclude` are
    left out. Without `lead` no EOS goes before a document, and its first token is not predicted. Text without a single
    document raises `InputError`.
    """
    pieces: list[list[np.ndarray]] = []
    hashes: list[str] = []
    read = 0
    for text in texts:
        digest = sha256(text.encode())
        if digest in exclude:
            continue
        ids = np.array([tokenizer.eos_id] * lead + tokenizer.encode_document(text), dtype=np.int32)
        cuts = [*range(0, len(ids) - 1, context), len(ids) - 1]
        pieces.append([ids[a : b + 1] for a, b in pairwise(cuts)])
        hashes.append(digest)
        read += len(ids) - 1
        if max_tokens is not None and read >= POOL * max_tokens and len(pieces) >= POOL_DOCUMENTS:
            break
    if not pieces:
        raise InputError("the text has no document to evaluate: give text with at least one document that is not blank")
    return _choose(pieces, hashes, context, read if max_tokens is None else max_tokens)


def _choose(pieces: list[list[np.ndarray]], hashes: list[str], context: int, budget: int) -> Windows:
    """Take windows in turn until `budget` predictions are there; keep them in the order of their documents."""
    turns = sorted((turn, d) for d, cut in enumerate(pieces) for turn in range(len(cut)))
    chosen: list[tuple[int, int, np.ndarray]] = []
    left = budget
    for turn, d in turns:
        if left <= 0:
            break
        ids = pieces[d][turn][: left + 1]
        chosen.append((d, turn, ids))
        left -= len(ids) - 1
    chosen.sort(key=lambda entry: entry[:2])
    documents, numbers = np.unique([d for d, _, _ in chosen], return_inverse=True)
    return Windows(
        ids=[ids for _, _, ids in chosen],
        document=numbers,
        hashes=[hashes[d] for d in documents],
        context=context,
    )


def require_length(windows: Windows, text: str) -> None:
    """Refuse text that does not fill a single window: statistics of it would mean nothing."""
    if windows.num_tokens < windows.context:
        raise InputError(
            f"text '{text}' has {windows.num_tokens} tokens, fewer than the context of {windows.context}: "
            "give more text, or lower --context"
        )
