"""The planner: decides what the next launch is. A pure state machine without tensors.

Contract. `plan()` names one launch and takes its rows out of the queues; exactly one report (`prefilled`, `turned`,
`passed`) puts them back before the next `plan()`. What a report could not know yet comes later, between launches:
`left` for rows that were reported as staying, `cancel` for requests that turned out to have ended. A request holds its
place and all blocks it may ever need from admission to its end, so nothing that runs is ever preempted, and tokens
cannot depend on memory pressure.

Queues, in order of precedence: *turn* (rows that left the core and wait for coda, sampling and the prelude of their
next token; once `min_turn` of them, or half of all rows, or no others), *prefill* (prompt pieces, at most
`prefill_streak` launches on end; once `min_prefill` prompts wait, or a launch would not be full), *core* (rows at any
depth, first come first served, at most `max_rows`). Waiting requests are admitted in order of arrival less `BOOST`
arrivals per unit of priority: priority jumps a bounded part of the queue, so nobody starves. The first in order waits
for memory; those behind it never overtake it. One whose prompt begins with blocks that another request is computing
just now is set aside until they are published.
"""

import heapq
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loopwise.engine.blocks import BlockPool
from loopwise.engine.job import Job
from loopwise.engine.prefix import chain

BOOST = 64


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """`places`: requests in progress; `max_rows`: rows of a core or turn launch; `min_turn`: rows a turn waits for;
    `min_prefill`: prompts collected while launches are full; `chunk`: prompt tokens of one piece (0: the whole prompt);
    `prefill_tokens`: prompt tokens of one launch (a piece is never cut for it); `granule`: cached prompts are used up
    to a multiple of it (0: never); two baselines: `static` admits only when nothing runs, `lockstep` holds turns until
    every row has left the core."""

    places: int
    max_rows: int
    block_size: int
    min_turn: int = 1
    min_prefill: int = 1
    chunk: int = 0
    prefill_tokens: int = 512
    prefill_streak: int = 8
    granule: int = 1
    static: bool = False
    lockstep: bool = False


class Piece(NamedTuple):
    """Prompt positions start .. stop - 1 of a job."""

    job: Job
    start: int
    stop: int


class Prefill(NamedTuple):
    """Run prompt pieces, each of another job."""

    pieces: list[Piece]


class Turn(NamedTuple):
    """Coda and sampling for rows that left the core; those that go on get their next token's prelude."""

    places: list[int]


class Core(NamedTuple):
    """One core pass for these rows."""

    places: list[int]


Work = Prefill | Turn | Core


class Scheduler:
    """See the module's contract."""

    def __init__(self, knobs: Knobs, pool: BlockPool) -> None:
        self.knobs, self.pool = knobs, pool
        self.waiting: list[tuple[int, int, Job]] = []
        self.prefilling: deque[Job] = deque()
        self.ready: deque[int] = deque()
        self.turning: deque[int] = deque()
        self.jobs: dict[int, Job] = {}  # by place
        self.flying: Work | None = None
        self._places = list(range(knobs.places - 1, -1, -1))
        self._arrivals, self._queued, self._streak = 0, 0, 0
        self._pending: dict[bytes, list[Job]] = {}  # keys being computed -> jobs set aside for them
        self._blocked: tuple[Job, int] | None = None  # first in order that did not fit, and the pool's version then

    @property
    def num_waiting(self) -> int:
        """Jobs not admitted yet."""
        return self._queued

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._queued or self.jobs)

    def add(self, job: Job) -> None:
        """Queue a job. It must fit: `blocks_for(job) <= pool.total`."""
        assert self.blocks_for(job) <= self.pool.total and job.arrival < 0
        job.arrival, self._arrivals = self._arrivals, self._arrivals + 1
        self._queued += 1
        self._enqueue(job)

    def _enqueue(self, job: Job) -> None:
        heapq.heappush(self.waiting, (job.arrival - BOOST * job.priority, job.arrival, job))

    def blocks_for(self, job: Job) -> int:
        """Blocks a job reserves."""
        return -(-job.positions // self.knobs.block_size)

    def cancel(self, job: Job) -> None:
        """End a job. Its place and blocks are free at once, or come free with the report of its launch."""
        if job.over or job.cancelled:
            return
        job.cancelled = True
        if job.place < 0:
            self._queued -= 1
            job.over = True
        elif not self._is_flying(job):
            for queue in (self.ready, self.turning):
                if job.place in queue:
                    queue.remove(job.place)
            if job in self.prefilling:
                self.prefilling.remove(job)
            self._release(job)

    def _is_flying(self, job: Job) -> bool:
        if isinstance(self.flying, Prefill):
            return any(piece.job is job for piece in self.flying.pieces)
        return self.flying is not None and job.place in self.flying.places

    def plan(self) -> Work | None:
        """The next launch, or None if nothing can run (then nothing is queued either)."""
        assert self.flying is None, "report the launch before planning the next"
        self._admit()
        self.flying = self._choose()
        return self.flying

    def _choose(self) -> Work | None:
        knobs, streak = self.knobs, self._streak
        if self._turn_due():
            return Turn(self._pop(self.turning))
        if self._prefill_due() and (streak < knobs.prefill_streak or not (self.ready or self.turning)):
            self._streak += 1
            return self._prefill()
        self._streak = 0
        if self.ready:
            return Core(self._pop(self.ready))
        return Turn(self._pop(self.turning)) if self.turning else None

    def _prefill_due(self) -> bool:
        live = len(self.turning) + len(self.ready)
        return bool(self.prefilling) and (len(self.prefilling) >= self.knobs.min_prefill or live < self.knobs.max_rows)

    def _turn_due(self) -> bool:
        count, live = len(self.turning), len(self.turning) + len(self.ready)
        if not count or (self._prefill_due() and count < self.knobs.min_turn):
            return False
        return not self.ready or (not self.knobs.lockstep and count >= min(self.knobs.min_turn, (live + 1) // 2))

    def _pop(self, queue: deque[int]) -> list[int]:
        return [queue.popleft() for _ in range(min(len(queue), self.knobs.max_rows))]

    def _prefill(self) -> Prefill:
        pieces, room = [], self.knobs.prefill_tokens
        while self.prefilling:
            job = self.prefilling[0]
            stop = min(len(job.prompt), job.done + self.knobs.chunk) if self.knobs.chunk else len(job.prompt)
            if pieces and stop - job.done > room:
                break
            pieces.append(Piece(self.prefilling.popleft(), job.done, stop))
            room -= stop - job.done
        return Prefill(pieces)

    # Admission

    def _admit(self) -> None:
        if self.knobs.static and self.jobs:
            return
        while self._places and self.waiting:
            job = self.waiting[0][2]
            if job.cancelled:
                heapq.heappop(self.waiting)
            elif self._blocked == (job, self.pool.version) or not self._try(job):
                return

    def _try(self, job: Job) -> bool:
        """Admit the first in order, or set it aside; False if memory does not suffice."""
        shared = self._cached(job)
        if len(shared) < len(job.keys) and (holders := self._pending.get(job.keys[len(shared)])) is not None:
            heapq.heappop(self.waiting)
            holders.append(job)
            return True
        blocks = self.pool.take(shared, self.blocks_for(job) - len(shared))
        if blocks is None:
            self._blocked = (job, self.pool.version)
            return False
        heapq.heappop(self.waiting)
        self._queued -= 1
        job.blocks, job.place, job.admitted_s = blocks, self._places.pop(), time.perf_counter()
        job.published = len(shared)
        job.done = job.cached = len(shared) * self.knobs.block_size
        for key in job.keys[len(shared) :]:
            self._pending.setdefault(key, [])
        self.jobs[job.place] = job
        self.prefilling.append(job)
        return True

    def _cached(self, job: Job) -> list[int]:
        """Published blocks at the start of the prompt. The last prompt token is always computed: it has the logits."""
        if job.start is None or not self.knobs.granule:
            return []
        size, granule = self.knobs.block_size, self.knobs.granule
        if not job.keys:
            job.keys = chain(job.start, job.prompt, size, (len(job.prompt) - 1) // granule * granule // size)
        found = self.pool.match(job.keys)
        return found[: len(found) * size // granule * granule // size]

    def _publish(self, job: Job) -> None:
        ready = min(job.done // self.knobs.block_size, len(job.keys))
        for i in range(job.published, ready):
            self.pool.publish(job.blocks[i], job.keys[i])
        self._let_go(job.keys[job.published : ready])
        job.published = max(job.published, ready)

    def _let_go(self, keys: Sequence[bytes]) -> None:
        """These keys are no longer being computed: jobs set aside for them queue again, at their old place."""
        for key in keys:
            for job in self._pending.pop(key, ()):
                if not job.cancelled:
                    self._enqueue(job)

    # Reports

    def prefilled(self) -> None:
        """The prefill launch ran: finished prompts wait for their turn, the others for their next piece."""
        work, self.flying = self.flying, None
        assert isinstance(work, Prefill)
        for piece in reversed(work.pieces):
            job = piece.job
            if job.cancelled:
                self._release(job)
                continue
            job.done = piece.stop
            self._publish(job)
            if job.done < len(job.prompt):
                self.prefilling.appendleft(job)
        self.turning.extend(p.job.place for p in work.pieces if not p.job.cancelled and p.stop == len(p.job.prompt))

    def turned(self, finished: Collection[int]) -> None:
        """The turn ran: places in `finished` made their last token, the others are ready for the core."""
        work, self.flying = self.flying, None
        assert isinstance(work, Turn)
        for place in work.places:
            job = self.jobs[place]
            if job.cancelled or place in finished:
                self._release(job)
            else:
                self.ready.append(place)

    def passed(self, left: Sequence[bool]) -> None:
        """The core pass ran: `left` says for each of its rows whether the row leaves."""
        work, self.flying = self.flying, None
        assert isinstance(work, Core) and len(left) == len(work.places)
        for place, leaves in zip(work.places, left, strict=True):
            if self.jobs[place].cancelled:
                self._release(self.jobs[place])
            elif leaves:
                self.turning.append(place)
            else:
                self.ready.append(place)

    def left(self, places: Collection[int]) -> None:
        """Rows reported as staying had left: those that wait for another pass wait for their turn instead."""
        found = [place for place in self.ready if place in places]
        if found:
            self.ready = deque(place for place in self.ready if place not in places)
            self.turning.extend(found)

    def _release(self, job: Job) -> None:
        job.over = True
        del self.jobs[job.place]
        self._places.append(job.place)
        self.pool.release(job.blocks)
        self._let_go(job.keys[job.published :])
        job.blocks = []

    def check_integrity(self) -> None:
        """Assert what must hold between launches."""
        assert self.flying is None
        self.pool.check_integrity(job.blocks for job in self.jobs.values())
        queued = [*self.ready, *self.turning, *(job.place for job in self.prefilling)]
        assert sorted(queued) == sorted(self.jobs), "every running job is in exactly one queue"
        assert sorted([*self._places, *self.jobs]) == list(range(self.knobs.places)), "places are lost or doubled"
        aside = [job for jobs in self._pending.values() for job in jobs]
        alive = [job for job in [*aside, *(w[2] for w in self.waiting)] if not job.cancelled]
        assert len(alive) == len({id(j) for j in alive}) == self._queued, "a waiting job is lost or doubled"
        for job in self.jobs.values():
            assert not job.cancelled and len(job.blocks) == self.blocks_for(job)
            assert job.done < len(job.prompt) or job not in self.prefilling
        computing = {key for job in self.jobs.values() for key in job.keys[job.published :]}
        assert self._pending.keys() <= computing, "a job waits for blocks that nobody computes"
