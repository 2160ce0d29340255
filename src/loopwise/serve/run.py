"""Build a service from a checkpoint and run it until it is told to stop."""

import asyncio
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from loopwise.checkpoint.native import Checkpoint
from loopwise.config import InputError
from loopwise.engine.async_engine import AsyncEngine
from loopwise.engine.engine import Engine
from loopwise.engine.llm import open_engine
from loopwise.engine.request import EngineConfig, Request
from loopwise.sampling import SamplingParams
from loopwise.serve.app import build_app
from loopwise.serve.chat import ChatTemplate
from loopwise.serve.grammar import Grammars
from loopwise.serve.metrics import Metrics
from loopwise.serve.plan import Planner
from loopwise.serve.service import Service
from loopwise.serve.settings import ServeConfig
from loopwise.serve.tiers import Menu, menu
from loopwise.serve.wire import protocol

CONNECTIONS = 2048  # more open sockets than this are not accepted; idle ones cost a few kilobytes each
KEEP_ALIVE_S = 30
_LOG = logging.getLogger("loopwise.serve")


def build_service(
    checkpoint: Checkpoint,
    config: ServeConfig,
    *,
    tiers: Mapping[str, str] | None = None,
    engine: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    device: str = "cpu",
) -> Service:
    """Everything behind the HTTP layer. `tiers` adds policies by name, `engine` holds fields of `EngineConfig`."""
    choices = menu(checkpoint, config.name, extra=tiers, default=config.default_tier)
    given = dict(engine or {})
    for field in ("max_rows", "context", "max_depth", "kv_tokens"):
        if given.get(field) is not None and given[field] < 1:
            raise InputError(f"{field} is {given[field]}: use at least 1")
    given.setdefault("max_depth", min(choices.max_depth, checkpoint.config.max_depth))
    given.setdefault("prefill", f"depth={min(choices.reference, given['max_depth'])}")
    given.setdefault("policy", choices.tiers[choices.default].policy)
    opened = open_engine(checkpoint, EngineConfig(**given), dtype=dtype, device=device)
    for tier in choices.tiers.values():
        opened.check(Request(prompt=[0], params=SamplingParams(max_tokens=1), policy=tier.policy))
    return service_of(opened, choices, config, checkpoint.folder, checkpoint.digest)


def service_of(engine: Engine, choices: Menu, config: ServeConfig, folder: Path, digest: str) -> Service:
    """A service over an engine that is open already."""
    assert engine.tokenizer is not None
    tokenizer, server = engine.tokenizer, AsyncEngine(engine)
    planner = Planner(
        tokenizer=tokenizer, menu=choices,
        chat=ChatTemplate.of(folder, tokenizer, config.chat_template, config.chat_stop),
        grammars=Grammars(tokenizer, engine.model.config.vocab_size), context=engine.context,
        vocab_size=engine.model.config.vocab_size, max_choices=config.max_choices,
        longest=max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.size)) or 1,
    )  # fmt: skip
    metrics = Metrics(
        server, config.name, max_depth=engine.max_depth, reference=choices.reference, compat=config.metrics_compat
    )
    return Service(config=config, engine=server, planner=planner, metrics=metrics, digest=digest)


class Server(uvicorn.Server):
    """uvicorn that drains: the first SIGTERM or SIGINT turns `/health` to 503, refuses new requests and lets the
    running ones end for `drain_s`; a second one ends at once. `interrupted` says that it was SIGINT."""

    def __init__(self, service: Service, *, host: str, port: int, ready: Callable[[str], None] = lambda url: None):
        config = uvicorn.Config(
            build_app(service), host=host, port=port, log_config=None, access_log=False, lifespan="on",
            http=protocol(service.config), ws="none", backlog=1024, timeout_keep_alive=KEEP_ALIVE_S,
            limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=5, server_header=False, proxy_headers=False,
        )  # fmt: skip
        super().__init__(config)
        self.service, self.interrupted, self._ready = service, False, ready
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say where the server is once it listens."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            self._ready(self.url)

    @property
    def url(self) -> str:
        """Where it listens, the port that was free if 0 was asked for."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came. Called between two instructions of the main thread: only pass it on."""
        self.interrupted = self.interrupted or sig == signal.SIGINT
        if not self.started:
            self.should_exit = True
        elif self.service.draining:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Begin to drain. Call it on the event loop."""
        self.service.draining = True
        if self._drain is None:
            self._drain = asyncio.ensure_future(self._finish())

    async def _finish(self) -> None:
        try:
            await asyncio.wait_for(self.service.engine.drain(), self.service.config.drain_s)
        except TimeoutError:
            _LOG.warning("requests still ran %gs after the signal: ending them", self.service.config.drain_s)
        await asyncio.sleep(0.05)  # the last events of finished requests are on their way out
        self.should_exit = True


def serve(service: Service, *, host: str, port: int, ready: Callable[[str], None] = lambda url: None) -> dict[str, Any]:
    """Serve until a signal; what was done meanwhile. A port that is taken raises `InputError`, Ctrl-C
    `KeyboardInterrupt` after draining."""
    taken = listen(host, port)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a connection is a file: the usual soft limit of 1024 is low
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = Server(service, host=host, port=port, ready=ready)
    with taken:
        server.run(sockets=[taken])
    if server.interrupted:
        raise KeyboardInterrupt("requests under way were finished")
    stats = service.engine.stats()
    wanted = ("requests", "finished", "cancelled", "prompt_tokens", "cached_tokens", "output_tokens", "core_passes")
    return {name: stats[name] for name in wanted} | {"fault": _fault(service)}


def _fault(service: Service) -> str | None:
    ended = service.engine.ended
    return ended if ended.startswith("the engine failed") else None


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; `InputError` if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        raise InputError(f"cannot listen on {host} port {port} ({error}): choose another --host or --port") from None
    return found


def log_to(stream: Any = sys.stderr, *, level: int = logging.INFO) -> None:
    """Send the server's and the access log to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("loopwise", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
