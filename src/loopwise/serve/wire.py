"""HTTP connections that cannot be held for nothing: time limits on headers and on readers that read nothing."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from loopwise.serve.settings import ServeConfig


class Guarded(H11Protocol):
    """uvicorn's protocol with two timers.

    A connection that has begun no request, or only part of one, is closed after `header_s` seconds; between requests
    uvicorn's own keep-alive limit holds. A client that leaves its answer unread for `stall_s` seconds is cut off, so
    that what waits for it does not stay in memory.
    """

    header_s = 15.0
    stall_s = 60.0
    _opening: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the first timer."""
        super().connection_made(transport)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        """Stop it once a request's headers are complete; a next request has the same time."""
        super().data_received(data)
        self._watch_headers()

    def _watch_headers(self) -> None:
        complete = self.cycle is not None and not self.cycle.response_complete
        idle = self.cycle is not None and self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is not None
        if complete or idle or not self.header_s:
            self._opening = _cancelled(self._opening)
        elif self._opening is None:
            self._opening = self.loop.call_later(self.header_s, self._late)

    def _late(self) -> None:
        self._opening = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def pause_writing(self) -> None:
        """The client does not keep up: give it some time."""
        super().pause_writing()
        if self._stalled is None and self.stall_s:
            self._stalled = self.loop.call_later(self.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._stalled = _cancelled(self._stalled)

    def connection_lost(self, exc: Exception | None) -> None:
        """No timer outlives its connection."""
        self._opening, self._stalled = _cancelled(self._opening), _cancelled(self._stalled)
        super().connection_lost(exc)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def protocol(config: ServeConfig) -> type[Guarded]:
    """The protocol class with a server's limits."""
    return type("Limited", (Guarded,), {"header_s": config.header_s, "stall_s": config.stall_s})
