"""From a request body to engine requests: prompts, sampling, tier, masks. What is wrong with it raises `ApiError`."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from loopwise.config import InputError
from loopwise.data.tokenizer import Tokenizer
from loopwise.engine.request import Request
from loopwise.sampling import SamplingParams
from loopwise.serve.chat import ChatTemplate
from loopwise.serve.errors import bad
from loopwise.serve.grammar import Grammars
from loopwise.serve.schema import Asked, ChatRequest, CompletionRequest, Message, ToolChoice
from loopwise.serve.tiers import Chosen, Menu

T = TypeVar("T")
LONG_TEXT = 8192  # characters or tokens from which work on them leaves the event loop
COMPLETION_TOKENS = 16  # OpenAI's default
SERVICE_PRIORITY = {"flex": -1, "priority": 1}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Choice i of prompt p has index `p * n + i`. Each of `requests` makes `params.n` choices in a row from its `base`.

    `score` is the number of alternatives wanted for prompt tokens (None: no scores). `silent` drops the generated
    token of a request for none. `tools` says that an answer may be a call.
    """

    prompts: list[list[int]]
    requests: list[tuple[int, Request]]
    n: int
    chosen: Chosen
    score: int | None = None
    echo: bool = False
    silent: bool = False
    tools: bool = False


@dataclass(frozen=True, kw_only=True)
class Planner:
    """What plans are made from. `context` is the number of positions of a request, `longest` the bytes of the longest
    token."""

    tokenizer: Tokenizer
    menu: Menu
    chat: ChatTemplate
    grammars: Grammars
    context: int
    vocab_size: int
    max_choices: int
    longest: int

    async def completion(self, body: CompletionRequest) -> Plan:
        """POST /v1/completions."""
        chosen = self.menu.choose(body)
        for text in [body.prompt] if isinstance(body.prompt, str) else body.prompt:
            self._refuse_long(len(text) if isinstance(text, str) else 0, body)
        prompts = [self._cut(prompt, body) for prompt in await self._prompts(body.prompt)]
        silent = body.max_tokens == 0
        if silent and not (body.echo or body.prompt_logprobs is not None):
            raise bad("max_tokens 0 asks for nothing: give echo or prompt_logprobs, or raise it", "max_tokens")
        if body.echo and body.stream and body.logprobs is not None:
            raise bad("echo with logprobs is not available as a stream: set stream to false", "stream")
        wanted = 1 if silent else body.max_tokens
        params = [self._params(body, p, wanted or self._room(p, COMPLETION_TOKENS), body.logprobs) for p in prompts]
        score = body.logprobs if body.echo and body.logprobs is not None else body.prompt_logprobs
        grammar = await self._grammar(body)
        return await self._plan(body, prompts, params, chosen, grammar, score, echo=bool(body.echo), silent=silent)

    async def chat_completion(self, body: ChatRequest) -> Plan:
        """POST /v1/chat/completions."""
        chosen = self.menu.choose(body)
        if body.top_logprobs is not None and not body.logprobs:
            raise bad("top_logprobs needs logprobs to be true", "top_logprobs")
        tools = body.tools if body.tools and body.tool_choice != "none" else None
        prompt = self._cut(await self.render(body), body)
        limits = [limit for limit in (body.max_completion_tokens, body.max_tokens) if limit is not None]
        wanted = min(limits) if limits else self._room(prompt)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        grammar = await self._grammar(body)
        if tools:
            if grammar is not None:
                raise bad("tools and an output format are both asked for: give one", "tools")
            grammar = await asyncio.to_thread(self._tool_grammar, body)
        # The template's stop strings end free text; a format knows its own end.
        stop = self.chat.stop if grammar is None or (tools and body.tool_choice in (None, "auto")) else ()
        params = self._params(body, prompt, wanted, logprobs, stop)
        return await self._plan(body, [prompt], [params], chosen, grammar, body.prompt_logprobs, tools=bool(tools))

    async def render(self, body: ChatRequest) -> list[int]:
        """Prompt tokens of a conversation."""
        tools = body.tools if body.tool_choice != "none" else None
        add = True if body.add_generation_prompt is None else body.add_generation_prompt
        final = bool(body.continue_final_message)
        if final and body.add_generation_prompt:
            raise bad("continue_final_message and add_generation_prompt exclude each other", "continue_final_message")

        def encode() -> list[int]:
            return self.chat.tokens(
                body.messages, tools=tools, add_generation_prompt=add, continue_final=final,
                extra=body.chat_template_kwargs,
            )  # fmt: skip

        size = sum(map(_size, body.messages))
        self._refuse_long(size, body)
        return await apart(encode, size)

    async def encode(self, text: str) -> list[int]:
        """Tokens of a text; long ones are worked on outside the event loop."""
        if len(text) < LONG_TEXT:
            return self.tokenizer.encode(text)
        # As a batch, because only that lets go of Python's lock: the event loop goes on meanwhile.
        return (await asyncio.to_thread(self.tokenizer.encode_batch, [text]))[0]

    def _refuse_long(self, characters: int, body: Asked) -> None:
        """Refuse what cannot fit whatever its tokens are, before a lot of work goes into finding them."""
        least = -(-characters // self.longest)
        if characters >= LONG_TEXT and least > self.context and body.truncate_prompt_tokens is None:
            message = f"the prompt has at least {least} tokens and this model's context is {self.context}: shorten it"
            raise bad(message, "prompt", "context_length_exceeded")

    async def _prompts(self, prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]) -> list[list[int]]:
        if isinstance(prompt, str):
            return [await self.encode(prompt)]
        if all(isinstance(item, int) for item in prompt):
            return [list(prompt)]  # type: ignore[arg-type]
        return [await self.encode(item) if isinstance(item, str) else list(item) for item in prompt]  # type: ignore[arg-type]

    def _cut(self, prompt: list[int], body: Asked) -> list[int]:
        """The prompt within the context: its end if the request allows that, else an error."""
        if body.truncate_prompt_tokens is not None:
            prompt = prompt[-body.truncate_prompt_tokens :]
        if not prompt:
            prompt = [self.tokenizer.eos_id]  # nothing to continue: the beginning of a text
        if len(prompt) > self.context:
            message = f"the prompt has {len(prompt)} tokens and this model's context is {self.context}: shorten it"
            raise bad(message, "prompt", "context_length_exceeded")
        for token in prompt:
            if token >= self.vocab_size:
                raise bad(f"token id {token} is out of range: use 0 to {self.vocab_size - 1}", "prompt")
        return prompt

    def _room(self, prompt: list[int], most: int | None = None) -> int:
        room = self.context - len(prompt) + 1
        return room if most is None else min(most, room)

    def _params(
        self, body: Asked, prompt: list[int], max_tokens: int, logprobs: int | None, stop: Sequence[str] = ()
    ) -> SamplingParams:
        own = [body.stop] if isinstance(body.stop, str) else body.stop or []
        if len(prompt) + max_tokens - 1 > self.context:
            message = f"{len(prompt)} prompt tokens and max_tokens {max_tokens} exceed the context of {self.context}"
            raise bad(
                f"{message} tokens: shorten the prompt or lower max_tokens", "max_tokens", "context_length_exceeded"
            )
        bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
        if any(token >= self.vocab_size for token in bias):
            raise bad(f"logit_bias names token {max(bias)}: use ids 0 to {self.vocab_size - 1}", "logit_bias")
        try:
            return SamplingParams(
                temperature=_or(body.temperature, 1.0), top_p=_or(body.top_p, 1.0), top_k=max(0, body.top_k or 0),
                min_p=_or(body.min_p, 0.0), repetition_penalty=_or(body.repetition_penalty, 1.0),
                presence_penalty=_or(body.presence_penalty, 0.0), frequency_penalty=_or(body.frequency_penalty, 0.0),
                logit_bias=bias, seed=secrets.randbits(63) if body.seed is None else body.seed, max_tokens=max_tokens,
                min_tokens=body.min_tokens or 0, stop=(*own, *stop), stop_ids=tuple(body.stop_token_ids or ()),
                include_stop=bool(body.include_stop_str_in_output), ignore_eos=bool(body.ignore_eos),
                logprobs=logprobs, n=body.n or 1,
            )  # fmt: skip
        except InputError as error:
            raise bad(str(error)) from None

    async def _grammar(self, body: Asked) -> str | None:
        """What the output must be. Compiling can take a while: it leaves the event loop."""
        if body.response_format is None and body.structured_outputs is None:
            return None
        return await asyncio.to_thread(self.grammars.of, body.response_format, body.structured_outputs)

    def _tool_grammar(self, body: ChatRequest) -> str:
        assert body.tools is not None
        tools, choice = body.tools, body.tool_choice
        if isinstance(choice, ToolChoice):
            tools = [tool for tool in tools if tool.function.name == choice.function.name]
            if not tools:
                raise bad(f"tool_choice names '{choice.function.name}', which is none of the tools", "tool_choice")
        return self.grammars.tools(tools, required=choice not in (None, "auto"))

    async def _plan(
        self,
        body: Asked,
        prompts: list[list[int]],
        params: list[SamplingParams],
        chosen: Chosen,
        grammar: str | None,
        score: int | None,
        *,
        echo: bool = False,
        silent: bool = False,
        tools: bool = False,
    ) -> Plan:
        n = body.n or 1
        if n * len(prompts) > self.max_choices:
            raise bad(f"{n * len(prompts)} choices are asked for: at most {self.max_choices} per request", "n")
        if grammar is not None and body.ignore_eos:
            raise bad("ignore_eos and an output format exclude each other", "ignore_eos")
        rank = body.priority if body.priority is not None else SERVICE_PRIORITY.get(body.service_tier or "", 0)
        requests: list[tuple[int, Request]] = []
        for place, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
            # Choices under a grammar are requests of their own, because each needs its own matcher.
            for number, part in enumerate(_split(own) if grammar is not None else [own]):
                mask = await asyncio.to_thread(self.grammars.matcher, grammar) if grammar is not None else None
                request = Request(
                    prompt=prompt, params=part, policy=chosen.policy, priority=rank, mask=mask,
                    salt=body.cache_salt or "",
                )  # fmt: skip
                requests.append((place * n + number, request))
        return Plan(
            prompts=prompts, requests=requests, n=n, chosen=chosen, score=score, echo=echo, silent=silent, tools=tools
        )


async def apart(work: Callable[[], T], size: int) -> T:
    """The result of `work`, outside the event loop if it is on much."""
    return await asyncio.to_thread(work) if size >= LONG_TEXT else work()


def _split(params: SamplingParams) -> list[SamplingParams]:
    """n choices as n requests that draw the same numbers."""
    values = {name: getattr(params, name) for name in params.__dataclass_fields__}
    return [SamplingParams(**{**values, "n": 1, "seed": (params.seed or 0) + i}) for i in range(params.n)]


def _size(message: Message) -> int:
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text or "") for part in content)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
