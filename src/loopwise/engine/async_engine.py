"""`AsyncEngine`: an engine in a thread of its own, and streams of its events for an event loop. See docs/engine.md.

The thread owns the engine. Everything that changes it goes through an inbox that the thread empties between launches.
Events travel the other way in one `call_soon_threadsafe` per launch and event loop; a stream that is not being read
collects them, so a slow reader gets fewer, larger deltas and never slows the engine.
"""

import asyncio
import dataclasses
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from loopwise.config import InputError
from loopwise.engine.engine import Engine
from loopwise.engine.request import Event, Request

_LOG = logging.getLogger(__name__)


class EngineFault(RuntimeError):
    """The engine takes no requests: it failed, was stopped or is being drained."""


class Delta(NamedTuple):
    """All events that arrived since the last one, oldest first."""

    events: list[Event]


class Stream:
    """Events of one request, as an asynchronous iterator of `Delta`. Also a context manager that cancels on exit."""

    def __init__(self, server: "AsyncEngine", request: Request) -> None:
        assert request.id is not None
        self.id, self.request = request.id, request
        self.loop = asyncio.get_running_loop()
        self._server, self._arrived = server, asyncio.Event()
        self._events: list[Event] = []
        self._open, self._ended = request.params.n, False

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Delta:
        try:
            while not self._events and not self._ended:
                await self._arrived.wait()
                self._arrived.clear()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if not self._events:
            raise StopAsyncIteration
        events, self._events = self._events, []
        return Delta(events)

    def cancel(self) -> None:
        """Forget the request: the iteration ends after what has arrived. Everything it held is free at the next turn.
        Call it from the event loop; harmless when the request has ended."""
        if not self._ended:
            self._end()
            self._server.cancel(self)

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None):
        self.cancel()

    def push(self, events: list[Event]) -> None:
        """Take events, in the event loop."""
        if self._ended:
            return
        self._events += events
        self._open -= sum(event.finish is not None for event in events)
        self._arrived.set()
        if self._open <= 0:
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._arrived.set()


class AsyncEngine:
    """See the module. `start` before the first `submit`; `stop` at the end."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._ended = ""  # why, once the thread has ended
        self._inbox: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        self._stopping = self._draining = False
        self._streams: dict[str, Stream] = {}  # the loop adds, the engine's thread removes
        self._names = itertools.count()
        self._submitted = self._accepted = 0  # counted by the loop and by the thread
        self._thread = threading.Thread(target=self._work, name="loopwise-engine", daemon=True)

    # From the event loop

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def submit(self, request: Request) -> Stream:
        """Queue a request. `InputError` if it can never run, `EngineFault` if the engine takes none."""
        if self._ended or self._draining or self._stopping:
            raise EngineFault(self._ended or "the engine is shutting down: no new requests")
        request = self.engine.check(request)
        name = f"s{next(self._names)}" if request.id is None else request.id
        if name in self._streams:
            raise InputError(f"request id '{name}' is in use: choose another")
        stream = self._streams[name] = Stream(self, dataclasses.replace(request, id=name))
        self._submitted += 1
        self._post(lambda: self._accept(stream))
        if self._ended:  # it failed meanwhile, and may not have seen this stream
            raise EngineFault(self._ended)
        return stream

    async def drain(self) -> None:
        """Refuse new requests and wait until the running ones have ended."""
        self._draining = True
        while self._streams and not self._ended:
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        """End the thread after the launch under way; streams that are still open end with `finish="error"`."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    # From any thread

    @property
    def ended(self) -> str:
        """Why the thread has ended, or empty while it works."""
        return self._ended

    @property
    def waiting(self) -> int:
        """Choices that have no place yet (a request with n choices counts n times)."""
        return self._submitted - self._accepted + self.engine.planner.num_waiting

    @property
    def running(self) -> int:
        """Choices being computed."""
        return len(self.engine.planner.jobs)

    def stats(self) -> dict[str, Any]:
        """The engine's counters. Each is read whole, though not all at one moment."""
        return self.engine.stats()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prompts, at the next turn."""
        self._post(self.engine.reset_prefix_cache)

    def _post(self, action: Callable[[], object]) -> None:
        self._inbox.append(action)
        self._wake.set()

    def cancel(self, stream: Stream) -> None:
        """See `Stream.cancel`."""
        self._post(lambda: self._forget(stream))

    # In the engine's thread

    def _work(self) -> None:
        try:
            while not self._stopping:
                if not self.engine.busy and not self._inbox:
                    self._wake.wait()
                self._wake.clear()
                while self._inbox:
                    self._inbox.popleft()()
                if self.engine.busy:
                    self._deliver(self.engine.step())
            self._end("the engine was stopped")
        except Exception as error:  # whatever it is, nobody may wait for ever
            _LOG.exception("the engine failed")
            self._end(f"the engine failed: {type(error).__name__}: {error}")

    def _accept(self, stream: Stream) -> None:
        self._accepted += 1
        if self._streams.get(stream.id) is stream:
            self.engine.submit(stream.request)

    def _forget(self, stream: Stream) -> None:
        if self._streams.get(stream.id) is stream:  # not a later request of the same name
            del self._streams[stream.id]
            self.engine.cancel(stream.id)

    def _deliver(self, events: list[Event]) -> None:
        batches: dict[str, list[Event]] = {}
        for event in events:
            batches.setdefault(event.id, []).append(event)
        loops: dict[asyncio.AbstractEventLoop, list[tuple[Stream, list[Event]]]] = {}
        for name, found in batches.items():
            stream = self._streams[name]
            loops.setdefault(stream.loop, []).append((stream, found))
            if not self.engine.choices(name):
                del self._streams[name]
        for loop, pairs in loops.items():
            self._send(loop, pairs)

    def _send(self, loop: asyncio.AbstractEventLoop, pairs: list[tuple[Stream, list[Event]]]) -> None:
        try:
            loop.call_soon_threadsafe(_push, pairs)
        except RuntimeError:  # the loop is closed: nobody reads these any more
            for stream, _ in pairs:
                self._forget(stream)

    def _end(self, reason: str) -> None:
        """End every stream with an error."""
        self._ended = reason
        for stream in list(self._streams.values()):
            choices = self.engine.choices(stream.id) or range(stream.request.params.n)
            self._send(stream.loop, [(stream, [_error(stream.id, index, reason) for index in choices])])
        self._streams.clear()


def _push(pairs: list[tuple[Stream, list[Event]]]) -> None:
    for stream, events in pairs:
        stream.push(events)


def _error(name: str, index: int, reason: str) -> Event:
    return Event(name, index, -1, "", 0, finish="error", stop_reason=reason)
