"""`AsyncEngine`: streams for an event loop, cancellation, draining, faults."""

import asyncio
import gc

import pytest
import torch

from loopwise.config import InputError
from loopwise.engine.async_engine import AsyncEngine, EngineFault
from loopwise.engine.engine import Engine
from loopwise.engine.llm import LLM
from loopwise.engine.request import EngineConfig, Request
from loopwise.engine.sequence import collect
from loopwise.sampling import SamplingParams


def serve(model, scenario, **options):
    """Run `scenario(server)` in an event loop, then stop the server; every place and block must be free."""
    server = AsyncEngine(Engine(model, EngineConfig(policy="depth=5", max_rows=4, kv_tokens=400, **options)))
    server.start()
    try:
        result = asyncio.run(asyncio.wait_for(scenario(server), 60))
    finally:
        server.stop()
    return server, result


async def read(stream):
    return [event async for delta in stream for event in delta.events]


def idle(server) -> bool:
    engine = server.engine
    engine.planner.check_integrity()
    return not engine.busy and engine.blocks.num_held == 0 and not server.running and not server.waiting


def request(start: int, tokens: int = 6, **changes) -> Request:
    return Request(prompt=[start, 3, 4], params=SamplingParams(max_tokens=tokens, **changes), policy="rel_change<0.3")


def test_streams_give_what_offline_gives(small):
    async def scenario(server):
        return await asyncio.gather(*(read(server.submit(request(i))) for i in range(9)))

    server, streams = serve(small, scenario)
    offline = LLM(small, policy="depth=5").generate([[i, 3, 4] for i in range(9)], request(0).params, "rel_change<0.3")
    for events, output in zip(streams, offline, strict=True):
        assert collect(events).tokens == output.tokens and collect(events).depths == output.depths
    assert idle(server) and server.stats()["finished"] == 9


def test_all_choices_arrive(small):
    async def scenario(server):
        return await read(server.submit(request(1, n=3, temperature=1.0, seed=4)))

    _, events = serve(small, scenario)
    assert sorted(e.index for e in events if e.finish) == [0, 1, 2] and len(events) == 18


def test_a_slow_reader_gets_merged_deltas(small):
    async def scenario(server):
        slow = server.submit(request(1, tokens=30))
        await read(server.submit(request(2, tokens=40)))
        await server.drain()
        return [delta async for delta in slow]

    _, deltas = serve(small, scenario)
    assert len(deltas) == 1 and len(deltas[0].events) == 30


@pytest.mark.parametrize("way", ["call", "context", "task"])
def test_cancelling_frees_everything(small, way):
    async def scenario(server):
        stream = server.submit(request(1, tokens=60))
        if way == "task":
            task = asyncio.create_task(read(stream))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif way == "context":
            async with stream:
                async for _ in stream:
                    break
        else:
            stream.cancel()
            stream.cancel()
        rest = await read(stream)
        await server.drain()
        return rest

    server, rest = serve(small, scenario)
    assert all(event.finish is None for event in rest) and idle(server)


def test_a_name_can_be_used_again_after_its_end_but_not_before(small):
    async def scenario(server):
        named = Request(prompt=[1, 2], params=SamplingParams(max_tokens=30), id="x")
        first = server.submit(named)
        with pytest.raises(InputError, match="in use"):
            server.submit(named)
        await read(first)
        second = server.submit(named)
        first.cancel()  # over: must not touch its namesake
        return await read(second)

    _, events = serve(small, scenario)
    assert len(events) == 30


def test_mistakes_are_refused_at_once(small):
    async def scenario(server):
        for bad, message in ((Request(prompt=[]), "no tokens"), (Request(prompt=[1] * 80), "context"),
                             (Request(prompt=[1], policy="depth=9"), "out of range")):  # fmt: skip
            with pytest.raises(InputError, match=message):
                server.submit(bad)

    server, _ = serve(small, scenario)
    assert idle(server)


def test_draining_finishes_what_runs_and_refuses_the_rest(small):
    async def scenario(server):
        stream = server.submit(request(1, tokens=20))
        waiter = asyncio.create_task(server.drain())
        await asyncio.sleep(0)
        with pytest.raises(EngineFault, match="shutting down"):
            server.submit(request(2))
        await waiter
        return await read(stream)

    server, events = serve(small, scenario)
    assert events[-1].finish == "length" and idle(server)


def test_stopping_ends_open_streams_with_an_error(small):
    async def scenario(server):
        stream = server.submit(request(1, tokens=60))
        await asyncio.to_thread(server.stop)
        events = await read(stream)
        with pytest.raises(EngineFault, match="stopped"):
            server.submit(request(2))
        return events

    _, events = serve(small, scenario)
    assert events[-1].finish == "error" and "stopped" in events[-1].stop_reason


def test_a_mask_that_fails_ends_its_own_request(small):
    def explode(output):
        raise ValueError("no such grammar")

    def misshapen(output):
        return torch.ones(3, dtype=torch.bool)

    async def scenario(server):
        healthy = server.submit(request(1, tokens=20))
        params = SamplingParams(max_tokens=9)
        broken = [server.submit(Request(prompt=[1, 2], params=params, mask=mask)) for mask in (explode, misshapen)]
        return await asyncio.gather(read(healthy), *map(read, broken))

    server, (healthy, *broken) = serve(small, scenario)
    assert healthy[-1].finish == "length" and idle(server)
    assert [events[-1].finish for events in broken] == ["error", "error"]
    assert "no such grammar" in broken[0][-1].stop_reason and "61" in broken[1][-1].stop_reason


def test_masks_say_which_tokens_may_follow(small):
    def even(output):
        return torch.arange(61) % 2 == len(output) % 2

    async def scenario(server):
        params = SamplingParams(max_tokens=8)
        return await read(server.submit(Request(prompt=[1, 2], params=params, mask=even)))

    _, events = serve(small, scenario)
    assert [event.token % 2 for event in events] == [0, 1] * 4


def test_a_fault_ends_every_stream_and_later_calls_say_why(small, caplog):
    async def scenario(server):
        streams = [server.submit(request(i, tokens=60)) for i in range(2)]

        def explode(places):
            raise ValueError("no such device")

        server.engine.runner.coda = explode
        found = await asyncio.gather(*map(read, streams))
        with pytest.raises(EngineFault, match="no such device"):
            server.submit(request(2))
        await server.drain()
        return found

    _, found = serve(small, scenario)
    assert all(events[-1].finish == "error" for events in found)
    assert "the engine failed" in caplog.text


def test_a_closed_loop_is_a_reader_that_went_away(small):
    server = AsyncEngine(Engine(small, EngineConfig(policy="depth=5")))

    async def leave():
        server.submit(request(1, tokens=30))

    asyncio.run(leave())  # nothing runs yet; when it does, its reader's loop is closed
    server.start()
    asyncio.run(server.drain())
    server.stop()
    gc.collect()
    assert idle(server)


def test_the_prefix_cache_can_be_reset(small):
    async def scenario(server):
        prompt = list(range(40))
        cached = []
        for reset in (False, False, True):
            if reset:
                server.reset_prefix_cache()
            events = await read(server.submit(Request(prompt=prompt, params=SamplingParams(max_tokens=2))))
            cached.append(events[-1].usage.cached_tokens)
        return cached

    _, cached = serve(small, scenario)
    assert cached[0] == cached[2] == 0 < cached[1]
