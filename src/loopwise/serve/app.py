"""The HTTP application: routes, and how an answer is made from a plan."""

import contextlib
import importlib.metadata
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from loopwise.serve import described, errors
from loopwise.serve.answer import ChatWriter, CompletionWriter, Head
from loopwise.serve.edge import Edge
from loopwise.serve.errors import ApiError, bad
from loopwise.serve.explain import Explainer
from loopwise.serve.plan import Plan, apart
from loopwise.serve.schema import (
    EFFORTS,
    Asked,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    TraceRequest,
)
from loopwise.serve.service import Service
from loopwise.serve.sse import DONE, EventStream, event, unless_gone

PAGE = Path(__file__).parent / "playground.html"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ABOUT = {
    400: "Refused: what is wrong, with which parameter",
    401: "No valid API key",
    404: "No such model",
    405: "Another method is needed",
    408: "The body took too long to arrive",
    413: "The body is too large",
    429: "This key asks too much: see Retry-After",
    500: "The engine or the server failed",
    503: "Queue full, shutting down or failed: see Retry-After",
    504: "The request took too long",
}


def _answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses of a route, for its description."""
    found: dict[int | str, dict[str, Any]] = {s: {"model": described.Error, "description": _ABOUT[s]} for s in statuses}
    return found | {"4XX": {"model": described.Error, "description": "Refused"}}


ASKING = _answers(*_ABOUT)
LOOKING = _answers(401, 404, 405)
SMALL = _answers(400, 401, 404, 408, 413, 429, 500, 503)
STREAMED = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


def build_app(service: Service) -> FastAPI:
    """The application. Starting it starts the engine's thread, ending it stops that: an application runs once."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        yield
        service.engine.stop()

    app = FastAPI(
        title="Loopwise", version=importlib.metadata.version("loopwise"), lifespan=lifespan, docs_url=None,
        redoc_url=None, description="OpenAI-compatible API over a depth-recurrent model.",
    )  # fmt: skip
    errors.install(app)
    app.include_router(_asking(service))
    app.include_router(_looking(service))
    app.include_router(_words(service))
    app.include_router(_operating(service))
    app.add_middleware(Edge, config=service.config, metrics=service.metrics)  # type: ignore[arg-type]
    return app


def _asking(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.post("/completions", response_model=described.Completion, responses={**ASKING, **STREAMED})
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue prompts."""
        plan = await service.planner.completion(body)
        head = Head.new("cmpl", _name(body, request), body.model, service.digest)
        writer = CompletionWriter(head, plan, body, service.planner.tokenizer, service.planner.menu.reference)
        return await _respond(service, plan, body, writer, request)

    @router.post("/chat/completions", response_model=described.ChatCompletion, responses={**ASKING, **STREAMED})
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Continue a conversation."""
        plan = await service.planner.chat_completion(body)
        head = Head.new("chatcmpl", _name(body, request), body.model, service.digest)
        writer = ChatWriter(head, plan, body, service.planner.tokenizer, service.planner.menu.reference)
        return await _respond(service, plan, body, writer, request)

    explainer = Explainer(service.engine.engine, service.planner.tokenizer)

    @router.post("/trace", response_model=described.TraceBody, responses=SMALL)
    async def trace(body: TraceRequest, request: Request) -> Response:
        """Exit signals at every depth, of the last tokens of a text."""
        service.planner.menu.tier_of(body.model)

        async def answer() -> Response:
            return JSONResponse(await explainer.explain(body.tokens, body.last))

        return await unless_gone(request, answer())

    return router


def _name(body: Asked, request: Request) -> str:
    return body.request_id or request.scope["state"]["request_id"]


async def _respond(
    service: Service, plan: Plan, body: Asked, writer: CompletionWriter | ChatWriter, request: Request
) -> Response:
    """Check that the plan can run and answer it, whole or as a stream."""
    if body.stream_options is not None and not body.stream:
        raise bad("stream_options needs stream to be true", "stream_options")
    for _, part in plan.requests:
        service.engine.engine.check(part)
    service.admit(plan)
    request.scope["state"]["note"] = f" tier={plan.chosen.tier} prompt={sum(map(len, plan.prompts))} choices={plan.n}"
    if body.stream:
        return EventStream(_stream(service, plan, body, writer))
    return await unless_gone(request, _whole(service, plan, writer))


async def _whole(service: Service, plan: Plan, writer: CompletionWriter | ChatWriter) -> Response:
    if plan.score is not None:
        writer.scores = await service.scores(plan)
    async with contextlib.aclosing(service.run(plan)) as batches:
        async for index, events in batches:
            writer.choices[index].take(events)
    return JSONResponse(writer.whole())


async def _stream(
    service: Service, plan: Plan, body: Asked, writer: CompletionWriter | ChatWriter
) -> AsyncIterator[bytes]:
    """Chunks as server-sent events. A failure on the way is an event too, and then nothing follows."""
    options = body.stream_options
    every = bool(options and options.continuous_usage_stats)
    try:
        for chunk in writer.opening():
            yield event(chunk)
        async with contextlib.aclosing(service.run(plan)) as batches:
            async for index, events in batches:
                for chunk in writer.chunks(index, events):
                    yield event(chunk | {"usage": writer.usage()} if every else chunk)
        if options and options.include_usage:
            yield event(writer.closing())
        yield DONE
    except ApiError as error:
        yield event(error.body)
    except errors.EngineFault as error:
        yield event(errors.body(503, str(error), None, "engine_unavailable"))


def _looking(service: Service) -> APIRouter:
    router, menu = APIRouter(prefix="/v1"), service.planner.menu
    created = int(time.time())

    def describe(model: str) -> dict[str, Any]:
        name = menu.tier_of(model) or menu.default
        tier = menu.tiers[name]
        numbers = {n: getattr(tier, n) for n in ("mean_depth", "loss_increase", "bound", "confidence")}
        efforts = [effort for effort in EFFORTS if menu.by_effort(effort) == name]
        return {
            "id": model,
            "object": "model",
            "created": created,
            "owned_by": "loopwise",
            "root": menu.name,
            "parent": menu.name if ":" in model else None,
            "max_model_len": service.planner.context,
            "tier": {"name": name, "policy": str(tier.policy), **numbers, "efforts": efforts},
        }

    @router.get("/models", response_model=described.Models, responses=LOOKING)
    async def models() -> Response:
        """The model and its tiers, each under an id of its own."""
        return JSONResponse({"object": "list", "data": [describe(model) for model in menu.ids]})

    @router.get("/models/{model}", response_model=described.Model, responses={**LOOKING, 400: ASKING[400]})
    async def model(model: str) -> Response:
        """One of them."""
        return JSONResponse(describe(model))

    return router


def _words(service: Service) -> APIRouter:
    router, planner = APIRouter(), service.planner

    @router.post("/tokenize", response_model=described.Tokens, responses=SMALL)
    async def tokenize(body: TokenizeRequest) -> Response:
        """Token ids of a text or of a conversation."""
        if (body.prompt is None) == (body.messages is None):
            raise bad("give either prompt or messages", "prompt")
        if body.add_special_tokens and body.prompt is not None:
            raise bad("parameter 'add_special_tokens' is not supported: remove it", "add_special_tokens")
        planner.menu.tier_of(body.model or planner.menu.name)
        if body.messages is not None:
            add = body.add_generation_prompt
            asked = ChatRequest(model=planner.menu.name, messages=body.messages, add_generation_prompt=add)
            tokens = await planner.render(asked)
        else:
            tokens = await planner.encode(body.prompt or "")
        made: dict[str, Any] = {"count": len(tokens), "max_model_len": planner.context, "tokens": tokens}

        def answer() -> Response:
            strs = {"token_strs": [planner.tokenizer.token_text(token) for token in tokens]}
            return JSONResponse(made | (strs if body.return_token_strs else {}))

        return await apart(answer, len(tokens))

    @router.post("/detokenize", response_model=described.Prompt, responses=SMALL)
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of token ids."""
        planner.menu.tier_of(body.model or planner.menu.name)

        def answer() -> Response:
            return JSONResponse({"prompt": planner.tokenizer.decode(body.tokens, skip_specials=False)})

        return await apart(answer, len(body.tokens))

    return router


def _operating(service: Service) -> APIRouter:
    router, engine = APIRouter(), service.engine
    page = PAGE.read_text("utf-8").replace("__MODEL__", service.planner.menu.name)
    down: dict[int | str, dict[str, Any]] = {
        503: {"model": described.Error, "description": _ABOUT[503]},
        405: ASKING[405],
    }

    @router.get("/health", response_model=described.Health, responses=down)
    @router.get("/ping", response_model=described.Health, responses=down)
    async def health() -> Response:
        """200 while requests are taken."""
        if service.trouble:
            raise errors.unavailable(service.trouble, "engine_unavailable" if engine.ended else "draining")
        return JSONResponse({"status": "ok"})

    @router.get("/version", response_model=described.Version, responses={405: ASKING[405]})
    async def version() -> Response:
        """Of Loopwise."""
        return JSONResponse({"version": importlib.metadata.version("loopwise")})

    @router.get("/metrics", responses={200: {"content": {"text/plain": {}}}, 405: ASKING[405]}, response_model=None)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/load", response_model=described.Load, responses={405: ASKING[405]})
    async def load() -> Response:
        """Queue, occupancy and exit depths at a glance."""
        stats = engine.stats()
        passes = sum(int(depth) * count for depth, count in stats["exit_depths"].items())
        made = stats["output_tokens"]
        found = {
            "server_load": engine.waiting + engine.running,
            "running": engine.running,
            "waiting": engine.waiting,
            "slots": engine.engine.places,
            "kv_usage": stats["kv_blocks_held"] / max(1, stats["kv_blocks"]),
            "occupancy": stats["rows_per_launch"]["core"] / engine.engine.config.max_rows,
            "mean_depth": passes / made if made else None,
            "output_tokens": made,
            "exit_depths": stats["exit_depths"],
            "reference_depth": service.planner.menu.reference,
        }
        return JSONResponse(found)

    @router.get("/", include_in_schema=False)
    async def playground() -> Response:
        """The playground."""
        return HTMLResponse(page, headers={"content-security-policy": POLICY, "x-content-type-options": "nosniff"})

    return router
