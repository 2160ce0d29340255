"""One continuation in progress: what it made so far and when it ends."""

import time
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from loopwise.data.detokenizer import Detokenizer
from loopwise.data.tokenizer import Tokenizer
from loopwise.engine.job import Job
from loopwise.engine.launch import Kind
from loopwise.engine.request import Event, Output, PromptToken, Request, Usage
from loopwise.engine.sampler import Ask, Reading
from loopwise.engine.text import Text


class Made(NamedTuple):
    """A new token: its id, exit depth, signal value and log-probability (None where there is none)."""

    token: int
    depth: int
    signal: float | None
    reading: Reading | None


class Sequence:
    """Choice `index` of a request. `push` returns the event of a token; `finish` is set once the last one came."""

    def __init__(self, request: Request, name: str, index: int, seed: int, kind: Kind, job: Job) -> None:
        self.request, self.name, self.index, self.seed, self.kind, self.job = request, name, index, seed, kind, job
        self.params = request.params
        self.output: list[int] = []
        self.finish: str | None = None
        self.stop_reason: str | int | None = None
        self.core_passes = self.readouts = 0
        self.admitted, self.first_s = False, 0.0
        self.prompt_logprobs: list[PromptToken] = []
        self._text = Text(request.params)
        self._detokenizer: Detokenizer | None = None
        self._eos: int | None = None
        self._failed, self._vocab = "", 0

    def speak(self, tokenizer: Tokenizer | None, eos: int | None, vocab: int) -> "Sequence":
        """Give it a tokenizer, the token that ends texts unless its parameters ignore it, and the vocabulary's size."""
        self._vocab = vocab
        self._detokenizer = Detokenizer(tokenizer) if tokenizer else None
        self._eos = None if self.params.ignore_eos else eos
        return self

    @property
    def recorded(self) -> tuple[int, ...] | None:
        """Exit depths to play back, if its policy does."""
        policy = self.request.policy
        return getattr(policy, "recorded", None)

    def deepest(self, number: int) -> int:
        """Most passes of output token `number`, counted from 0, once it is read: recorded, or the rule's maximum."""
        recorded, most = self.recorded, self.kind.rule.max_depth
        return min(recorded[number], most) if recorded and number < len(recorded) else most

    def ask(self) -> Ask:
        """What the sampler needs to know."""
        forced = self.request.forced
        token = forced[len(self.output)] if forced is not None else -1
        return Ask(self.params, self.seed, self.request.prompt, self.output, self._allowed(), token)

    def _allowed(self) -> Tensor | None:
        """What the request's mask allows. A mask that fails ends its own request, not the engine."""
        if self.request.mask is None:
            return None
        try:
            allowed = self.request.mask(self.output)
            if allowed is not None and allowed.shape != (self._vocab,):
                raise ValueError(f"shape {list(allowed.shape)} where [{self._vocab}] is needed")
        except Exception as error:  # it is the caller's code
            self._failed = f"mask failed: {type(error).__name__}: {error}"
            return None
        return allowed

    def push(self, made: Made) -> Event:
        """Take a token: detokenise it, look for an end, say what became certain."""
        self.output.append(made.token)
        self.first_s = self.first_s or time.perf_counter()
        self.core_passes += made.depth
        self.readouts += 1 if len(self.output) == 1 else readouts(self.kind, made.depth)
        count, params, last = len(self.output), self.params, None
        eligible = count >= params.min_tokens
        if self._detokenizer:
            self._text.push(self._detokenizer.push(made.token), eligible=eligible)
            if self._text.stopped is not None:
                last = self._text.stopped
        if eligible and (made.token in params.stop_ids or made.token == self._eos):
            last = made.token if last is None else last
        if self._failed:
            self.finish, self.stop_reason = "error", self._failed
        elif last is not None:
            self.finish, self.stop_reason = "stop", last
        elif count >= params.max_tokens:
            self.finish = "length"
        piece = self._piece() if self._detokenizer else ""
        logprob, top = made.reading or (None, ())
        first = tuple(self.prompt_logprobs) if count == 1 and self.request.prompt_logprobs is not None else None
        return Event(
            self.name, self.index, made.token, piece, made.depth, logprob, top, made.signal, self.finish,
            self.stop_reason, self._usage() if self.finish else None, first,
        )  # fmt: skip

    def _piece(self) -> str:
        if self.finish and self._text.stopped is None and self._detokenizer:
            self._text.push(self._detokenizer.finish(), eligible=False)
        return self._text.take(final=self.finish is not None)

    def _usage(self) -> Usage:
        job, prompt = self.job, len(self.request.prompt)
        spent = (len(self.output), self.core_passes, self.readouts)
        return Usage(prompt, job.cached, *spent, job.admitted_s, self.first_s)


@lru_cache(maxsize=4096)
def readouts(kind: Kind, depth: int) -> int:
    """Coda-and-head evaluations of a token that left at `depth`, its own output included."""
    signal, rule = kind.signal, kind.rule
    if signal is None or not signal.readouts:
        return 1
    ahead = signal.readouts > 1
    return 1 + sum(rule.checks_at(d) or (ahead and rule.checks_at(d + 1)) for d in range(1, depth + 1))


def collect(events: list[Event]) -> Output:
    """All events of one continuation as an output."""
    last = events[-1]
    usage = last.usage
    return Output(
        id=last.id,
        index=last.index,
        text="".join(e.piece for e in events),
        tokens=[e.token for e in events],
        depths=[e.depth for e in events],
        finish=last.finish or "cancelled",
        stop_reason=last.stop_reason,
        logprobs=[e.logprob for e in events if e.logprob is not None],
        top=[e.top for e in events if e.logprob is not None],
        signals=[e.signal for e in events],
        prompt_tokens=usage.prompt_tokens if usage else 0,
        cached_tokens=usage.cached_tokens if usage else 0,
        prompt_logprobs=events[0].prompt_logprobs,
    )
