"""The runner: executes launches on the one `RecurrentLM`. It knows rows, not requests; it never decides what runs."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from loopwise.engine.graphs import Padded
from loopwise.engine.launch import At, Kind, Pass, Passed, Prompts, Work
from loopwise.engine.paged import PagedPieces, PagedRows, Span
from loopwise.engine.pool import KVPool
from loopwise.engine.readback import Readback
from loopwise.engine.state import Rows
from loopwise.exit.policy import Policy
from loopwise.exit.signals import Look, Probe
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import upload

SHORT_BLOCKS = 2  # blocks of a short prompt


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
        self.kinds: list[Kind | None] = [None] * places  # kinds that some place has, in slots that are used again
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
        used = set(np.delete(self.kind_of, place).tolist())  # other places leave one slot free at least
        slot = next((n for n in used if self.kinds[n] == kind), None)
        slot = next(n for n in range(len(self.kinds)) if n not in used) if slot is None else slot
        self.kind_of[place], self.kinds[slot] = slot, kind
        held = (self.kinds[n] for n in set(self.kind_of.tolist()))
        self.looks_back = any(k is not None and k.signal is not None and k.signal.states > 1 for k in held)

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
            if kind is not None and kind.signal is not None:
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
        model = self.model
        ids = self._index([t for w in works for t in w.tokens])
        prompts = Prompts.of(works, self.rows.table, self.pool.size)
        at = self._short(prompts) if self._is_short(works) else self._long(prompts)
        ctx = at(None, 0, None)
        e = model.prelude(ids, ctx)
        turn, state = ctx.turn, model.init_state(e, ctx).clone()  # may be e itself
        depth = self._loop(works, e, state, turn, prompts, at)
        hidden = model.hidden(state, at(None, 0, turn))
        self._hand_over(works, prompts.counts, state, turn, depth)
        wanted = hidden.split(prompts.counts)
        return {w.place: model.logits(h) for w, h in zip(works, wanted, strict=True) if w.all_logits}

    def _is_short(self, works: list[Work]) -> bool:
        """Whether several pieces are so short that one row each is the faster way to attend (measured)."""
        longest = max(w.start + len(w.tokens) for w in works)
        return self.pool.columns and len(works) > 1 and longest <= SHORT_BLOCKS * self.pool.size

    def _long(self, prompts: Prompts) -> At:
        """Attention piece by piece."""
        positions, block, spans = prompts.positions, prompts.block, prompts.spans

        def at(live: Tensor | None, depth: int, turn: Tensor | None) -> PagedPieces:
            if live is None:
                return self.pieces.at(positions, block, spans, depth, turn)
            assert turn is not None
            return self.pieces.at(positions[live], block[live], self._live_spans(spans, live), depth, turn[:, live])

        return at

    def _short(self, prompts: Prompts) -> At:
        """Attention row by row: every row is written before any of them looks, and sees up to its own position."""
        most = max(len(span.blocks) for span in prompts.spans)
        table = torch.cat([F.pad(s.blocks, (0, most - len(s.blocks))).expand(s.rows, most) for s in prompts.spans])

        def at(live: Tensor | None, depth: int, turn: Tensor | None) -> PagedRows:
            rows, positions = table, prompts.positions
            if live is not None:
                assert turn is not None
                rows, positions, turn = rows[live], positions[live], turn[:, live]
            plane = self.pool.plane(torch.full_like(positions, depth)) if depth else None
            return self.ctx.at(positions, rows, plane, turn, most)

        return at

    def _loop(self, works: list[Work], e: Tensor, s: Tensor, turn: Tensor, prompts: Prompts, at: At) -> Tensor:
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
            old = s if whole else s[live]
            new = self.model.core(old, e if whole else e[live], at(None if whole else live, depth, turn))
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
                place = prompts.positions[gone] % self.pool.size
                self.pool.settle(prompts.block[gone], place, exits[gone], deepest[gone])
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
