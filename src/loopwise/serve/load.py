"""Clients that load a server over HTTP, some of them badly behaved, in a process of their own.

Nothing here imports torch: the process starts at once, and takes no time from the server's interpreter.
"""

import asyncio
import contextlib
import copy
import json
import multiprocessing
import random
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field

CLOCK = time.perf_counter
BAD = (b"{", b'{"model":"tiny","prompt":"x","n":0}', b'{"model":"tiny:cheap","prompt":"x"}', b'{"prompt":"x"}', b"\xff")
WORDS = "the island sea mountain people government capital river king lion water house country road old city".split()
STATES = ("finished", "cancelled", "refused", "failed")


@dataclass
class Seen:
    """What clients saw of one tier. Times in seconds."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    tokens: int = 0
    loops: int = 0
    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))


class Load:
    """`streams` clients of the server of model `name` at `port`, and what they saw: `seen` by tier, `wrong` counts
    answers to nonsense by status, `took` is the seconds until all had ended."""

    def __init__(self, name: str, port: int, tiers: list[str], streams: int, max_tokens: int, seed: int) -> None:
        self.name, self.port, self.tiers, self.streams, self.max_tokens = name, port, tiers, streams, max_tokens
        self.rng = random.Random(seed)
        self.seen = {tier: Seen() for tier in tiers}
        self.wrong: dict[int, int] = {}
        self.took = 0.0

    def fresh(self) -> "Load":
        """The same clients, who have seen nothing yet."""
        found = copy.copy(self)
        found.seen, found.wrong, found.took = {tier: Seen() for tier in self.tiers}, {}, 0.0
        return found

    def run(self, tiers: list[str], rough: bool, seconds: float) -> "Load":
        """Load on some tiers for a time; `rough` clients misbehave."""
        begun = CLOCK()
        asyncio.run(self._all(tiers, rough, begun + seconds))
        self.took += CLOCK() - begun
        return self

    async def _all(self, tiers: list[str], rough: bool, until: float) -> None:
        await asyncio.gather(*(self._client(tiers[i % len(tiers)], rough, until) for i in range(self.streams)))

    async def _client(self, tier: str, rough: bool, until: float) -> None:
        while CLOCK() < until:
            draw = self.rng.random()
            if rough and draw < 0.05:
                await self._nonsense()
            else:
                leaves, slow = rough and draw < 0.25, rough and draw > 0.9
                await self._ask(tier, leaves, slow)

    async def _nonsense(self) -> None:
        async with connection(self.port) as (reader, writer):
            writer.write(request(self.rng.choice(BAD)))
            status = int((await reader.readline()).split()[1])
            self.wrong[status] = self.wrong.get(status, 0) + 1

    async def _ask(self, tier: str, leaves: bool, slow: bool) -> None:
        """One stream, read to its end unless the client leaves before."""
        rng, seen = self.rng, self.seen[tier]
        prompt = "The " + " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 40)))
        body = {
            "model": f"{self.name}:{tier}", "prompt": prompt, "max_tokens": rng.randint(2, self.max_tokens),
            "temperature": 0.8, "seed": rng.randrange(1 << 30), "stream": True, "return_token_ids": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        stay = rng.randint(0, body["max_tokens"]) if leaves else 1 << 30
        begun, state = CLOCK(), "failed"
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError, ValueError, IndexError):
            async with connection(self.port) as (reader, writer), asyncio.timeout(300):
                writer.write(request(json.dumps(body).encode()))
                status = int((await reader.readline()).split()[1])
                state = await self._read(reader, seen, begun, stay, slow) if status == 200 else "refused"
        seen.states[state] += 1

    async def _read(self, reader: asyncio.StreamReader, seen: Seen, begun: float, stay: int, slow: bool) -> str:
        """Follow a stream; the state it ended in. Slow readers' times are not counted."""
        count, last = 0, begun
        while True:
            line = await reader.readline()
            if not line or count >= stay:
                return "cancelled" if line else "failed"
            if not line.startswith(b"data: "):
                continue
            now = CLOCK()
            if line.startswith(b"data: [DONE]"):
                seen.e2e += [] if slow else [now - begun]
                return "finished"
            chunk = json.loads(line[6:])
            if "error" in chunk:
                return "failed"
            made = sum(len(choice["token_ids"]) for choice in chunk["choices"])
            if chunk.get("usage"):
                seen.loops += chunk["usage"]["compute"]["loops"]
                seen.tokens += chunk["usage"]["completion_tokens"]
            elif made and not slow:
                (seen.itl if count else seen.ttft).extend([(now - last) / made] * (made if count else 1))
            count, last = count + made, now
            if slow:
                await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is closed at once at the end, whatever is on its way."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def request(body: bytes) -> bytes:
    """A request for a completion."""
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Clients(ProcessPoolExecutor):
    """The process that loads run in."""

    def __init__(self) -> None:
        super().__init__(max_workers=1, mp_context=multiprocessing.get_context("spawn"))

    def begin(self, load: Load, tiers: list[str], rough: bool, seconds: float) -> Future[Load]:
        """`Load.run` there, which ends with the load as it is afterwards. Until then nothing of what clients see is
        in this process, so that its memory is the server's."""
        return self.submit(load.run, tiers, rough, seconds)

    def run(self, load: Load, tiers: list[str], rough: bool, seconds: float) -> Load:
        """The same, waited for."""
        return self.begin(load, tiers, rough, seconds).result()
