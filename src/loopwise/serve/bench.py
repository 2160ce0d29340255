"""`loopwise bench serve`: a server under load, over HTTP, and what it owes afterwards.

The load (`load.py`, in a process of its own): `--streams` clients at a time for `--seconds`, half of them on `economy`
and half on `full`, of which a fifth leave in the middle, some read slowly and some send nonsense. At the end the engine
must be empty, nothing may have leaked, every request must have ended in a defined state, and memory must be flat. Then
each tier has the server to itself for a while, in turns, so that their throughput ratio can be put beside what
calibration says.
"""

import argparse
import contextlib
import gc
import importlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np

from loopwise import hardware, records
from loopwise.checkpoint.native import Checkpoint, open_checkpoint
from loopwise.config import InputError
from loopwise.engine.engine import Engine
from loopwise.model.cost import Cost
from loopwise.serve.load import Clients, Load, Seen
from loopwise.serve.settings import ServeConfig

CLOCK = time.perf_counter


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
    with running(service) as port, Clients() as clients:
        load = Load(checkpoint.name, port, tiers, args.streams, args.max_tokens, args.seed)
        load = clients.run(load, tiers, False, min(5.0, args.seconds)).fresh()  # warm up
        memory, every = [resident()], args.seconds / max(2, min(10, int(args.seconds // 10)))
        under_way = clients.begin(load, tiers, True, args.seconds)
        while not wait([under_way], timeout=every).done:
            memory.append(resident())
        mixed, health = under_way.result(), settled(service, port)
        alone: dict[str, list[tuple[Seen, float]]] = {tier: [] for tier in tiers}
        for _ in range(3):
            for tier in tiers:
                load = clients.run(load.fresh(), [tier], False, args.alone / 3)
                alone[tier].append((load.seen[tier], load.took))
    found = _rows(mixed, memory, health, alone)
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
    """Resident memory of this process, the server's, in bytes, after a garbage collection."""
    gc.collect()
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def percentile(values: list[float], percent: float) -> float:
    """Of what was seen; 0 of nothing."""
    return float(np.percentile(values, percent)) if values else 0.0


def _rows(
    mixed: Load, memory: list[int], health: dict[str, Any], alone: dict[str, list[tuple[Seen, float]]]
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    took, wrong = mixed.took, mixed.wrong

    def row(name: str, value: float, unit: str) -> None:
        rows.append({"name": name, "value": float(value), "unit": unit})

    row("mixed", took, "s")
    for tier, seen in mixed.seen.items():
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
