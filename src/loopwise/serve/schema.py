"""Bodies of requests. What is not listed is refused by name; what is listed is honoured (see docs/serve.md).

Validation stops at the first fault of a list, and objects have a most of fields: else a body of a few megabytes could
hold hundreds of thousands of faults, and describing them would take the server seconds.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from loopwise.serve.errors import bad

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[Effort, ...] = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Text = str
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Salt = Annotated[str, Field(max_length=128)]
TokenName = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]

# Known parameters that this server does not have: name -> values that mean nothing is asked for.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""),
    "best_of": (None, 1),
    "functions": (None, []),
    "function_call": (None, "none"),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "web_search_options": (None,),
    "store": (None, False),
    "verbosity": (None, "medium"),
    "chat_template": (None,),
    "use_beam_search": (None, False),
    "length_penalty": (None, 1, 1.0),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "bad_words": (None, []),
    "lora_request": (None,),
    "prompt_embeds": (None,),
    "add_special_tokens": (None, False),
    "reasoning": (None,),
    "mm_processor_kwargs": (None,),
}
# Accepted because they cannot change an answer: labels for whoever reads logs or bills.
LABELS = ("user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_retention")


def _few(most: int) -> Callable[[Any], Any]:
    """Refuse objects with more than `most` fields, before each of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise ValueError(f"an object has {len(value)} fields: use at most {most}")
        return value

    return check


class Strict(BaseModel):
    """No coercion, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _small(cls, values: Any) -> Any:
        return _few(256)(values)


class StreamOptions(Strict):
    """`include_usage` adds a last chunk with the usage; `continuous_usage_stats` puts it on every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Depth(Strict):
    """Explicit control of depth: an exit policy (default: the tier's), and bounds on every token's passes."""

    policy: Annotated[str, Field(max_length=200)] | None = None
    min: Annotated[int, Field(ge=1, le=4096)] | None = None
    max: Annotated[int, Field(ge=1, le=4096)] | None = None


class JsonSchema(Strict):
    """OpenAI's wrapper of a JSON schema."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)
    name: Annotated[str, Field(max_length=64)]
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """What the output must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Strict):
    """One of: a JSON schema, a regular expression, a list of texts, a Lark grammar."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: Annotated[str, Field(max_length=4096)] | None = None
    choice: Annotated[list[Text], Field(min_length=1, max_length=256, fail_fast=True)] | None = None
    grammar: Annotated[str, Field(max_length=65536)] | None = None


class Asked(Strict):
    """What completions and chat have in common."""

    own: ClassVar[tuple[str, ...]] = ()  # names of UNSUPPORTED that this endpoint does have

    model: str
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    logit_bias: Annotated[dict[TokenName, Bias], BeforeValidator(_few(1024))] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64, fail_fast=True)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    reasoning_effort: Effort | None = None
    depth: Depth | None = None
    return_depths: bool | None = None
    return_token_ids: bool | None = None
    priority: Annotated[int, Field(ge=-8, le=8)] | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    cache_salt: Salt | None = None
    request_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: Annotated[dict[str, str], BeforeValidator(_few(64))] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, values: Any) -> Any:
        """Refuse what is known and not supported, by name; drop it where it asks for nothing."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for name, neutral in UNSUPPORTED.items():
            if name in cls.own or name not in values:
                continue
            value = values.pop(name)
            if not any(value == empty and type(value) is type(empty) for empty in neutral):
                raise bad(
                    f"parameter '{name}' is not supported by this server: remove it", name, "unsupported_parameter"
                )
        return values


class CompletionRequest(Asked):
    """POST /v1/completions."""

    prompt: (
        Text
        | Annotated[list[str], Field(min_length=1, max_length=2048, fail_fast=True)]
        | TokenIds
        | Annotated[list[TokenIds], Field(min_length=1, max_length=2048, fail_fast=True)]
    )
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class Part(Strict):
    """A piece of a message's content."""

    type: str
    text: str | None = None


class FunctionCall(Strict):
    """A call that an assistant made."""

    name: Annotated[str, Field(max_length=64)]
    arguments: str


class ToolCall(Strict):
    """A call that an assistant made, as it stands in the conversation."""

    id: str | None = None
    index: int | None = None
    type: Literal["function"]
    function: FunctionCall


class Message(Strict):
    """One message. What only answers have (`refusal`, `annotations`, ...) is accepted empty, so that an answer can be
    sent back as it came."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = None
    name: Annotated[str, Field(max_length=64)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=64, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="before")
    @classmethod
    def _text_only(cls, values: Any) -> Any:
        parts = values.get("content") if isinstance(values, dict) else None
        for part in parts if isinstance(parts, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                raise bad(f"content of type '{kind}' is not supported: this model reads text only", "messages")
        return values


class Function(Strict):
    """A function that may be called."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; only functions exist."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    """A function by name."""

    name: str


class ToolChoice(Strict):
    """The one tool to call."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(Asked):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=1024, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(max_length=64, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class TokenizeRequest(Strict):
    """POST /tokenize: a text, or messages as chat would render them."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=1024, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class TraceRequest(Strict):
    """POST /v1/trace: exit signals of the last tokens of a text at every depth, for the playground."""

    model: str
    tokens: TokenIds
    last: Annotated[int, Field(ge=1, lt=2**31)] = 64
