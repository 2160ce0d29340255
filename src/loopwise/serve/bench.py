"""`loopwise bench serve`: a server under load, over HTTP, and what it owes afterwards.

The load: `--streams` clients at a time for `--seconds`, half of them on `economy` and half on `full`, of which a fifth
leave in the middle, some read slowly and some send nonsense. At the end the engine must be empty, nothing may have
leaked, every request must have ended in a defined state, and memory must be flat. Then each tier has the server to
itself for a while, in turns, so that their throughput ratio can be put beside what calibration says.
"""

import argparse
import asyncio
import contextlib
import gc
import importlib
import json
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loopwise import hardware, records
from loopwise.checkpoint.native import Checkpoint, open_checkpoint
from loopwise.config import InputError
from loopwise.engine.engine import Engine
from loopwise.model.cost import Cost
from loopwise.serve.settings import ServeConfig

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


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--checkpoint", default="tiny", metavar="CKPT", help="what to serve (default tiny)")
    parser.add_argument("--streams", type=int, default=64, metavar="N", help="clients at a time (default 64)")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of mixed load (default 60)")
    parser.add_argument("--alone", type=float, default=20.0, metavar="S", help="for each tier alone, in turns (default 20)")  # fmt: skip  # noqa: E501
    parser.add_argument("--max-tokens", type=int, default=48, metavar="N", help="longest answer (default 48)")
    parser.add_argument("--tiers", default="economy,full", metavar="A,B", help="cheap and dear (default economy,full)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and misbehaviour (default 0)")


def bench_serve(args: argparse.Namespace) -> dict[str, Any]:
    """Rows, ratios and manifest."""
    checkpoint, tiers = open_checkpoint(args.checkpoint), args.tiers.split(",")
    if len(tiers) != 2 or args.streams < 2 or args.seconds <= 0 or args.alone <= 0 or args.max_tokens < 2:
        raise InputError("bench serve needs two tiers, at least 2 streams and 2 tokens, and some seconds")
    service = server_module().build_service(checkpoint, ServeConfig(name=checkpoint.name, max_waiting=4096))
    for tier in tiers:
        service.planner.menu.tier_of(f"{checkpoint.name}:{tier}")
    begun = time.time()
    with running(service) as port:
        load = Load(checkpoint.name, port, args)
        load.run([(tiers[0], False), (tiers[1], False)], min(5.0, args.seconds))  # warm up
        load.reset()
        memory = [resident()]
        parts = max(2, min(10, int(args.seconds // 10)))
        took = 0.0
        for _ in range(parts):
            took += load.run([(tiers[0], True), (tiers[1], True)], args.seconds / parts)
            memory.append(resident())
        mixed, wrong, health = load.seen, load.wrong, settled(service, port)
        alone: dict[str, list[tuple[Seen, float]]] = {tier: [] for tier in tiers}
        for _ in range(3):
            for tier in tiers:
                load.reset()
                alone[tier].append((load.seen[tier], load.run([(tier, False)], args.alone / 3)))
    found = _rows(took, mixed, wrong, memory, health, alone)
    return found | {
        "ratios": _ratios(service, checkpoint, tiers, alone),
        "manifest": _manifest(args, checkpoint, begun),
    }


def server_module() -> Any:
    """The server, imported only when it is needed: other benchmarks do without the extra."""
    try:
        return importlib.import_module("loopwise.serve.run")
    except ModuleNotFoundError as error:
        raise InputError(f"bench serve needs the package {error.name}: pip install 'loopwise[serve]'") from None


@contextlib.contextmanager
def running(service: Any) -> Iterator[int]:
    """A server on a free port of this machine, its event loop in a thread."""
    serving = server_module()
    taken = serving.listen("127.0.0.1", 0)
    server = serving.Server(service, host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise InputError("the server did not start: run loopwise serve to see why")
        time.sleep(0.02)
    try:
        yield taken.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        taken.close()


class Load:
    """Clients of one server. `seen` is by tier; `wrong` counts answers to nonsense by status."""

    def __init__(self, name: str, port: int, args: argparse.Namespace) -> None:
        self.name, self.port, self.args = name, port, args
        self.rng = random.Random(args.seed)
        self.reset()

    def reset(self) -> None:
        """Forget what was seen."""
        self.seen = {tier: Seen() for tier in self.args.tiers.split(",")}
        self.wrong: dict[int, int] = {}

    def run(self, kinds: list[tuple[str, bool]], seconds: float) -> float:
        """Load of several kinds (tier, whether clients misbehave) for a time; the seconds it took until all ended."""
        begun = CLOCK()
        asyncio.run(self._all(kinds, begun + seconds))
        return CLOCK() - begun

    async def _all(self, kinds: list[tuple[str, bool]], until: float) -> None:
        await asyncio.gather(*(self._client(*kinds[i % len(kinds)], until) for i in range(self.args.streams)))

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
            "model": f"{self.name}:{tier}", "prompt": prompt, "max_tokens": rng.randint(2, self.args.max_tokens),
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


def settled(service: Any, port: int) -> dict[str, Any]:
    """Wait until the engine is idle, assert that nothing leaked, and ask for its health."""
    engine: Engine = service.engine.engine
    until = CLOCK() + 60
    while (engine.busy or engine.planner.jobs) and CLOCK() < until:
        time.sleep(0.02)
    engine.planner.check_integrity()
    pool = engine.blocks
    with socket.create_connection(("127.0.0.1", port), timeout=30) as link:
        link.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        status = int(link.recv(64).split()[1])
    leaked = pool.total - pool.num_free - pool.num_cached
    stats = engine.stats()
    return {
        "leaked_blocks": leaked, "held_rows": len(engine.planner.jobs), "health": status,
        "waiting_tokens": service.waiting_tokens, "lost": stats["requests"] - stats["finished"] - stats["cancelled"],
        "host_share": stats["host_share"], "occupancy": stats["rows_per_launch"]["core"] / engine.config.max_rows,
    }  # fmt: skip


def resident() -> int:
    """Resident memory of this process in bytes (server and clients), after a garbage collection."""
    gc.collect()
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def percentile(values: list[float], percent: float) -> float:
    """Of what was seen; 0 of nothing."""
    return float(np.percentile(values, percent)) if values else 0.0


def _rows(
    took: float,
    mixed: dict[str, Seen],
    wrong: dict[int, int],
    memory: list[int],
    health: dict[str, Any],
    alone: dict[str, list[tuple[Seen, float]]],
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []

    def row(name: str, value: float, unit: str) -> None:
        rows.append({"name": name, "value": float(value), "unit": unit})

    row("mixed", took, "s")
    for tier, seen in mixed.items():
        row(f"mixed_{tier}_output", seen.tokens / took, "tokens/s")
        for what in ("ttft", "itl", "e2e"):
            for percent in (50, 95, 99):
                values = getattr(seen, what)
                row(f"mixed_{tier}_{what}_p{percent}", percentile(values, percent), "s")
        for state, count in seen.states.items():
            row(f"mixed_{tier}_{state}", count, "requests")
    row("nonsense_refused", sum(n for status, n in wrong.items() if status == 400), "requests")
    row("nonsense_other", sum(n for status, n in wrong.items() if status != 400), "requests")
    row("memory_growth", memory[-1] - memory[len(memory) // 2], "bytes")
    for name, value in health.items():
        row(name, value, "")
    for tier, runs in alone.items():
        rates = [seen.tokens / seconds for seen, seconds in runs]
        row(f"alone_{tier}_output", float(np.median(rates)), "tokens/s")
        row(
            f"alone_{tier}_mean_depth", sum(s.loops for s, _ in runs) / max(1, sum(s.tokens for s, _ in runs)), "passes"
        )
        ttft = [value for seen, _ in runs for value in seen.ttft]
        itl = [value for seen, _ in runs for value in seen.itl]
        row(f"alone_{tier}_ttft_p50", percentile(ttft, 50), "s")
        row(f"alone_{tier}_itl_p50", percentile(itl, 50), "s")
    return {"rows": rows, "memory_bytes": memory, "nonsense": {str(k): v for k, v in wrong.items()}}


def _ratios(
    service: Any, checkpoint: Checkpoint, tiers: list[str], alone: dict[str, list[tuple[Seen, float]]]
) -> dict[str, float]:
    """Throughput of the cheap tier over that of the dear one: served, and what depth alone would give."""
    cheap, dear = ([seen.tokens / seconds for seen, seconds in alone[tier]] for tier in tiers)
    served = percentile([a / b for a, b in zip(cheap, dear, strict=True) if b], 50)
    ratios = {f"{tiers[0]}_over_{tiers[1]}_served": served}
    cost = Cost.of(checkpoint.config)
    calibrated = [service.planner.menu.tiers[tier].mean_depth for tier in tiers]
    lived = [sum(s.loops for s, _ in alone[t]) / max(1, sum(s.tokens for s, _ in alone[t])) for t in tiers]
    for name, (a, b) in (("calibrated", calibrated), ("observed", lived)):
        if a and b:
            ratios |= {f"flops_at_{name}_depth": cost.bound(a, b), f"depth_{name}": b / a}
    return ratios


def _manifest(args: argparse.Namespace, checkpoint: Checkpoint, begun: float) -> dict[str, Any]:
    return records.manifest(
        command="loopwise bench serve",
        config={name: getattr(args, name) for name in ("streams", "seconds", "alone", "max_tokens", "tiers")},
        data_sha256=checkpoint.digest,
        seed=args.seed,
        hardware=hardware.describe(),
        commit=hardware.commit(),
    ) | {"checkpoint": checkpoint.name, "wall_s": round(time.time() - begun, 1)}
