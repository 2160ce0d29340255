"""What is compared: engines under different configurations, and bare loops of model calls without an engine.

Every arm can `advance` by some tokens; arms take turns, so that a busy machine troubles all alike. Only decoding is
timed: launches that run prompts are left out. Wall time and CPU time of the process are both kept: with one thread
they agree on a quiet machine, and on a shared one CPU time is the steadier of the two.
"""

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from loopwise.engine.engine import Engine
from loopwise.engine.paged import PagedRows
from loopwise.engine.pool import KVPool
from loopwise.engine.request import Event, Request
from loopwise.exit.policy import Policy
from loopwise.exit.readout import kl
from loopwise.exit.signals import Look
from loopwise.model.recurrent import RecurrentLM


class Timed(NamedTuple):
    """Tokens made, and what they took."""

    tokens: int
    wall_s: float
    cpu_s: float
    passes: int = 0


class Stopwatch:
    """Adds up wall and CPU time while running. On a GPU it waits for the device, and both are wall time."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.wall = self.cpu = 0.0
        self.cuda = device is not None and device.type == "cuda"
        self._start = (0.0, 0.0)

    def _now(self) -> tuple[float, float]:
        if self.cuda:
            torch.cuda.synchronize()
        wall = time.perf_counter()
        return wall, wall if self.cuda else time.process_time()

    def __enter__(self) -> "Stopwatch":
        self._start = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu = self._now()
        self.wall, self.cpu = self.wall + wall - self._start[0], self.cpu + cpu - self._start[1]


@runtime_checkable
class Arm(Protocol):
    """Something that makes tokens."""

    name: str

    def advance(self, tokens: int) -> Timed:
        """Make at least so many tokens."""
        ...


class EngineArm:
    """An engine that never runs out of work: `requests` is endless."""

    def __init__(self, name: str, engine: Engine, requests: Iterator[Request]) -> None:
        self.name, self.engine, self.requests = name, engine, requests
        self.device = engine.model.embedding.weight.device
        self._feed()
        while len(engine.planner.jobs) < engine.places or engine.planner.prefilling:
            engine.step()

    def _feed(self) -> None:
        while self.engine.planner.num_waiting < self.engine.places:
            self.engine.submit(next(self.requests))

    def advance(self, tokens: int) -> Timed:
        """Steps until so many tokens came; those that ran prompts are not timed."""
        made, engine = 0, self.engine
        total, prompts = Stopwatch(self.device), Stopwatch(self.device)
        passes = engine.runner.passes
        with total:
            while made < tokens:
                self._feed()
                made += len(self._step(prompts))
        return Timed(made, total.wall - prompts.wall, total.cpu - prompts.cpu, engine.runner.passes - passes)

    def _step(self, prompts: Stopwatch) -> list[Event]:
        """One step; `prompts` takes its time if it ran prompts. The clock is read only where that may be."""
        engine, planner = self.engine, self.engine.planner
        if not planner.prefilling and len(planner.jobs) == engine.places:
            return engine.step()
        before, step = engine.totals.launches["prefill"], Stopwatch(self.device)
        with step:
            events = engine.step()
        if engine.totals.launches["prefill"] > before:
            prompts.wall, prompts.cpu = prompts.wall + step.wall, prompts.cpu + step.cpu
        return events


class BareArm:
    """A loop of model calls on one batch, every row at the same depth: no planner, no rows that come and go.

    Positions run through `span` again and again. `criterion` makes it the masked harness of the study: every pass is
    computed for every row, after each the signal is read, and rows that would have left keep their state. A recorded
    schedule costs nothing to read."""

    def __init__(
        self, name: str, model: RecurrentLM, pool: KVPool, rows: int, span: range, depth: int, criterion: Policy | None
    ) -> None:
        self.name, self.model, self.pool, self.depth, self.criterion = name, model, pool, depth, criterion
        c = model.config
        per_row = pool.blocks // rows
        self.device = pool.keys[0].device
        self.table = torch.arange(rows * per_row, device=self.device).view(rows, per_row)
        self.span = range(span.start, min(span.stop, per_row * pool.size))
        self.positions = torch.full((rows,), span.start, device=self.device)
        self.tokens = torch.arange(rows, device=self.device) % c.vocab_size
        self.ctx = PagedRows(pool, c.num_heads, c.kv_heads)

    def advance(self, tokens: int) -> Timed:
        """Whole tokens of all rows."""
        made, passes, watch = 0, 0, Stopwatch(self.device)
        with watch, torch.inference_mode():
            while made < tokens:
                self._token()
                made, passes = made + len(self.tokens), passes + len(self.tokens) * self.depth
        return Timed(made, watch.wall, watch.cpu, passes)

    def _token(self) -> None:
        model, ctx = self.model, self.ctx
        following = self.positions + 1
        self.positions = torch.where(following < self.span.stop, following, self.span.start)
        e = model.prelude(self.tokens, ctx.at(self.positions, self.table, None, None))
        state, turn = model.init_state(e, ctx), ctx.turn
        live = torch.ones(len(e), dtype=torch.bool, device=self.device)
        before = None
        for depth in range(1, self.depth + 1):
            plane = self.pool.plane(torch.full_like(self.positions, depth))
            new = model.core(state, e, ctx.at(self.positions, self.table, plane, turn))
            if self.criterion is None:
                state = new
                continue
            value, before = self._signal(new, state, before, turn, depth)
            state = torch.where(live[:, None], new, state)
            live &= ~(value < self.criterion.threshold)
        self.tokens = model.coda(state, ctx.at(self.positions, self.table, None, turn)).argmax(-1)

    def _signal(self, new: Any, old: Any, before: Any, turn: Any, depth: int) -> Any:
        policy = self.criterion
        assert policy is not None
        rest = torch.full((len(new),), torch.inf, device=self.device)
        if policy.reads is None:
            return rest, None
        if not policy.reads.readouts:
            return policy.reads.value(Look(new, old, old), depth, None), None
        now = self.model.coda(new, self.ctx.at(self.positions, self.table, None, turn)).log_softmax(-1)
        return (rest if before is None else kl(now, before)), now


def interleave(arms: Sequence[Arm], tokens: int, repeats: int) -> dict[str, list[Timed]]:
    """Every arm in turn, `repeats` times, after one round that is not counted."""
    for arm in arms:
        arm.advance(max(1, tokens // 4))
    found: dict[str, list[Timed]] = {arm.name: [] for arm in arms}
    for _ in range(repeats):
        for arm in arms:
            found[arm.name].append(arm.advance(tokens))
    return found


def rate(timed: Sequence[Timed], clock: str = "cpu_s") -> float:
    """Median tokens per second."""
    return median(t.tokens / getattr(t, clock) for t in timed)


def ratio(one: Sequence[Timed], other: Sequence[Timed], clock: str = "cpu_s") -> float:
    """Median over repeats of how much faster `one` is than `other` in the same repeat."""
    pairs = zip(one, other, strict=True)
    return median((a.tokens / getattr(a, clock)) / (b.tokens / getattr(b, clock)) for a, b in pairs)


def mean_depth(timed: Sequence[Timed]) -> float:
    """Core passes per token."""
    return sum(t.passes for t in timed) / sum(t.tokens for t in timed)
