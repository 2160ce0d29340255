"""What the study reported: one row per quantity, kept as data beside the code."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One published quantity: where it belongs, in words, and the numbers in it."""

    id: str
    section: str
    quantity: str
    text: str
    values: Mapping[str, Any]


class Published(NamedTuple):
    """The study: its title, where it is to be found, how it was made, and its rows in order."""

    title: str
    source: str
    setting: str
    rows: Sequence[Row]

    def row(self, name: str) -> Row:
        """A row by its id."""
        return next(row for row in self.rows if row.id == name)


def published() -> Published:
    """Read the data file."""
    found = json.loads((resources.files("loopwise.study") / "published.json").read_text("utf-8"))
    return Published(found["title"], found["source"], found["setting"], [Row(**row) for row in found["rows"]])
