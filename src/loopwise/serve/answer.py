"""Bodies of answers, in OpenAI's shapes, from the engine's events."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loopwise.data.tokenizer import Tokenizer
from loopwise.engine.request import Alternatives, Event, PromptToken
from loopwise.serve.plan import Plan
from loopwise.serve.schema import Asked

Json = dict[str, Any]


@dataclass(kw_only=True)
class Choice:
    """One continuation so far."""

    index: int
    events: list[Event] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    stop_reason: str | int | None = None
    sent: int = 0  # characters of logprob texts already accounted for (streams)

    def take(self, events: list[Event]) -> str:
        """Add events; the text they made certain."""
        self.events += events
        piece = "".join(event.piece for event in events)
        self.text += piece
        last = events[-1]
        if last.finish:
            self.finish, self.stop_reason = last.finish, last.stop_reason
        return piece


@dataclass(frozen=True, kw_only=True)
class Head:
    """What all parts of an answer begin with."""

    id: str
    created: int
    model: str
    fingerprint: str

    @classmethod
    def new(cls, prefix: str, request_id: str, model: str, digest: str) -> "Head":
        """For an answer that begins now."""
        return cls(id=f"{prefix}-{request_id}", created=int(time.time()), model=model, fingerprint=f"fp_{digest[:12]}")

    def wrap(self, kind: str, choices: list[Json], usage: Json | None, *, chunk: bool = False) -> Json:
        """A whole answer or a chunk. Chunks without usage leave it out."""
        made: Json = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        made["system_fingerprint"] = self.fingerprint
        if usage is not None or not chunk:
            made["usage"] = usage
        return made


class Writer:
    """Shapes that completions and chat share. `scores` are the prompts' log-probabilities, if asked for."""

    def __init__(self, head: Head, plan: Plan, body: Asked, tokenizer: Tokenizer, reference: int) -> None:
        self.head, self.plan, self.body, self.tokenizer, self.reference = head, plan, body, tokenizer, reference
        self.choices = [Choice(index=i) for i in range(plan.n * len(plan.prompts))]
        self.scores: list[list[PromptToken]] = []

    def prompt_of(self, index: int) -> list[int]:
        """The prompt of a choice."""
        return self.plan.prompts[index // self.plan.n]

    def usage(self) -> Json:
        """Tokens, and what they cost in passes through the core."""
        plan, reference = self.plan, self.reference
        events = [event for choice in self.choices for event in choice.events]
        prompt, output = sum(map(len, plan.prompts)), 0 if plan.silent else len(events)
        ends = [event.usage for event in events if event.usage is not None]
        # Choices share their prompt: what the first of each found in the cache is what the request saved.
        firsts = [c.events[-1].usage for c in self.choices[:: plan.n] if c.events]
        loops, readouts = sum(event.depth for event in events), sum(usage.readouts for usage in ends)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": sum(u.cached_tokens for u in firsts if u is not None)},
            "completion_tokens_details": {"reasoning_tokens": 0},
            "compute": {
                "tier": plan.chosen.tier,
                "policy": str(plan.chosen.policy),
                "loops": loops,
                "mean_depth": round(loops / len(events), 4) if events else 0.0,
                "reference_depth": reference,
                "loops_saved": reference * len(events) - loops,
                "readouts": readouts,
            },
        }

    def extras(self, choice: Choice, events: Sequence[Event]) -> Json:
        """Fields of a choice that OpenAI does not have, where they were asked for."""
        found: Json = {}
        if self.body.return_depths:
            found |= {"depths": [e.depth for e in events], "signals": [e.signal for e in events]}
        if self.body.return_token_ids:
            found["token_ids"] = [e.token for e in events]
        if choice.stop_reason is not None and choice.finish:
            found["stop_reason"] = choice.stop_reason
        return found

    def prompt_logprobs(self, prompt: int) -> list[Any] | None:
        """vLLM's shape: nothing for the first token, then one object per token, keyed by id."""
        if self.body.prompt_logprobs is None:
            return None
        found: list[Any] = [None]
        for token in self.scores[prompt]:
            ranks = {token_id: place + 1 for place, (token_id, _) in enumerate(token.top)}
            entry = {token.id: token.logprob} | dict(token.top)
            found.append(
                {
                    str(t): {"logprob": value, "rank": ranks.get(t), "decoded_token": self.tokenizer.token_text(t)}
                    for t, value in entry.items()
                }
            )
        return found


class CompletionWriter(Writer):
    """POST /v1/completions."""

    def whole(self) -> Json:
        """The answer."""
        return self.head.wrap("text_completion", [self._full(choice) for choice in self.choices], self.usage())

    def _full(self, choice: Choice) -> Json:
        plan, prompt = self.plan, self.prompt_of(choice.index)
        events = [] if plan.silent else choice.events
        text = "" if plan.silent else choice.text
        asked = getattr(self.body, "logprobs", None)
        made = self._choice(choice, self.echoed(choice.index) + text, None, events)
        if asked is not None:
            made["logprobs"] = self._logprobs(self._entries(choice.index, events, echo=plan.echo), 0)
        scores = self.prompt_logprobs(choice.index // plan.n)
        if scores is not None:
            made["prompt_logprobs"] = scores
        if self.body.return_token_ids:
            made["prompt_token_ids"] = prompt
        return made

    def echoed(self, index: int) -> str:
        """The prompt's text, if it is to be repeated."""
        return self.tokenizer.decode(self.prompt_of(index), skip_specials=False) if self.plan.echo else ""

    def _choice(self, choice: Choice, text: str, logprobs: Json | None, events: Sequence[Event]) -> Json:
        finish = "length" if self.plan.silent and choice.finish else choice.finish
        base = {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return base | self.extras(choice, events)

    def _entries(
        self, index: int, events: Sequence[Event], *, echo: bool
    ) -> list[tuple[int, float | None, Alternatives]]:
        entries: list[tuple[int, float | None, Alternatives]] = []
        if echo:
            scores = self.scores[index // self.plan.n]
            entries = [(self.prompt_of(index)[0], None, ()), *((t.id, t.logprob, t.top) for t in scores)]
        return entries + [(event.token, event.logprob, event.top) for event in events]

    def _logprobs(self, entries: list[tuple[int, float | None, Alternatives]], offset: int) -> Json:
        tokens = [self.tokenizer.token_text(token) for token, _, _ in entries]
        offsets = []
        for text in tokens:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [logprob for _, logprob, _ in entries],
            "top_logprobs": [None if lp is None else self._top(token, lp, top) for token, lp, top in entries],
            "text_offset": offsets,
        }

    def _top(self, token: int, logprob: float, top: Alternatives) -> dict[str, float]:
        """Alternatives by text, the chosen token among them; of tokens with the same text the likeliest counts."""
        found: dict[str, float] = {}
        for other, value in (*top, (token, logprob)):
            text = self.tokenizer.token_text(other)
            found[text] = max(value, found.get(text, value))
        return found

    def opening(self) -> list[Json]:
        """Chunks before the first token: the prompts, if they are to be repeated."""
        if not self.plan.echo:
            return []
        return [self._chunk([self._choice(c, self.echoed(c.index), None, ())]) for c in self.choices]

    def chunks(self, index: int, events: list[Event]) -> list[Json]:
        """What one batch of events adds."""
        choice = self.choices[index]
        piece = choice.take(events)
        if self.plan.silent:
            return [self._chunk([self._choice(choice, "", None, ())])] if choice.finish else []
        logprobs = None
        if getattr(self.body, "logprobs", None) is not None:
            logprobs = self._logprobs(self._entries(index, events, echo=False), choice.sent)
            choice.sent = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
        elif not (piece or choice.finish or self.body.return_depths or self.body.return_token_ids):
            return []
        return [self._chunk([self._choice(choice, piece, logprobs, events)])]

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> Json:
        return self.head.wrap("text_completion", choices, usage, chunk=True)

    def closing(self) -> Json:
        """The last chunk: no choices, the usage."""
        return self._chunk([], self.usage())


class ChatWriter(Writer):
    """POST /v1/chat/completions."""

    def whole(self) -> Json:
        """The answer."""
        made = self.head.wrap("chat.completion", [self._full(choice) for choice in self.choices], self.usage())
        made["service_tier"] = "default"
        scores = self.prompt_logprobs(0)
        if scores is not None:
            made["prompt_logprobs"] = scores
        if self.body.return_token_ids:
            made["prompt_token_ids"] = self.plan.prompts[0]
        return made

    def _full(self, choice: Choice) -> Json:
        message: Json = {"role": "assistant", "content": choice.text, "refusal": None, "annotations": []}
        call = self._call(choice)
        if call:
            message |= {"content": None, "tool_calls": [call]}
        base = {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice.events),
            "finish_reason": "tool_calls" if call and choice.finish == "stop" else choice.finish,
        }
        return base | self.extras(choice, choice.events)

    def _call(self, choice: Choice) -> Json | None:
        """The call that the text is, if tools were offered and it is one."""
        if not (self.plan.tools and choice.text.lstrip().startswith("{")):
            return None
        try:
            found = json.loads(choice.text)
            function = {"name": found["name"], "arguments": json.dumps(found["arguments"])}
        except (ValueError, KeyError, TypeError):
            return None
        return {"id": f"call_{self.head.id.rpartition('-')[2][:24]}{choice.index}", "type": "function", "function": function}  # fmt: skip  # noqa: E501

    def _logprobs(self, events: Sequence[Event]) -> Json | None:
        if not getattr(self.body, "logprobs", None):
            return None
        return {"content": [self._entry(event) for event in events], "refusal": None}

    def _entry(self, event: Event) -> Json:
        top = [self._token(token, value) for token, value in event.top]
        made = self._token(event.token, event.logprob or 0.0) | {"top_logprobs": top}
        return made | ({"depth": event.depth} if self.body.return_depths else {})

    def _token(self, token: int, logprob: float) -> Json:
        text = self.tokenizer.token_text(token)
        return {"token": text, "logprob": logprob, "bytes": list(self.tokenizer.token_bytes(token))}

    def opening(self) -> list[Json]:
        """Chunks that say who speaks."""
        return [self._chunk([self._delta(c, {"role": "assistant", "content": "", "refusal": None}, None, ())]) for c in self.choices]  # fmt: skip  # noqa: E501

    def _delta(self, choice: Choice, delta: Json, logprobs: Json | None, events: Sequence[Event]) -> Json:
        called = choice.finish == "stop" and "tool_calls" in delta
        finish = "tool_calls" if called else choice.finish
        base = {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return base | self.extras(choice, events)

    def chunks(self, index: int, events: list[Event]) -> list[Json]:
        """What one batch of events adds. A text that begins like a call is held until it is whole."""
        choice = self.choices[index]
        piece = choice.take(events)
        delta: Json = {"content": piece} if piece else {}
        if self.plan.tools and choice.text.lstrip().startswith("{"):
            if not choice.finish:
                return []
            call = self._call(choice)
            delta = {"tool_calls": [{"index": 0, **call}]} if call else {"content": choice.text}
        logprobs = self._logprobs(events)
        if not (delta or logprobs or choice.finish or self.body.return_depths or self.body.return_token_ids):
            return []
        return [self._chunk([self._delta(choice, delta, logprobs, events)])]

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> Json:
        return self.head.wrap("chat.completion.chunk", choices, usage, chunk=True)

    def closing(self) -> Json:
        """The last chunk: no choices, the usage."""
        return self._chunk([], self.usage())
