"""The planner as a state machine: whatever arrives, is cancelled or finishes, memory is never shared by mistake.

A fake runner keeps, for each block, the tokens whose KV it holds. It catches the bug classes that users of other
engines found: a block freed twice, a cached block overwritten while shared, a full prefix hit that leaves nothing to
compute, a stale block after its owner was cancelled in the middle.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from loopwise.engine.blocks import BlockPool
from loopwise.engine.job import Job
from loopwise.engine.prefix import chain_start
from loopwise.engine.scheduler import BOOST, Core, Knobs, Prefill, Scheduler, Turn

SIZE = 2
PROMPTS = st.one_of(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.integers(1, 9).map(lambda n: [0] * n)).map(
    tuple
)


class Planner(RuleBasedStateMachine):
    """Arrivals, cancellations (between launches and during them), launches, cache resets."""

    @initialize(
        places=st.integers(1, 5),
        rows=st.integers(1, 5),
        blocks=st.integers(7, 16),
        min_turn=st.integers(1, 5),
        min_prefill=st.integers(1, 3),
        chunk=st.integers(0, 4),
        budget=st.integers(1, 12),
        granule=st.sampled_from([0, 2, 4, 6]),
        static=st.booleans(),
    )
    def setup(self, places, rows, blocks, min_turn, min_prefill, chunk, budget, granule, static):
        self.pool = BlockPool(blocks)
        self.planner = Scheduler(
            Knobs(
                places=places,
                max_rows=rows,
                block_size=SIZE,
                min_turn=min_turn,
                min_prefill=min_prefill,
                chunk=chunk,
                prefill_tokens=budget,
                prefill_streak=2,
                granule=granule,
                static=static,
            ),
            self.pool,
        )
        self.memory: dict[int, tuple] = {}  # block -> tokens up to and including it, as far as written
        self.alive: dict[Job, int] = {}  # job -> tokens still to make
        self.written: dict[Job, int] = {}
        self.late_exits: list[Job] = []  # left, or ended, in the last launch, and the planner does not know it yet
        self.late_ends: list[Job] = []

    @rule(prompt=PROMPTS, new=st.integers(1, 5), priority=st.integers(-1, 1), salted=st.booleans())
    def arrive(self, prompt, new, priority, salted):
        job = Job(
            name="",
            prompt=prompt,
            positions=len(prompt) + new - 1,
            priority=priority,
            start=chain_start("salt" if salted else ""),
        )
        self.planner.add(job)
        self.alive[job], self.written[job] = new, 0

    @rule(data=st.data())
    def cancel(self, data):
        if self.alive:
            job = data.draw(st.sampled_from(sorted(self.alive, key=lambda j: j.arrival)))
            self.planner.cancel(job)
            del self.alive[job]
            assert job.over, "between launches a cancelled job is over at once"

    @rule()
    def reset(self):
        self.pool.forget()
        assert self.pool.num_cached == 0

    @rule(data=st.data())
    def launch(self, data):
        work = self.planner.plan()
        if work is None:
            assert not self.alive and not self.late_ends, "the planner idles while jobs wait"
            return
        assert 0 < (len(work.pieces) if isinstance(work, Prefill) else len(work.places))
        victim = None
        if self.alive and data.draw(st.booleans()):
            victim = data.draw(st.sampled_from(sorted(self.alive, key=lambda j: j.arrival)))
            self.planner.cancel(victim)  # in the middle of a launch
            del self.alive[victim]
        exits, ends, self.late_exits, self.late_ends = self.late_exits, self.late_ends, [], []
        getattr(self, f"_{type(work).__name__.lower()}")(work, data)
        assert victim is None or victim.over
        self._tell(exits, ends)

    def _tell(self, exits: list[Job], ends: list[Job]):
        """What the launch before this one found out."""
        places = {job.place for job in exits if self.planner.jobs.get(job.place) is job}
        self.planner.left(places)
        assert not places.intersection(self.planner.ready), "a row that left waits for another pass"
        for job in ends:
            self.planner.cancel(job)
            assert job.over

    def _prefill(self, work: Prefill, data):
        knobs = self.planner.knobs
        sizes = [p.stop - p.start for p in work.pieces]
        assert sum(sizes) <= knobs.prefill_tokens or len(sizes) == 1
        for job, start, stop in work.pieces:
            assert job.prompt[start:stop], "something is left to compute after a prefix hit"
            assert start == job.done and (not knobs.chunk or stop - start <= knobs.chunk)
            if start == job.cached:
                assert knobs.granule or not start
                assert not start or start % knobs.granule == 0
                self.written[job] = start
            self._write(job, start, stop)
        self.planner.prefilled()

    def _write(self, job: Job, start: int, stop: int):
        """Write positions and check that what came before is this job's own prefix, in blocks of its own."""
        if not job.cancelled:
            for position in range(start, stop):
                block = job.blocks[position // SIZE]
                holders = [j for j in self.planner.jobs.values() if block in j.blocks]
                assert holders == [job], "a shared block is written"
                before = self.memory.get(block, ()) if position % SIZE else ()
                self.memory[block] = before[: position % SIZE] + (position,)
            self._check_memory(job, start)
            for i in range(start // SIZE, min(stop, len(job.prompt)) // SIZE):
                self.memory[job.blocks[i]] = ("prompt", job.start, tuple(job.prompt[: (i + 1) * SIZE]))
        self.written[job] = stop

    def _check_memory(self, job: Job, start: int):
        for i in range(start // SIZE):
            held = self.memory[job.blocks[i]]
            if (i + 1) * SIZE <= len(job.prompt):
                assert held == ("prompt", job.start, tuple(job.prompt[: (i + 1) * SIZE])), "foreign or stale KV"

    def _turn(self, work: Turn, data):
        assert len(work.places) <= self.planner.knobs.max_rows
        finished = set()
        for place in work.places:
            job = self.planner.jobs[place]
            if job in self.alive:
                self.alive[job] -= 1
                end = 0 if self.alive[job] == 0 else data.draw(st.integers(0, 9))
                if end < 2:
                    finished |= {place} if end == 0 else set()
                    self.late_ends += [job] if end == 1 else []
                    del self.alive[job]
                else:
                    position = max(self.written[job], len(job.prompt))
                    self._write(job, position, position + 1)
        self.planner.turned(finished)

    def _core(self, work: Core, data):
        assert len(work.places) <= self.planner.knobs.max_rows
        found = [data.draw(st.sampled_from(["stays", "leaves", "left, told late"])) for _ in work.places]
        self.late_exits = [
            self.planner.jobs[p] for p, how in zip(work.places, found, strict=True) if how == "left, told late"
        ]
        self.planner.passed([how == "leaves" for how in found])

    @invariant()
    def whole(self):
        if hasattr(self, "planner"):
            self.planner.check_integrity()

    def teardown(self):
        """Everything ends; then nothing is held and the books balance."""
        if not hasattr(self, "planner"):
            return
        for job in [*self.alive, *self.late_ends]:
            self.planner.cancel(job)
        assert self.planner.plan() is None and not self.planner.busy
        assert self.pool.num_held == 0
        assert self.pool.num_free + self.pool.num_cached == self.pool.total


TestPlanner = Planner.TestCase
TestPlanner.settings = settings(deadline=None, max_examples=40, stateful_step_count=50)


def finish(planner: Scheduler, passes: int = 2) -> list[Job]:
    """Run everything to its end; jobs in the order in which they were admitted."""
    order: list[Job] = []
    depth: dict[int, int] = {}
    while (work := planner.plan()) is not None:
        order += [job for job in planner.jobs.values() if job not in order]
        if isinstance(work, Prefill):
            planner.prefilled()
        elif isinstance(work, Turn):
            planner.turned([p for p in work.places if depth.get(p)])
            depth = {p: d for p, d in depth.items() if p not in work.places or not d}
        else:
            for place in work.places:
                depth[place] = depth.get(place, 0) + 1
            planner.passed([depth[place] >= passes for place in work.places])
    return order


def test_priority_jumps_the_queue_but_nobody_starves():
    planner = Scheduler(Knobs(places=1, max_rows=1, block_size=4), BlockPool(4))
    jobs = [Job(name=str(i), prompt=[1], positions=2, priority=i > 0) for i in range(BOOST + 20)]
    for job in jobs:
        planner.add(job)
    order = finish(planner)
    assert len(order) == len(jobs)
    assert order.index(jobs[0]) == BOOST - 1, (
        "the first arrival lets fewer than BOOST later ones of higher priority pass"
    )


def test_ten_thousand_waiting_jobs_are_looked_at_once_each():
    """A queue that cannot move costs nothing per launch: keys are computed when a job comes first, not before."""
    planner = Scheduler(Knobs(places=2, max_rows=2, block_size=16, granule=16), BlockPool(600))
    jobs = [Job(name="", prompt=range(i, i + 4096), positions=4200, start=b"") for i in range(10_000)]
    for job in jobs:
        planner.add(job)
    for _ in range(50):
        work = planner.plan()
        if isinstance(work, Prefill):
            planner.prefilled()
        elif isinstance(work, Turn):
            planner.turned([])
        elif isinstance(work, Core):
            planner.passed([False] * len(work.places))
    assert sum(bool(job.keys) for job in jobs) <= 3


def test_equal_prompts_wait_for_the_first_and_share_its_blocks():
    planner = Scheduler(Knobs(places=4, max_rows=4, block_size=2, granule=2), BlockPool(40))
    jobs = [Job(name="", prompt=(1, 2, 3, 4, 5), positions=7, start=b"x") for _ in range(3)]
    for job in jobs:
        planner.add(job)
    work = planner.plan()
    assert isinstance(work, Prefill) and [p.job for p in work.pieces] == [jobs[0]]
    planner.prefilled()
    planner.plan()
    assert [job.cached for job in jobs] == [0, 4, 4]
    assert jobs[1].blocks[:2] == jobs[0].blocks[:2] and jobs[1].blocks[2] != jobs[0].blocks[2]


def test_a_cancelled_prompt_hands_over_to_those_that_waited_for_it():
    planner = Scheduler(Knobs(places=2, max_rows=2, block_size=2, granule=2), BlockPool(40))
    jobs = [Job(name="", prompt=(1, 2, 3, 4, 5), positions=7, start=b"x") for _ in range(2)]
    for job in jobs:
        planner.add(job)
    planner.plan()
    planner.cancel(jobs[0])
    assert not jobs[0].over, "its launch is under way"
    planner.prefilled()
    assert jobs[0].over
    work = planner.plan()
    assert isinstance(work, Prefill) and work.pieces[0] == (jobs[1], 0, 5)
