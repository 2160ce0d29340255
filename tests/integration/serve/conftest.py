"""A server on `tiny` in this process, its event loop in a thread, on a free port of 127.0.0.1."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import jaxtyping
import pytest

from loopwise.checkpoint.native import open_checkpoint
from loopwise.serve.run import Server, build_service, listen
from loopwise.serve.service import Service
from loopwise.serve.settings import ServeConfig


class Running:
    """A running server and a client for it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.socket = listen("127.0.0.1", 0)
        self.server = Server(service, host="127.0.0.1", port=0)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        until = time.monotonic() + 60
        while not self.server.started:
            assert self.thread.is_alive() and time.monotonic() < until
            time.sleep(0.01)
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json={"model": "tiny", **body})

    def complete(self, prompt: Any = "The capital of", **body: Any) -> dict[str, Any]:
        answer = self.post("/v1/completions", prompt=prompt, **{"max_tokens": 8, "temperature": 0, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, path: str = "/v1/completions", status: int = 400, **body: Any) -> dict[str, Any]:
        given = {"prompt": "x"} if path == "/v1/completions" else {}
        answer = self.post(path, **given | body)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        return error

    def call(self, function: Any) -> Any:
        """Run a function on the server's event loop."""

        async def work() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(work(), self.server._loop).result(10)

    def idle(self) -> None:
        """Wait until the engine has nothing left, and check that nothing leaked."""
        engine = self.service.engine.engine
        until = time.monotonic() + 60
        while engine.busy or engine.planner.jobs:
            assert time.monotonic() < until, "requests that nobody waits for still run"
            time.sleep(0.01)
        engine.planner.check_integrity()
        assert engine.blocks.num_held == 0
        assert self.service.waiting_tokens == 0

    def stop(self) -> None:
        self.http.close()
        if self.thread.is_alive():
            self.call(lambda: setattr(self.server, "should_exit", True))
            self.thread.join(30)
        self.socket.close()
        assert not self.thread.is_alive()


@contextmanager
def running(
    *, engine: dict[str, Any] | None = None, tiers: dict[str, str] | None = None, **config: Any
) -> Iterator[Running]:
    settings = ServeConfig(**{"name": "tiny", **config})
    tiers = {"economy": "rel_change<0.438,max=8", "kl": "kl<0.192,max=8", "full": "depth=8", **(tiers or {})}
    found = Running(build_service(open_checkpoint("tiny"), settings, engine=engine, tiers=tiers))
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="session")
def serve():
    """Start a server with settings of its own: `with serve(rate=1) as server`."""
    return running


@pytest.fixture(scope="session", autouse=True)
def _no_shape_checks():
    """The server's threads outlive tests, and tests/unit/engine has the checks on."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with running() as found:
        yield found
        found.idle()
