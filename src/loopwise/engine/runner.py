"""The runner: executes launches on the one `RecurrentLM`. It knows rows, not requests; it never decides what runs."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from loopwise.engine.paged import PagedPieces, PagedRows, Span
from loopwise.engine.pool import KVPool
from loopwise.engine.state import Rows
from loopwise.exit.policy import Policy
from loopwise.exit.rules import Rule
from loopwise.exit.signals import Look, Probe, Signal
from loopwise.model.recurrent import RecurrentLM


class Kind(NamedTuple):
    """What decides exits of a row: rows of one kind share a rule's step."""

    rule: Rule
    signal: Signal | None
    recorded: bool

    @classmethod
    def of(cls, policy: Policy) -> "Kind":
        """The kind of a bound policy."""
        return cls(policy.rule(), policy.reads, policy.recorded is not None)


class Work(NamedTuple):
    """A prompt piece as the runner sees it: its place, its tokens, the position of the first, and recorded depths."""

    place: int
    tokens: Sequence[int]
    start: int
    depths: Sequence[int] | None = None
    all_logits: bool = False


class Runner:
    """Owns the rows, the KV pool and two attention contexts."""

    def __init__(
        self, model: RecurrentLM, pool: KVPool, *, places: int, max_blocks: int, prefill: Policy, probe: Probe | None
    ) -> None:
        self.model, self.pool, self.probe = model, pool, probe
        self.rows = Rows(model, places, max_blocks)
        self.device = self.rows.depth.device
        c = model.config
        self.ctx = PagedRows(pool, c.num_heads, c.kv_heads)
        self.pieces = PagedPieces(pool, c.num_heads, c.kv_heads)
        self.prefill_kind = Kind.of(prefill)
        self.kinds: list[Kind | None] = [None] * places
        self.looks_back = False  # whether any row's signal looks two states back
        self.readouts = 0  # coda rows, checks included
        self.passes = 0
        self.prompt_passes = 0

    def _index(self, places: Sequence[int]) -> Tensor:
        return torch.tensor(places, device=self.device)

    def admit(self, place: int, blocks: Sequence[int], kind: Kind) -> None:
        """A request takes a place: its blocks and what decides its exits."""
        rows = self.rows
        rows.table[place, : len(blocks)] = torch.tensor(blocks, device=self.device)
        rows.deepest[place] = kind.rule.max_depth
        self.kinds[place] = kind
        self.looks_back = any(k is not None and k.signal is not None and k.signal.states > 1 for k in self.kinds)

    @torch.inference_mode()
    def core(self, places: list[int]) -> list[bool]:
        """One core pass for these rows; says which of them leave."""
        rows, index = self.rows, self._index(places)
        depth = rows.depth.index_select(0, index).add_(1)
        table, positions = rows.table.index_select(0, index), rows.positions.index_select(0, index)
        ctx = self.ctx.at(positions, table, self.pool.plane(depth), rows.turn.index_select(1, index))
        before = rows.state.index_select(0, index)
        state = self.model.core(before, rows.e.index_select(0, index), ctx)
        rows.depth.index_copy_(0, index, depth)
        leave = self._decide(places, index, depth, before, state)
        if self.looks_back:
            rows.prev.index_copy_(0, index, before)
        rows.state.index_copy_(0, index, state)
        self.passes += len(places)
        return leave

    def _decide(self, places: list[int], index: Tensor, depth: Tensor, before: Tensor, state: Tensor) -> list[bool]:
        """Ask every kind's rule about its rows."""
        groups: dict[Kind, list[int]] = {}
        for number, place in enumerate(places):
            kind = self.kinds[place]
            assert kind is not None
            groups.setdefault(kind, []).append(number)
        if len(groups) == 1:
            return self._step(next(iter(groups)), index, depth, before, state).tolist()
        leave = torch.zeros(len(places), dtype=torch.bool, device=self.device)
        for kind, numbers in groups.items():
            part = self._index(numbers)
            leave[part] = self._step(kind, index[part], depth[part], before[part], state[part])
        return leave.tolist()

    def _step(self, kind: Kind, index: Tensor, depth: Tensor, before: Tensor, state: Tensor) -> Tensor:
        rows = self.rows
        if kind.signal is None:  # these rules have no carry
            return kind.rule.step(rows.limit.index_select(0, index) if kind.recorded else None, depth, depth).leave
        if kind.signal.readouts:
            value = self._read_and_compare(kind, index, depth, before, state)
        else:
            look = Look(state, before, rows.prev.index_select(0, index) if kind.signal.states > 1 else None)
            value = kind.signal.value(look, depth, self.probe)
        rows.seen.index_copy_(0, index, value)
        leave, carry = kind.rule.step(value, depth, rows.carry.index_select(0, index))
        rows.carry.index_copy_(0, index, carry)
        return leave

    def _read_and_compare(self, kind: Kind, index: Tensor, depth: Tensor, before: Tensor, state: Tensor) -> Tensor:
        """Signals of the output: coda and head for rows with a check now or, to compare with, at the next pass."""
        signal, rows = kind.signal, self.rows
        assert signal is not None
        due = kind.rule.due(depth)
        reading = (due | kind.rule.due(depth + 1)) if signal.readouts > 1 else due
        value = torch.full_like(rows.limit[: len(index)], torch.inf)
        part = reading.nonzero()[:, 0]
        if not len(part):
            return value
        buffer, at = rows.read_out(), index[part]
        log_probs, old = self._coda(state[part], at).log_softmax(-1), buffer.index_select(0, at)
        look = Look(state[part], before[part], None, log_probs, old)
        value[part] = signal.value(look, depth[part], self.probe)
        buffer[at] = log_probs
        return value

    def _coda(self, state: Float[Tensor, "rows d"], index: Tensor) -> Float[Tensor, "rows vocab"]:
        rows = self.rows
        table, positions = rows.table.index_select(0, index), rows.positions.index_select(0, index)
        ctx = self.ctx.at(positions, table, None, rows.turn.index_select(1, index))
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
        return self._coda(rows.state.index_select(0, index), index)

    @torch.inference_mode()
    def begin(self, places: list[int], tokens: Tensor, limits: list[float] | None) -> None:
        """Prelude of the next token of each of these rows; `limits` are recorded depths to play back."""
        rows, index = self.rows, self._index(places)
        positions = rows.positions.index_select(0, index).add_(1)
        rows.positions.index_copy_(0, index, positions)
        rows.depth.index_fill_(0, index, 0)
        rows.carry.index_fill_(0, index, 0)
        ctx = self.ctx.at(positions, rows.table.index_select(0, index), None, None)
        e = self.model.prelude(tokens, ctx)
        state = self.model.init_state(e, ctx)
        for buffer, value in ((rows.e, e), (rows.state, state), (rows.prev, state)):
            buffer.index_copy_(0, index, value)
        rows.turn.index_copy_(1, index, ctx.turn)
        if limits is not None:
            rows.limit[index] = torch.tensor(limits, device=self.device)

    @torch.inference_mode()
    def prefill(self, works: list[Work]) -> dict[int, Tensor]:
        """Run prompt pieces to their exits. The last position of each becomes its place's row, ready for the coda.
        Returns logits of all positions for pieces that ask."""
        model, size = self.model, self.pool.size
        ids = torch.tensor([t for w in works for t in w.tokens], device=self.device)
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
        return torch.tensor(depths, device=self.device)

    def _live_spans(self, spans: list[Span], live: Tensor) -> list[Span]:
        ends = torch.tensor([s.rows for s in spans], device=self.device).cumsum(0)
        counts = torch.searchsorted(live, ends).tolist()
        return [Span(b - a, s.blocks) for a, b, s in zip([0, *counts[:-1]], counts, spans, strict=True)]

    def _hand_over(self, works: list[Work], counts: list[int], s: Tensor, turn: Tensor, depth: Tensor) -> None:
        rows, index = self.rows, self._index([w.place for w in works])
        last = self._index(counts).cumsum(0) - 1
        rows.state[index], rows.turn[:, index], rows.depth[index] = s[last], turn[:, last], depth[last]
        rows.positions[index] = self._index([w.start + len(w.tokens) - 1 for w in works])

    def depths(self, places: list[int]) -> list[int]:
        """Exit depths of rows that left."""
        return self.rows.depth[self._index(places)].tolist()

    def signals(self, places: list[int]) -> list[float]:
        """Last signal values of rows that left."""
        return self.rows.seen[self._index(places)].tolist()
