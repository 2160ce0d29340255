"""A served model: admission, streams of events, scores of prompts, and what is counted on the way."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from loopwise.engine.async_engine import AsyncEngine, Stream
from loopwise.engine.request import Event, PromptToken, Request
from loopwise.sampling import SamplingParams
from loopwise.serve.errors import ApiError, unavailable
from loopwise.serve.metrics import Metrics
from loopwise.serve.plan import Plan, Planner
from loopwise.serve.settings import ServeConfig

CLOCK = time.perf_counter
Batch = tuple[int, list[Event]]


@dataclass(kw_only=True)
class Service:
    """`engine` runs in its thread; the rest lives on the event loop. `draining` refuses new requests."""

    config: ServeConfig
    engine: AsyncEngine
    planner: Planner
    metrics: Metrics
    digest: str
    draining: bool = False
    waiting_tokens: int = 0

    @property
    def trouble(self) -> str:
        """Why no requests are taken, or empty."""
        return self.engine.ended or ("the server is shutting down" if self.draining else "")

    def admit(self, plan: Plan) -> None:
        """503 if the server takes nothing, or nothing more."""
        if self.trouble:
            raise unavailable(self.trouble, "engine_unavailable" if self.engine.ended else "draining")
        choices, tokens = plan.n * len(plan.prompts), sum(map(len, plan.prompts))
        full = self.engine.waiting + choices > self.config.max_waiting
        if full or self.waiting_tokens + tokens > self.config.max_waiting_tokens:
            self.metrics.rejected("queue_full")
            raise unavailable("the queue is full: try again shortly", "overloaded")

    async def scores(self, plan: Plan) -> list[list[PromptToken]]:
        """Log-probabilities of every prompt's tokens but the first, under the policy of the request.

        The policy that computes prompts anyway does it in one go; any other one decodes the prompt, each token forced.
        504 past the time of a request.
        """
        assert plan.score is not None
        try:
            async with asyncio.timeout(self.config.request_s or None):
                return list(await asyncio.gather(*(self._score(plan, prompt, plan.score) for prompt in plan.prompts)))
        except TimeoutError:
            raise too_long() from None

    async def _score(self, plan: Plan, prompt: list[int], top: int) -> list[PromptToken]:
        if len(prompt) == 1:
            return []
        policy = plan.chosen.policy.bind(self.engine.engine.max_depth)
        if policy == self.engine.engine.prefill:
            params = SamplingParams(max_tokens=1, ignore_eos=True)
            request = Request(prompt=prompt, params=params, policy=policy, prompt_logprobs=top)
        else:
            params = SamplingParams(max_tokens=len(prompt) - 1, ignore_eos=True, logprobs=top)
            request = Request(prompt=prompt[:1], forced=prompt[1:], params=params, policy=policy)
        events: list[Event] = []
        async with self.engine.submit(request) as stream:
            async for delta in stream:
                events += delta.events
        check(events)
        if events[0].prompt_logprobs is not None:
            return list(events[0].prompt_logprobs)
        return [PromptToken(e.token, e.logprob, e.top) for e in events if e.logprob is not None]

    async def run(self, plan: Plan) -> AsyncGenerator[Batch, None]:
        """Events as they arrive, by choice. Closing the iteration cancels what still runs; it ends with 504 when a
        request takes too long, and with 500 when the engine fails."""
        begun, tokens = CLOCK(), sum(map(len, plan.prompts))
        self.waiting_tokens += tokens
        streams: list[tuple[int, Stream]] = []
        watch = self.metrics.watch(plan.chosen, begun, plan.n * len(plan.prompts))
        try:
            streams = [(base, self.engine.submit(request)) for base, request in plan.requests]
            limit = self.config.request_s or None
            async for base, events in merged(streams, None if limit is None else begun + limit):
                self.waiting_tokens -= tokens
                tokens = 0
                check(events)
                watch.take(base, events)
                for index in dict.fromkeys(event.index for event in events):
                    yield base + index, [event for event in events if event.index == index]
        finally:
            self.waiting_tokens -= tokens
            for _, stream in streams:
                stream.cancel()
            watch.close()


def check(events: list[Event]) -> None:
    """500 if the engine gave the request up."""
    for event in events:
        if event.finish == "error":
            raise ApiError(500, str(event.stop_reason), code="engine_error")


def too_long() -> ApiError:
    """504."""
    return ApiError(504, "the request took longer than this server allows", code="timeout")


async def merged(streams: list[tuple[int, Stream]], deadline: float | None) -> AsyncGenerator[Batch, None]:
    """Deltas of several streams in the order of their arrival. Past the `deadline` (of `CLOCK`) a 504 is raised."""
    tasks: dict[asyncio.Task[list[Event] | None], tuple[int, Stream]] = {}

    def listen(base: int, stream: Stream) -> None:
        tasks[asyncio.ensure_future(_next(stream))] = (base, stream)

    for base, stream in streams:
        listen(base, stream)
    try:
        while tasks:
            left = None if deadline is None else max(0.0, deadline - CLOCK())
            done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise too_long()
            for task in done:
                base, stream = tasks.pop(task)
                events = task.result()
                if events is not None:
                    listen(base, stream)
                    yield base, events
    finally:
        for task in tasks:
            task.cancel()


async def _next(stream: Stream) -> list[Event] | None:
    try:
        return (await anext(stream)).events
    except StopAsyncIteration:
        return None
