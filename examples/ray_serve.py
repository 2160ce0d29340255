"""Loopwise on Ray Serve: replicas, autoscaling on load, requests with the same beginning to the same replica.

    pip install 'loopwise[serve]' 'ray[serve]'
    python examples/ray_serve.py tiny --replicas 2 --port 8000

A thin ingress reads the beginning of each request and picks a replica by rendezvous hashing, so that its prefix cache
is warm; a replica that is down or refuses is passed over, one that died is replaced. Replicas run the ordinary server,
each on a port of its own, so everything in docs/serve.md holds behind the ingress too.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import ray
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from ray import serve

BEGINNING = 256  # characters of a prompt that decide where it goes
app = FastAPI()


# The helpers come before the classes, which Ray pickles as soon as they are defined.
async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(answer):
        async for piece in answer.aiter_raw():
            yield piece


def beginning(body: bytes) -> str:
    """What decides about the replica: the start of the prompt or of the first message."""
    try:
        asked = json.loads(body)
        found = asked.get("prompt") or asked["messages"][0]["content"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return ""
    return json.dumps(found)[:BEGINNING]


def ranked(names: list[str], key: str) -> list[str]:
    """Rendezvous hashing: a replica that comes or goes moves only its own share of the keys."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{name}\0{key}".encode()).digest())


@ray.remote(num_cpus=1)
class Replica:
    """One engine behind Loopwise's own server, on a free port of its node."""

    def __init__(self, checkpoint: str) -> None:
        # Here and not above, so that the ingress starts without torch.
        from loopwise.checkpoint.native import open_checkpoint
        from loopwise.serve.run import Server, build_service, listen
        from loopwise.serve.settings import ServeConfig

        opened = open_checkpoint(checkpoint)
        self._service = build_service(opened, ServeConfig(name=opened.name))
        self._socket = listen("0.0.0.0", 0)
        self._server = Server(self._service, host="0.0.0.0", port=0)
        sockets = [self._socket]
        threading.Thread(target=self._server.run, kwargs={"sockets": sockets}, daemon=True).start()
        while not self._server.started:
            time.sleep(0.02)

    def address(self) -> str:
        """Where it listens."""
        return f"http://{ray.util.get_node_ip_address()}:{self._socket.getsockname()[1]}"

    def state(self) -> dict[str, int]:
        """Its process, and choices under way."""
        engine = self._service.engine
        return {"pid": os.getpid(), "load": engine.running + engine.waiting}


@serve.deployment(num_replicas=1, max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0})
@serve.ingress(app)
class Ingress:
    """Sends every request to the replica that knows its beginning; adds replicas while all are busy."""

    def __init__(self, checkpoint: str, least: int, most: int, target: int) -> None:
        self._checkpoint, self._least, self._most, self._target = checkpoint, least, most, target
        self._replicas: dict[str, Any] = {}
        self._client = httpx.AsyncClient(timeout=None, trust_env=False)
        self._ready = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def _started(self) -> list[str]:
        """Addresses of the replicas. The first request waits for the fewest, later ones take what there is."""
        async with self._ready:
            if not self._tasks:
                while len(self._replicas) < self._least:
                    await self._add()
                self._tasks.add(asyncio.create_task(self._scale()))
        return list(self._replicas)

    async def _add(self) -> None:
        replica = Replica.remote(self._checkpoint)
        self._replicas[await replica.address.remote()] = replica

    async def _states(self) -> dict[str, dict[str, int]]:
        """What living replicas have to do. Those that died are forgotten."""
        asked = dict(self._replicas)
        found = await asyncio.gather(*(r.state.remote() for r in asked.values()), return_exceptions=True)
        for name, state in zip(asked, found, strict=True):
            if isinstance(state, BaseException):
                self._replicas.pop(name, None)
        return {name: state for name, state in zip(asked, found, strict=True) if isinstance(state, dict)}

    async def _scale(self) -> None:
        """Every second: one more replica above `target` choices each, one less when one fewer would do with half, and
        never fewer than `least`."""
        while True:
            await asyncio.sleep(1)
            loads = [state["load"] for state in (await self._states()).values()]
            count, total = len(loads), sum(loads)
            if count < self._least or (total > self._target * count and count < self._most):
                with contextlib.suppress(ray.exceptions.RayError):  # it did not start: try again
                    await self._add()
            elif count > self._least and loads[-1] == 0 and total < self._target * (count - 1) / 2:
                ray.kill(self._replicas.popitem()[1])

    @app.get("/replicas")
    async def replicas(self) -> JSONResponse:
        """The replicas by address, and what each has to do."""
        await self._started()
        return JSONResponse(await self._states())

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def forward(self, path: str, request: Request) -> Response:
        """Pass a request on, streams included."""
        body = await request.body()
        names = await self._started()
        headers = {k: v for k, v in request.headers.items() if k in ("content-type", "authorization", "x-request-id")}
        order = ranked(names, beginning(body))
        for name in order:
            sent = self._client.build_request(request.method, f"{name}/{path}", content=body, headers=headers)
            try:
                answer = await self._client.send(sent, stream=True)
            except httpx.TransportError:
                continue  # it is gone: the next one
            if answer.status_code == 503 and name != order[-1]:
                await answer.aclose()
                continue
            kind = answer.headers.get("content-type", "")
            return StreamingResponse(_pieces(answer), answer.status_code, media_type=kind)
        return JSONResponse({"error": {"message": "no replica answers", "type": "server_error"}}, 503)


def main() -> None:
    """Deploy, and stay until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--replicas", type=int, default=1, help="fewest")
    parser.add_argument("--most", type=int, help="most (default: as many as fewest)")
    parser.add_argument("--target", type=int, default=32, help="choices under way per replica before one more is added")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    ray.init(include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": args.host, "port": args.port})
    serve.run(Ingress.bind(args.checkpoint, args.replicas, args.most or args.replicas, args.target), route_prefix="/")
    print(f"serving {args.checkpoint} at http://{args.host}:{args.port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
