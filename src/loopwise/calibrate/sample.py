"""The calibration sample: documents in a fixed order, split into scouts and those that the promise rests on.

*Scouts* (a fifth) may be looked at as one likes: they say which thresholds are worth testing. The promise uses the
other documents only, so nothing that was chosen on the scouts weakens it. Order and split follow the documents'
hashes, which know nothing of losses.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, Shaped

from loopwise.measure.replay import Outcome
from loopwise.measure.trace import Trace
from loopwise.measure.windows import Windows
from loopwise.records import sha256

Risk = Literal["loss", "disagreement"]
MOST: dict[Risk, float] = {"loss": math.inf, "disagreement": 1.0}  # the largest value of each risk
SCOUTS = 0.2


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Windows of some documents with the trace of exactly those windows."""

    windows: Windows
    found: Trace
    reference: int

    @cached_property
    def counts(self) -> Float[np.ndarray, "documents"]:
        """Tokens of each document."""
        return np.bincount(self.found.index["document"]).astype(np.float64)

    def means(self, values: Shaped[np.ndarray, "tokens"]) -> Float[np.ndarray, "documents"]:
        """Mean over the tokens of each document."""
        return np.bincount(self.found.index["document"], weights=values.astype(np.float64)) / self.counts

    def losses(self, outcome: Outcome, risk: Risk) -> Float[np.ndarray, "documents"]:
        """What each document loses against the reference depth: nats per token, or share of first choices changed."""
        if risk == "disagreement":
            return self.means(outcome.top1 != self.found.columns["top1"][self.reference - 1])
        return self.means(outcome.nll.astype(np.float64) - self.found.columns["nll"][self.reference - 1])

    def part(self, documents: Int[np.ndarray, "chosen"]) -> "Sample":
        """Some of the documents, in the order given (windows of a document keep theirs)."""
        place = np.full(len(self.windows.hashes), -1)
        place[documents] = np.arange(len(documents))
        chosen = np.flatnonzero(place[self.windows.document] >= 0)
        chosen = chosen[np.argsort(place[self.windows.document[chosen]], kind="stable")]
        starts, lengths = self.windows.offsets.tolist(), self.windows.lengths.tolist()
        rows = np.concatenate([starts[w] + np.arange(lengths[w]) for w in chosen])
        found = self.found.rows(rows)
        found.index["document"] = place[found.index["document"]].astype(np.int32)
        windows = Windows(
            ids=[self.windows.ids[w] for w in chosen],
            document=place[self.windows.document[chosen]],
            hashes=[self.windows.hashes[d] for d in documents],
            context=self.windows.context,
        )
        return Sample(windows=windows, found=found, reference=self.reference)

    def split(self) -> tuple["Sample", "Sample"]:
        """Scouts and the rest."""
        keys = [sha256(f"loopwise.calibrate/{name}".encode()) for name in self.windows.hashes]
        order = np.array(sorted(range(len(keys)), key=lambda d: (keys[d], d)))
        count = scouts(len(order))
        return self.part(order[:count]), self.part(order[count:])


def scouts(documents: int) -> int:
    """How many of so many documents are scouts."""
    return max(1, round(SCOUTS * documents))


def documents_for(tested: int) -> int:
    """Fewest documents that leave `tested` of them after the scouts."""
    total = tested
    while total - scouts(total) < tested:
        total += 1
    return total
