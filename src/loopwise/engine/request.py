"""What goes into the engine and what comes out of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from loopwise.exit.policy import Policy
from loopwise.sampling import SamplingParams

Mask = Callable[[list[int]], Tensor | None]
Alternatives = tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How an engine runs. `policy` serves requests that name none; `prefill` computes prompts (None: the
    training mean for all, or the policy's maximum depth if that is less); `max_depth` is the most passes a request may
    ask for (None: the model's).

    `max_rows` rows share a launch; `places` requests are in progress at a time (None: twice `max_rows`, so that full
    launches remain while rows wait for their coda). `context` bounds prompt and output of a request (None: the
    model's). `kv_tokens` positions of KV memory (None: `places` contexts, but at most about 1 GiB). `chunk` cuts
    prompts into pieces (0: whole), `prefill_tokens` bounds the prompt tokens of a launch. `min_turn` rows are
    collected for coda, head and prelude, or half of those in progress (None: `max_rows`). `min_prefill` prompts are
    collected while launches are full: fewer launches, later first tokens. `static` admits requests only
    when nothing runs and `lockstep` starts next tokens only when every row has left the core: baselines for benchmarks.
    """

    policy: str | Policy | None = None
    prefill: str | Policy | None = None
    layout: str = "depth_indexed"
    max_depth: int | None = None
    max_rows: int = 32
    places: int | None = None
    context: int | None = None
    kv_tokens: int | None = None
    chunk: int = 256
    prefill_tokens: int = 512
    min_turn: int | None = None
    min_prefill: int = 1
    prefix_cache: bool = True
    static: bool = False
    lockstep: bool = False
    lag: int | None = None
    padded: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to continue, `params.n` times.

    `prompt`: token ids. `policy`: None for the engine's. Higher `priority` jumps part of the queue. `mask(output)` says
    which tokens may follow (None: all). `salt` keeps cached prompts apart. `prompt_logprobs` k: log-probabilities of
    the prompt tokens and k alternatives each. For measurements: `forced` tokens replace sampled ones, `prompt_depths`
    plays recorded exit depths of the prompt (and keeps it out of the prefix cache).
    """

    prompt: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    policy: Policy | str | None = None
    id: str | None = None
    priority: int = 0
    mask: Mask | None = None
    salt: str = ""
    prompt_logprobs: int | None = None
    forced: Sequence[int] | None = None
    prompt_depths: Sequence[int] | None = None


class Usage(NamedTuple):
    """What one continuation cost. `core_passes` and `readouts` count its generated tokens; `admitted_s` (it got its
    place) and `first_s` (it had its first token) are times of `perf_counter`."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    core_passes: int
    readouts: int
    admitted_s: float
    first_s: float


class PromptToken(NamedTuple):
    """Log-probability of a prompt token given those before it, and alternatives, best first."""

    id: int
    logprob: float
    top: Alternatives


class Event(NamedTuple):
    """One generated token of choice `index` of request `id`. See docs/engine.md."""

    id: str
    index: int
    token: int
    piece: str
    depth: int
    logprob: float | None = None
    top: Alternatives = ()
    signal: float | None = None
    finish: str | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    prompt_logprobs: tuple[PromptToken, ...] | None = None


class Output(NamedTuple):
    """A finished continuation. `text` ends before the stop string unless `include_stop`; `depths`, `logprobs`, `top`
    and `signals` have one entry per token (`logprobs` and `top` only if asked for)."""

    id: str
    index: int
    text: str
    tokens: list[int]
    depths: list[int]
    finish: str
    stop_reason: str | int | None
    logprobs: list[float]
    top: list[Alternatives]
    signals: list[float | None]
    prompt_tokens: int
    cached_tokens: int
    prompt_logprobs: tuple[PromptToken, ...] | None


class Score(NamedTuple):
    """A text scored under a decode policy: the first token is the prompt and has no entry."""

    tokens: list[int]
    logprobs: list[float]
    depths: list[int]
