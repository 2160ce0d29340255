"""What goes into a launch and what comes out of it, as tuples."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from loopwise.engine.paged import PagedPieces, PagedRows, Span
from loopwise.engine.readback import Readback
from loopwise.exit.policy import Policy
from loopwise.exit.rules import Rule
from loopwise.exit.signals import Signal


class Kind(NamedTuple):
    """What decides exits of a row: rows of one kind share a rule's step. Without a signal the host knows every exit."""

    rule: Rule
    signal: Signal | None

    @classmethod
    def of(cls, policy: Policy) -> "Kind":
        """The kind of a bound policy."""
        return cls(policy.rule(), policy.reads)


class Work(NamedTuple):
    """A prompt piece as the runner sees it: its place, its tokens, the position of the first, and recorded depths."""

    place: int
    tokens: Sequence[int]
    start: int
    depths: Sequence[int] | None = None
    all_logits: bool = False


class Prompts(NamedTuple):
    """Rows of a prompt launch: positions, the block of each (without plane), and rows and blocks of each piece."""

    positions: Tensor
    block: Tensor
    counts: list[int]
    spans: list[Span]

    @classmethod
    def of(cls, works: Sequence[Work], tables: Tensor, size: int) -> "Prompts":
        """The rows of these pieces; `tables` has the blocks of each place."""
        places = [torch.arange(w.start, w.start + len(w.tokens), device=tables.device) for w in works]
        own = [tables[w.place, : -(-(w.start + len(w.tokens)) // size)] for w in works]
        block = torch.cat([table[p // size] for p, table in zip(places, own, strict=True)])
        counts = [len(w.tokens) for w in works]
        return cls(torch.cat(places), block, counts, [Span(n, table) for n, table in zip(counts, own, strict=True)])


At = Callable[[Tensor | None, int, Tensor | None], PagedPieces | PagedRows]  # live rows (None: all), depth, turn


class Pass(NamedTuple):
    """One pass: the rows it was done on, which of them had left before (None: nobody asks), their depth after it, and
    their states before and after it."""

    index: Tensor
    gone: Tensor | None
    depth: Tensor
    before: Tensor
    state: Tensor

    def some(self, part: Tensor) -> "Pass":
        """The rows numbered `part`."""
        return Pass(*(None if t is None else t.index_select(0, part) for t in self))  # type: ignore[arg-type]


class Passed(NamedTuple):
    """What a core launch says about its rows: which leave for certain, and the verdicts of the signals of others
    (`asked`: which), on their way to the host."""

    leave: list[bool]
    asked: list[int]
    verdicts: Readback | None
