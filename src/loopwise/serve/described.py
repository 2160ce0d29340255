"""Answers as the OpenAPI description gives them. Answers are written by `answer.py`; tests hold the two together."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorBody(BaseModel):
    """What went wrong, and with which parameter."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """Every refusal and failure."""

    error: ErrorBody


class Compute(BaseModel):
    """What generated tokens cost: passes through the core, against the reference depth."""

    tier: str
    policy: str
    loops: int
    mean_depth: float
    reference_depth: int
    loops_saved: int
    readouts: int


class PromptDetails(BaseModel):
    """How much of the prompt was in the prefix cache."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Depth is not reasoning tokens: always 0."""

    reasoning_tokens: int


class UsageBody(BaseModel):
    """Tokens and compute."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    compute: Compute


class CompletionLogprobs(BaseModel):
    """Natural logarithms, from unprocessed logits; nothing for the first token of a prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class ChoiceExtras(BaseModel):
    """Fields that OpenAI does not have, where they were asked for."""

    depths: list[int] | None = None
    signals: list[float | None] | None = None
    token_ids: list[int] | None = None
    stop_reason: str | int | None = None


class CompletionChoice(ChoiceExtras):
    """One continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[int] | None = None


class Completion(BaseModel):
    """Answer of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageBody


class TopLogprob(BaseModel):
    """A token and its probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A generated token; `depth` with return_depths."""

    top_logprobs: list[TopLogprob]
    depth: int | None = None


class ChatLogprobs(BaseModel):
    """Of the content's tokens."""

    content: list[TokenLogprob]
    refusal: None


class CalledFunction(BaseModel):
    """Name, and arguments as JSON text."""

    name: str
    arguments: str


class Call(BaseModel):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(BaseModel):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    tool_calls: list[Call] = []


class ChatChoice(ChoiceExtras):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(BaseModel):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"]
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[int] | None = None


class TierBody(BaseModel):
    """A tier, and what calibration says of it; null where nobody calibrated."""

    name: str
    policy: str
    mean_depth: float | None
    loss_increase: float | None
    bound: float | None
    confidence: float | None
    efforts: list[str]


class Model(BaseModel):
    """A model id; those with a colon are tiers."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    tier: TierBody


class Models(BaseModel):
    """All model ids."""

    object: Literal["list"]
    data: list[Model]


class Tokens(BaseModel):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Prompt(BaseModel):
    """Answer of /detokenize."""

    prompt: str


class Health(BaseModel):
    """Alive and taking requests."""

    status: Literal["ok"]


class Version(BaseModel):
    """Of the package."""

    version: str


class Load(BaseModel):
    """What a router or a person wants to know at a glance."""

    server_load: int
    running: int
    waiting: int
    slots: int
    kv_usage: float
    occupancy: float
    mean_depth: float | None
    output_tokens: int
    exit_depths: dict[str, int]
    reference_depth: int


class TraceBody(BaseModel):
    """Exit signals of the last tokens at depths 1, 2, ...: null where a signal is not defined yet. `choices` are the
    ids and texts that the readout ranks first at each depth."""

    depths: list[int]
    signals: dict[str, list[list[float | None]]] = Field(description="signal -> token -> depth -> value")
    choices: list[list[str]]
