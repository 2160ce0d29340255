"""Answers that end when their reader does: server-sent events, and work that is cancelled when the client leaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

KEEP_ALIVE_S = 15.0
DONE = b"data: [DONE]\n\n"
GONE = 499  # nginx's word for a client that left


def event(value: Any) -> bytes:
    """One event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"


async def gone(receive: Receive) -> None:
    """Return once the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The response that `work` makes; if the client leaves first, `work` is cancelled."""
    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone(request.receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else Response(status_code=GONE)
    finally:
        await stopped(task, leaving)


async def stopped(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they are over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(Response):
    """Server-sent events from `source`, which is closed when the client leaves. A slow reader slows only its source:
    the connection passes on back pressure, and ends when nothing is read for long (see `wire.py`)."""

    media_type = "text/event-stream"

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until either end stops."""
        writing, leaving = asyncio.ensure_future(self._write(send)), asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            await stopped(writing, leaving)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            while (piece := await self._next(send)) is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()

    async def _next(self, send: Send) -> bytes | None:
        """The next piece; a comment goes out while there is none for long, so that proxies keep the connection."""
        task = asyncio.ensure_future(_advance(self._source))
        try:
            while not (await asyncio.wait({task}, timeout=KEEP_ALIVE_S))[0]:
                await send({"type": "http.response.body", "body": b": keep-alive\n\n", "more_body": True})
            return task.result()
        finally:
            if not task.done():
                await stopped(task)


async def _advance(source: AsyncIterator[bytes]) -> bytes | None:
    async for piece in source:
        return piece
    return None
