"""The runner: executes launches on the one `RecurrentLM`. It knows rows, not requests; it never decides what runs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from loopwise.engine.graphs import Padded
from loopwise.engine.paged import PagedPieces, PagedRows, Span
from loopwise.engine.pool import KVPool
from loopwise.engine.readback import Readback, upload
from loopwise.engine.state import Rows
from loopwise.exit.policy import Policy
from loopwise.exit.rules import Rule
from loopwise.exit.signals import Look, Probe, Signal
from loopwise.model.recurrent import RecurrentLM


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


class Runner:
    """Owns the rows, the KV pool and two attention contexts.

    With `lag` 1 nobody waits for verdicts before the next launch. A row that had left may then be launched once more:
    such a pass is done on the row that belongs to nobody, and what the row left stays as it is. `padded` are sizes to
    which core launches are padded (see `graphs.py`)."""

    def __init__(
        self, model: RecurrentLM, pool: KVPool, *, places: int, max_blocks: int, prefill: Policy, probe: Probe | None,
        lag: int = 0, padded: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.model, self.pool, self.probe, self.lag = model, pool, probe, lag
        self.rows = Rows(model, places, max_blocks)
        self.rows.table[self.rows.nowhere] = pool.nowhere
        self.device = self.rows.depth.device
        c = model.config
        self.ctx = PagedRows(pool, c.num_heads, c.kv_heads)
        self.pieces = PagedPieces(pool, c.num_heads, c.kv_heads)
        self.prefill_kind = Kind.of(prefill)
        self.padded = Padded(lambda index: self._pass(index, max_blocks), padded, self.rows.nowhere)
        # What the host knows without asking the device: position and passes of each place, and when it leaves at last.
        self.position, self.done, self.last = (np.zeros(places, dtype=np.int64) for _ in range(3))
        self.kinds: list[Kind] = []
        self.kind_of = np.zeros(places, dtype=np.int64)
        self.looks_back = False  # whether any row's signal looks two states back
        self.readouts = 0  # coda rows, checks included
        self.passes = 0
        self.prompt_passes = 0

    def _index(self, places: Sequence[int]) -> Tensor:
        return upload(places, self.device)

    def _count(self, places: Sequence[int]) -> int:
        """Blocks that the longest of these rows uses."""
        return int(self.position[places].max()) // self.pool.size + 1

    def admit(self, place: int, blocks: Sequence[int], kind: Kind) -> None:
        """A request takes a place: its blocks and what decides its exits."""
        rows = self.rows
        rows.table[place, : len(blocks)] = self._index(blocks)
        rows.deepest[place] = kind.rule.max_depth
        self.last[place] = kind.rule.max_depth
        if kind not in self.kinds:
            self.kinds.append(kind)
        self.kind_of[place] = self.kinds.index(kind)
        signals = (self.kinds[k].signal for k in set(self.kind_of.tolist()))
        self.looks_back = any(signal is not None and signal.states > 1 for signal in signals)

    @torch.inference_mode()
    def core(self, places: list[int]) -> Passed:
        """One core pass for these rows, and what it says about their exits."""
        index = self._index(places)
        if self.padded.sizes:
            this = Pass(*self.padded(index))
        else:
            this = self._pass(index, self._count(places))
        self.done[places] += 1
        passed = self._decide(places, this)
        if self.looks_back:
            self.rows.prev.index_copy_(0, this.index, this.before)
        self.passes += len(places)
        return passed

    def _pass(self, index: Tensor, count: int) -> Pass:
        """The pass itself: a function of `index` and of buffers that stay where they are."""
        rows, gone = self.rows, None
        if self.lag:
            gone = rows.left.index_select(0, index)
            index = index.masked_fill(gone, rows.nowhere)
        depth = rows.depth.index_select(0, index).add_(1).clamp_(max=self.pool.max_depth)
        table, positions = rows.table.index_select(0, index), rows.positions.index_select(0, index)
        ctx = self.ctx.at(positions, table, self.pool.plane(depth), rows.turn.index_select(1, index), count)
        before = rows.state.index_select(0, index)
        state = self.model.core(before, rows.e.index_select(0, index), ctx)
        rows.depth.index_copy_(0, index, depth)
        rows.state.index_copy_(0, index, state)
        return Pass(index, gone, depth, before, state)

    def _decide(self, places: list[int], this: Pass) -> Passed:
        """Who leaves: rows that are as deep as they may be, and those whose signal says so, kind by kind."""
        leave = (self.done[places] >= self.last[places]).tolist()
        kinds = self.kind_of[places]
        asked: list[int] = []
        verdicts = []
        for number in set(kinds.tolist()):
            kind = self.kinds[number]
            if kind.signal is not None:
                mine = np.flatnonzero(kinds == number).tolist()
                asked += mine
                whole = len(mine) == len(places)
                verdicts.append(
                    self._step(
                        kind,
                        places if whole else [places[n] for n in mine],
                        this if whole else this.some(self._index(mine)),
                    )
                )
        if not verdicts:
            return Passed(leave, [], None)
        return Passed(leave, asked, Readback(torch.cat(verdicts) if len(verdicts) > 1 else verdicts[0]))

    def _step(self, kind: Kind, places: list[int], this: Pass) -> Tensor:
        rows, signal, index = self.rows, kind.signal, this.index
        assert signal is not None
        if signal.readouts:
            value = self._read_and_compare(kind, places, this)
        else:
            prev = rows.prev.index_select(0, index) if signal.states > 1 else None
            value = signal.value(Look(this.state, this.before, prev), this.depth, self.probe)
        rows.seen.index_copy_(0, index, value)
        leave, carry = kind.rule.step(value, this.depth, rows.carry.index_select(0, index))
        rows.carry.index_copy_(0, index, carry)
        if this.gone is not None:
            leave = leave & ~this.gone
            rows.left.index_copy_(0, index, leave)
        return leave

    def _read_and_compare(self, kind: Kind, places: list[int], this: Pass) -> Tensor:
        """Signals of the output: coda and head for rows with a check now or, to compare with, at the next pass."""
        signal, rows = kind.signal, self.rows
        assert signal is not None
        done = torch.from_numpy(self.done[places])
        due = kind.rule.due(done)
        reading = (due | kind.rule.due(done + 1)) if signal.readouts > 1 else due
        value = torch.full((len(places),), torch.inf, device=self.device)
        numbers = reading.nonzero()[:, 0].tolist()
        if not numbers:
            return value
        part = self._index(numbers)
        some, buffer = this.some(part), rows.read_out()
        log_probs = self._coda(some.state, some.index, self._count(places)).log_softmax(-1)
        look = Look(some.state, some.before, None, log_probs, buffer.index_select(0, some.index))
        value[part] = signal.value(look, some.depth, self.probe)
        buffer[some.index] = log_probs
        return value

    def _coda(self, state: Float[Tensor, "rows d"], index: Tensor, count: int) -> Float[Tensor, "rows vocab"]:
        rows = self.rows
        table, positions = rows.table.index_select(0, index), rows.positions.index_select(0, index)
        ctx = self.ctx.at(positions, table, None, rows.turn.index_select(1, index), count)
        self.readouts += len(index)
        return self.model.coda(state, ctx)

    @torch.inference_mode()
    def coda(self, places: list[int]) -> Float[Tensor, "rows vocab"]:
        """Logits of rows that left. Settles what they left in the KV pool."""
        rows, index = self.rows, self._index(places)
        positions = rows.positions.index_select(0, index)
        block = rows.table[index, positions // self.pool.size]
        self.pool.settle(
            block, positions % self.pool.size, rows.depth.index_select(0, index), rows.deepest.index_select(0, index)
        )
        return self._coda(rows.state.index_select(0, index), index, self._count(places))

    @torch.inference_mode()
    def outcome(self, places: list[int]) -> tuple[Tensor, Tensor]:
        """Exit depths and last signal values of rows that left."""
        index = self._index(places)
        return self.rows.depth.index_select(0, index), self.rows.seen.index_select(0, index)

    @torch.inference_mode()
    def begin(self, places: list[int], tokens: Tensor, deepest: list[int]) -> None:
        """Prelude of the next token of each of these rows, and how many passes each may take."""
        rows, index = self.rows, self._index(places)
        self.position[places] += 1
        self.done[places] = 0
        self.last[places] = deepest
        positions = rows.positions.index_select(0, index).add_(1)
        rows.positions.index_copy_(0, index, positions)
        rows.depth.index_fill_(0, index, 0)
        rows.carry.index_fill_(0, index, 0)
        rows.left.index_fill_(0, index, False)
        ctx = self.ctx.at(positions, rows.table.index_select(0, index), None, None, self._count(places))
        e = self.model.prelude(tokens, ctx)
        state = self.model.init_state(e, ctx)
        for buffer, value in ((rows.e, e), (rows.state, state), (rows.prev, state)):
            buffer.index_copy_(0, index, value)
        rows.turn.index_copy_(1, index, ctx.turn)

    @torch.inference_mode()
    def prefill(self, works: list[Work]) -> dict[int, Tensor]:
        """Run prompt pieces to their exits. The last position of each becomes its place's row, ready for the coda.
        Returns logits of all positions for pieces that ask."""
        model, size = self.model, self.pool.size
        ids = self._index([t for w in works for t in w.tokens])
        places = [torch.arange(w.start, w.start + len(w.tokens), device=self.device) for w in works]
        positions = torch.cat(places)
        counts = [len(w.tokens) for w in works]
        tables = [self.rows.table[w.place, : -(-(w.start + len(w.tokens)) // size)] for w in works]
        spans = [Span(n, table) for n, table in zip(counts, tables, strict=True)]
        block = torch.cat([table[p // size] for p, table in zip(places, tables, strict=True)])
        e = model.prelude(ids, self.pieces.at(positions, block, spans, 0, None))
        turn, state = self.pieces.turn, model.init_state(e, self.pieces).clone()  # may be e itself
        depth = self._loop(works, e, state, turn, positions, block, spans)
        hidden = model.hidden(state, self.pieces.at(positions, block, spans, 0, turn))
        self._hand_over(works, counts, state, turn, depth)
        wanted = hidden.split(counts)
        return {w.place: model.logits(h) for w, h in zip(works, wanted, strict=True) if w.all_logits}

    def _loop(
        self, works: list[Work], e: Tensor, s: Tensor, turn: Tensor, positions: Tensor, block: Tensor, spans: list[Span]
    ) -> Tensor:
        """Core passes over the rows that have not left; `s` is changed in place. Returns exit depths."""
        kind, total = self.prefill_kind, len(e)
        rule, signal = kind.rule, kind.signal
        recorded = self._recorded(works)
        exits = torch.zeros(total, dtype=torch.long, device=self.device)
        live, carry, depth = torch.arange(total, device=self.device), rule.init(total, self.device), 0
        prev, prev2 = (s.clone(), s.clone()) if signal else (s, s)
        whole, deepest = True, exits.new_full((total,), self.pool.max_depth)
        while len(live):
            depth += 1
            at = (
                (positions, block, spans, depth, turn)
                if whole
                else (positions[live], block[live], self._live_spans(spans, live), depth, turn[:, live])
            )
            old = s if whole else s[live]
            new = self.model.core(old, e if whole else e[live], self.pieces.at(*at))
            self.prompt_passes += len(live)
            value = None
            if signal:
                prev2[live], prev[live] = prev[live], old
                if rule.checks_at(depth):
                    value = signal.value(Look(new, prev[live], prev2[live]), depth, self.probe)
            s[live] = new
            if recorded is None:
                leave, carry = rule.step(value, depth, carry)
            else:
                leave = recorded[live] <= depth
            if bool(leave.any()):
                gone = live[leave]
                exits[gone] = depth
                self.pool.settle(block[gone], positions[gone] % self.pool.size, exits[gone], deepest[gone])
                live, carry, whole = live[~leave], carry[~leave], False
        return exits

    def _recorded(self, works: list[Work]) -> Tensor | None:
        if all(w.depths is None for w in works):
            return None
        last = self.prefill_kind.rule.max_depth
        depths = [d for w in works for d in (w.depths or [last] * len(w.tokens))]
        return self._index(depths)

    def _live_spans(self, spans: list[Span], live: Tensor) -> list[Span]:
        ends = self._index([s.rows for s in spans]).cumsum(0)
        counts = torch.searchsorted(live, ends).tolist()
        return [Span(b - a, s.blocks) for a, b, s in zip([0, *counts[:-1]], counts, spans, strict=True)]

    def _hand_over(self, works: list[Work], counts: list[int], s: Tensor, turn: Tensor, depth: Tensor) -> None:
        rows, index = self.rows, self._index([w.place for w in works])
        last = self._index(counts).cumsum(0) - 1
        rows.state[index], rows.turn[:, index], rows.depth[index] = s[last], turn[:, last], depth[last]
        ends = [w.start + len(w.tokens) - 1 for w in works]
        rows.positions[index], self.position[[w.place for w in works]] = self._index(ends), ends
