"""Which documents are held out, and the hash of a set of documents. Both depend on the text alone, not on its place."""

import hashlib
from collections.abc import Iterable
from typing import Literal

from loopwise.config import InputError

HOLDOUT = 0.05
Split = Literal["all", "train", "valid"]


def is_held_out(text: str, holdout: float = HOLDOUT) -> bool:
    """Whether a document belongs to validation: its hash, as a fraction of the hash range, is below `holdout`.

    A smaller `holdout` selects a subset of what a larger one selects.
    """
    return position(text) < holdout


def position(text: str) -> float:
    """The document's hash as a fraction of the hash range, in [0, 1)."""
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 11) / 2**53


def check_holdout(holdout: float) -> float:
    """Return `holdout` if it is a fraction in [0, 1), else raise `InputError`."""
    if not 0 <= holdout < 1:
        raise InputError(f"holdout is {holdout!r}: use a fraction of at least 0 and below 1")
    return holdout


def in_split(text: str, split: Split, holdout: float = HOLDOUT) -> bool:
    """Whether a document belongs to `split`."""
    return split == "all" or is_held_out(text, holdout) == (split == "valid")


class DocumentHash:
    """Running sha256 over documents in order; each is preceded by its length, so that boundaries count."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.documents = 0
        self.text_bytes = 0

    def add(self, text: str) -> None:
        """Add one document."""
        data = text.encode()
        self._hash.update(len(data).to_bytes(8))
        self._hash.update(data)
        self.documents += 1
        self.text_bytes += len(data)

    def hexdigest(self) -> str:
        """Hash of the documents so far."""
        return self._hash.hexdigest()


def documents_sha256(texts: Iterable[str]) -> str:
    """Hash of documents in order."""
    digest = DocumentHash()
    for text in texts:
        digest.add(text)
    return digest.hexdigest()
