"""`LLM`: a checkpoint and an engine for offline batches. See docs/engine.md."""

import dataclasses
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from loopwise.checkpoint.native import Checkpoint, open_checkpoint
from loopwise.config import InputError, nearest
from loopwise.data.tokenizer import Tokenizer
from loopwise.engine.engine import Engine
from loopwise.engine.request import EngineConfig, Event, Output, Request, Score
from loopwise.engine.sequence import collect
from loopwise.exit.policy import Policy
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import SamplingParams

Prompt = str | Sequence[int]
Choice = Policy | str | None
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MIN_PREFILL = 8  # nobody waits for first tokens of an offline batch
_OPTIONS = tuple(field.name for field in dataclasses.fields(EngineConfig) if field.name != "policy")


class LLM:
    """`source`: a checkpoint's name or folder, a `Checkpoint`, or a `RecurrentLM` (used as it is). `options`: fields of
    `EngineConfig`, and `dtype` and `device` for checkpoints. Raises `InputError` for what cannot be opened or run."""

    def __init__(
        self,
        source: str | Checkpoint | RecurrentLM,
        *,
        policy: Policy | str | None = None,
        tokenizer: Tokenizer | None = None,
        dtype: str | torch.dtype = "float32",
        device: str | torch.device = "cpu",
        **options: Any,
    ) -> None:
        for name in options:
            if name not in _OPTIONS:
                raise InputError(f"option '{name}' is unknown: {nearest(name, (*_OPTIONS, 'dtype', 'device'))}")
        config = EngineConfig(policy=policy, **{"min_prefill": MIN_PREFILL, **options})
        if isinstance(source, RecurrentLM):
            self.engine = Engine(source, config, tokenizer=tokenizer)
        else:
            checkpoint = open_checkpoint(source) if isinstance(source, str) else source
            self.engine = open_engine(checkpoint, config, tokenizer=tokenizer, dtype=dtype, device=device)

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        policies: Choice | Sequence[Choice] = None,
        *,
        progress: bool = False,
    ) -> list[Output]:
        """Continue every prompt; outputs in the order of the prompts, the `n` choices of one after each other. Ctrl-C
        raises `KeyboardInterrupt` after the launch under way and cancels everything; a second one acts at once."""
        prompts = [prompts] if isinstance(prompts, str) else prompts
        each = _spread("params", params or SamplingParams(), SamplingParams, len(prompts))
        chosen = _spread("policies", policies, (Policy, str, type(None)), len(prompts))
        requests = [
            Request(prompt=self._ids(prompt), params=own, policy=policy)
            for prompt, own, policy in zip(prompts, each, chosen, strict=True)
        ]
        return [collect(events) for events in self._run(requests, "generating" if progress else None)]

    def score(self, texts: Sequence[Prompt], policy: Choice = None, *, progress: bool = False) -> list[Score]:
        """Log-probability and depth of every token but the first of each text, teacher-forced under the decode policy:
        each token is computed with the KV that the policy left behind."""
        ids = [self._ids(text) for text in texts]
        requests = [_scoring(tokens, policy) for tokens in ids if len(tokens) > 1]
        found = iter(self._run(requests, "scoring" if progress else None))
        return [_score(tokens, next(found) if len(tokens) > 1 else []) for tokens in ids]

    def stats(self) -> dict[str, Any]:
        """Counters since the start; see docs/engine.md."""
        return self.engine.stats()

    def _ids(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        if self.engine.tokenizer is None:
            raise InputError("prompt is a text, but this model has no tokenizer: pass tokenizer=, or give token ids")
        return self.engine.tokenizer.encode(prompt)

    def _run(self, requests: Sequence[Request], title: str | None) -> list[list[Event]]:
        """Events of every choice of every request, in order."""
        names: list[str] = []
        found: dict[tuple[str, int], list[Event]] = {}
        try:
            for request in requests:
                names.append(self.engine.submit(request))
            wanted = set(names)
            with _ctrl_c() as asked, _bar(title, sum(r.params.n for r in requests)) as advance:
                while wanted.intersection(self.engine.requests):
                    events = self.engine.step()
                    for event in events:
                        found.setdefault((event.id, event.index), []).append(event)
                    advance(sum(event.finish is not None for event in events))
                    if asked:
                        raise KeyboardInterrupt
        finally:
            for name in names:
                self.engine.cancel(name)
        return [found[name, i] for name, r in zip(names, requests, strict=True) for i in range(r.params.n)]


def open_engine(
    checkpoint: Checkpoint,
    config: EngineConfig,
    *,
    tokenizer: Tokenizer | None = None,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> Engine:
    """An engine over a checkpoint: weights, tokenizer, probe and digest. Raises `InputError` for a damaged one."""
    if isinstance(dtype, str):
        if dtype not in DTYPES:
            raise InputError(f"dtype '{dtype}' is unknown: {nearest(dtype, DTYPES)}")
        dtype = DTYPES[dtype]
    model, probe = checkpoint.model(dtype=dtype, device=device), checkpoint.probe()
    if tokenizer is None:
        tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    tokenizer.check_vocab(checkpoint.config.vocab_size)
    probe = None if probe is None else probe.to(device)
    return Engine(model, config, tokenizer=tokenizer, probe=probe, digest=checkpoint.digest)


def _scoring(tokens: list[int], policy: Choice) -> Request:
    params = SamplingParams(max_tokens=len(tokens) - 1, logprobs=0, ignore_eos=True)
    return Request(prompt=tokens[:1], forced=tokens[1:], params=params, policy=policy)


def _score(tokens: list[int], events: list[Event]) -> Score:
    return Score(tokens, [e.logprob for e in events if e.logprob is not None], [e.depth for e in events])


def _spread(name: str, value: Any, one: type | tuple[type, ...], count: int) -> list[Any]:
    """One value for all prompts, or one each."""
    if isinstance(value, one):
        return [value] * count
    if len(value) != count:
        raise InputError(f"{name} has {len(value)} entries for {count} prompts: give one for all, or one for each")
    return list(value)


@contextmanager
def _ctrl_c() -> Iterator[list[int]]:
    """Within it, a first Ctrl-C only puts the signal's number into the list, so that no launch is torn. Outside the
    main thread, or where somebody ignores or handles the signal, nothing is changed."""
    asked: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _bar(title: str | None, total: int) -> Iterator[Any]:
    """A progress bar on stderr, when somebody is there to see it; yields what advances it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    console = Console(stderr=True)
    hidden = title is None or not sys.stderr.isatty()
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=hidden) as progress:
        task = progress.add_task(title or "", total=total)
        yield lambda count: progress.advance(task, count)


def describe(config: EngineConfig) -> Mapping[str, Any]:
    """A configuration as JSON-ready values, for manifests."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Policy) else value
