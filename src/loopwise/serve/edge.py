"""The edge of the server: request ids, keys, limits on bodies and rates, and the access log. Plain ASGI.

The log has one line per request, with neither prompts nor answers nor keys in it.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopwise.serve.errors import ApiError, unavailable
from loopwise.serve.metrics import Metrics
from loopwise.serve.settings import ServeConfig

ACCESS = logging.getLogger("loopwise.access")
GUARDED = ("/v1/", "/tokenize", "/detokenize")
_ID = re.compile(rb"^[A-Za-z0-9._-]{1,128}$")
FULL_BODIES = 64  # as many bodies of full size may be in memory at a time
_CLOCK = time.monotonic


class Keys:
    """Digests of the API keys, compared in constant time; `find` says which one was shown."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, header: bytes | None) -> int | None:
        """Number of the key in an `Authorization: Bearer` header, or None. Looks at all of them, whatever it finds."""
        kind, _, shown = (header or b"").partition(b" ")
        digest = hashlib.sha256(shown.strip()).digest()
        found = None
        for number, own in enumerate(self._digests):
            if hmac.compare_digest(digest, own):
                found = number
        return found if kind.lower() == b"bearer" else None


class Bucket:
    """Requests of one key: `rate` a minute, in bursts of as many, and how many are under way."""

    def __init__(self, rate: int) -> None:
        self._rate, self._level, self._at, self.active = rate, float(rate), _CLOCK(), 0

    def wait(self) -> float:
        """Take one: 0, or the seconds until one is there."""
        now = _CLOCK()
        self._level, self._at = min(self._rate, self._level + (now - self._at) * self._rate / 60), now
        if self._level < 1:
            return (1 - self._level) * 60 / self._rate
        self._level -= 1
        return 0.0


class Seen(NamedTuple):
    """What the access log says of a request once it is over."""

    id: str
    method: str
    path: str
    begun: float


class Edge:
    """ASGI middleware; see the module."""

    def __init__(self, app: ASGIApp, config: ServeConfig, metrics: Metrics) -> None:
        self._app, self._config, self._metrics = app, config, metrics
        self._keys = Keys(config.keys)
        self._buckets: dict[int | None, Bucket] = {}
        self._held = 0  # bytes of bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        shown = _header(scope, b"x-request-id")
        name = shown.decode() if shown and _ID.match(shown) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = name
        seen, status = Seen(name, scope["method"], scope["path"], _CLOCK()), [0]

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self._guarded(scope, receive, named)
        except ApiError as error:
            await error.response()(scope, receive, named)
        finally:
            self._log(scope, seen, status[0])

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith(GUARDED):
            await self._enter(scope, receive, send)
            return
        key = self._keys.find(_header(scope, b"authorization")) if self._keys else None
        if self._keys and key is None:
            message = "a valid API key is needed: send it as 'Authorization: Bearer KEY'"
            raise ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        if scope["method"] != "POST":
            await self._enter(scope, receive, send)
            return
        bucket = self._bucket(key)
        bucket.active += 1
        try:
            await self._enter(scope, receive, send)
        finally:
            bucket.active -= 1

    def _bucket(self, key: int | None) -> Bucket:
        """The key's bucket, with room for one more request; else 429."""
        config = self._config
        bucket = self._buckets.setdefault(key, Bucket(config.rate))
        if config.per_key and bucket.active >= config.per_key:
            raise self._too_many(f"this key has {bucket.active} requests under way, its limit", 1.0)
        wait = bucket.wait() if config.rate else 0.0
        if wait:
            raise self._too_many(f"this key may ask {config.rate} times a minute", wait)
        return bucket

    def _too_many(self, message: str, wait: float) -> ApiError:
        self._metrics.rejected("rate_limit")
        headers = {"retry-after": str(max(1, round(wait))), "retry-after-ms": str(max(1, round(wait * 1000)))}
        return ApiError(429, f"{message}: try again later", code="rate_limit_exceeded", headers=headers)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body within its limits, then hand the request on."""
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        try:
            try:
                whole = await asyncio.wait_for(self._read(scope, receive, body), self._config.body_s or None)
            except TimeoutError:
                raise ApiError(408, "the body took too long to arrive", headers={"connection": "close"}) from None
            if whole:
                await self._app(scope, _replay(body, receive), send)
        finally:
            self._held -= len(body)

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> bool:
        """Read the body; False if the client left before its end."""
        limit = self._config.body_bytes
        length = _header(scope, b"content-length")
        while True:
            if len(body) > limit or (length is not None and length.isdigit() and int(length[:18]) > limit):
                headers = {"connection": "close"}
                raise ApiError(413, f"the body is larger than {limit} bytes: send less", headers=headers)
            if self._held > FULL_BODIES * limit:
                self._metrics.rejected("queue_full")
                raise unavailable("too many large requests are under way: try again shortly", "overloaded")
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            body += message.get("body", b"")
            self._held += len(message.get("body", b""))
            if not message.get("more_body") and len(body) <= limit:
                return True

    def _log(self, scope: Scope, seen: Seen, status: int) -> None:
        route = scope.get("route")  # a template, so that paths cannot multiply labels without bound
        path = getattr(route, "path", "other")
        self._metrics.http.labels(seen.method if seen.method in _METHODS else "other", path, str(status)).inc()
        client = (scope.get("client") or ("-",))[0]
        ACCESS.info(
            "%s %s %s %d %.1fms id=%s%s", client, seen.method, _printable(seen.path), status,
            (_CLOCK() - seen.begun) * 1000, seen.id, scope["state"].get("note", ""),
        )  # fmt: skip


def _replay(body: bytearray, receive: Receive) -> Receive:
    """A `receive` that gives the body first, and then what else comes."""
    left = [body]

    async def replay() -> Message:
        if left:
            return {"type": "http.request", "body": bytes(left.pop()), "more_body": False}
        return await receive()

    return replay


_METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")


def _printable(path: str) -> str:
    """A path that cannot forge lines of the log."""
    return "".join(c if c.isprintable() and c != " " else "?" for c in path[:200])


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)
