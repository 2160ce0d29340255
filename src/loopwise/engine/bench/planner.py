"""What planning costs, without a model: time per turn by queue length, and per prompt by context."""

import time
from statistics import median
from typing import Any

from loopwise.engine.blocks import BlockPool
from loopwise.engine.job import Job
from loopwise.engine.prefix import chain_start
from loopwise.engine.scheduler import Core, Knobs, Prefill, Scheduler, Turn

SIZE, PLACES = 64, 64


def bench_planner(quick: bool = False) -> dict[str, Any]:
    """Microseconds per turn with few and with very many requests waiting, and per request by prompt length."""
    queues = (10, 200) if quick else (100, 10_000)
    lengths = (512, 1024) if quick else (512, 4096)
    rows, ratios = [], {}
    turns = [_turn_us(queued, lengths[0], 100 if quick else 2000) for queued in queues]
    for queued, value in zip(queues, turns, strict=True):
        rows.append({"name": f"planner: a turn, {queued} queued", "value": value, "unit": "us"})
    ratios["planner: longest queue/shortest"] = round(turns[1] / turns[0], 4)
    admitted = [_request_us(length, 20 if quick else 200) for length in lengths]
    for length, value in zip(lengths, admitted, strict=True):
        rows.append({"name": f"planner: a request of {length} tokens", "value": value, "unit": "us"})
    per_token = [value / length for value, length in zip(admitted, lengths, strict=True)]
    ratios["planner: per token, longest/shortest"] = round(per_token[1] / per_token[0], 4)
    return {"rows": rows, "ratios": ratios}


def _planner(blocks: int) -> Scheduler:
    knobs = Knobs(places=PLACES, max_rows=PLACES // 2, block_size=SIZE, min_turn=16, chunk=256, granule=SIZE)
    return Scheduler(knobs, BlockPool(blocks))


def _job(number: int, length: int) -> Job:
    return Job(name="", prompt=range(number, number + length), positions=length + 64, start=chain_start("x"))


def _turn_us(queued: int, length: int, turns: int) -> float:
    """Median time of planning and reporting a launch, arrivals and departures included."""
    planner = _planner(PLACES * 2 * (length // SIZE + 2))
    jobs = [_job(number, length) for number in range(queued + PLACES)]
    for job in jobs:
        planner.add(job)
    spent, made = [], 0
    for turn in range(turns):
        begun = time.perf_counter()
        made += _turn(planner, turn)
        planner.add(_job(10**6 + turn, length))  # as many come as go
        spent.append(time.perf_counter() - begun)
    return 1e6 * median(spent)


def _turn(planner: Scheduler, turn: int) -> int:
    work = planner.plan()
    if isinstance(work, Prefill):
        planner.prefilled()
    elif isinstance(work, Core):
        planner.passed([(place + turn) % 5 == 0 for place in work.places])
    elif isinstance(work, Turn):
        planner.turned([place for place in work.places if (place + turn) % 40 == 0])
        return len(work.places)
    return 0


def _request_us(length: int, requests: int) -> float:
    """Time of all planning of a request: hash chain, blocks, prompt pieces, publication, release."""
    planner = _planner(4 * (length // SIZE + 2))
    jobs = [_job(number, length) for number in range(requests)]
    begun = time.perf_counter()
    for job in jobs:
        planner.add(job)
        while not job.over:
            work = planner.plan()
            if isinstance(work, Prefill):
                planner.prefilled()
            elif isinstance(work, Turn):
                planner.turned(work.places)
    return 1e6 * (time.perf_counter() - begun) / requests
