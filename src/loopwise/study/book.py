"""All records of a study in one place, as the verdicts and the report read them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Json = dict[str, Any]


class Pair(NamedTuple):
    """The records of one checkpoint on one corpus, by stage."""

    checkpoint: str
    corpus: str
    records: Mapping[str, Json]

    @property
    def name(self) -> str:
        """How a table names it."""
        return f"{self.checkpoint} on {self.corpus}"


class Book(NamedTuple):
    """Records of every pair, of every checkpoint, and of the study as a whole; `missing` says in one sentence each
    which inputs were not there."""

    pairs: list[Pair]
    checkpoints: Mapping[str, Json]
    whole: Mapping[str, Json]
    missing: Mapping[str, str]
    settings: Mapping[str, Any]

    def having(self, stage: str) -> list[Pair]:
        """The pairs that have a stage's record."""
        return [pair for pair in self.pairs if stage in pair.records]


def policy(record: Json, name: str, mode: str) -> Json | None:
    """The row of a policy in an allocation record."""
    found = (p for p in record["policies"] if p["mode"] == mode and name in (p["name"], p["signal"]))
    return next(found, None)


def matched(record: Json, name: str, mode: str) -> Json | None:
    """Where a policy matches the reference's quality, or None."""
    row = policy(record, name, mode)
    return row["matched"] if row else None
