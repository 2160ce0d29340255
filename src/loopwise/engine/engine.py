"""The engine: requests in, token events out, one launch per `step`. Belongs to one thread."""

import dataclasses
import itertools
import math
import secrets
import time
from typing import Any

import torch

from loopwise.config import InputError
from loopwise.data.tokenizer import Tokenizer
from loopwise.engine.blocks import BlockPool
from loopwise.engine.graphs import powers_to
from loopwise.engine.job import Job
from loopwise.engine.late import Exits, Tokens, check_lag
from loopwise.engine.launch import Kind, Work
from loopwise.engine.pool import KVPool
from loopwise.engine.prefix import chain_start
from loopwise.engine.readback import Readback
from loopwise.engine.request import EngineConfig, Event, PromptToken, Request
from loopwise.engine.runner import Runner
from loopwise.engine.sampler import Readings, choose
from loopwise.engine.scheduler import Core, Knobs, Prefill, Scheduler, Turn
from loopwise.engine.sequence import Made, Sequence
from loopwise.engine.stats import Stats
from loopwise.exit.policy import Policy
from loopwise.exit.signals import Probe, require
from loopwise.generate import check_prefill, check_tokens
from loopwise.model.cost import Cost
from loopwise.model.kv_layout import kv_layout
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import upload

POOL_BYTES = 1 << 30
_CLOCK = time.perf_counter


class Engine:
    """See docs/engine.md. `digest` names the weights in prefix keys. Raises `InputError` for an impossible config."""

    def __init__(
        self,
        model: RecurrentLM,
        config: EngineConfig = EngineConfig(),  # noqa: B008 (frozen)
        *,
        tokenizer: Tokenizer | None = None,
        probe: Probe | None = None,
        digest: str = "",
    ) -> None:
        self.model, self.tokenizer, self.probe, self.config = model, tokenizer, probe, config
        self.layout = kv_layout(config.layout)
        self.max_depth = config.max_depth or model.config.max_depth
        if not 1 <= self.max_depth <= model.config.max_depth:
            raise InputError(f"max_depth is {self.max_depth}: use 1 to {model.config.max_depth}")
        self.usual = max(1, min(self.max_depth, round(model.config.mean_depth)))
        self.policy = self._policy(config.policy or f"depth={self.usual}")
        self.prefill = self._prefill_policy(config.prefill)
        self.places = config.places or 2 * config.max_rows
        self.context = config.context or model.config.context
        model.rotary.reserve(self.context)
        weight = model.embedding.weight
        self._start = (digest, config.layout, str(self.prefill), str(weight.dtype))
        cuda = weight.device.type == "cuda"
        self.lag = check_lag(config.lag, int(cuda))
        columns = weight.device.type == "cpu" and weight.dtype == torch.float32
        size = model.config.width if columns else 16
        blocks = self._num_blocks(size)
        pool = KVPool(model, self.layout, max_depth=self.max_depth, blocks=blocks, block_size=size, columns=columns)
        self.blocks = BlockPool(blocks)
        self.planner = Scheduler(self._knobs(size), self.blocks)
        most = min(blocks, -(-self.context // size))
        padded = config.padded if config.padded is not None else powers_to(config.max_rows) if cuda else ()
        self.runner = Runner(
            model, pool, places=self.places, max_blocks=most, prefill=self.prefill, probe=probe, lag=self.lag,
            padded=padded,
        )  # fmt: skip
        self.totals = Stats()
        self._late: Exits | Tokens | None = None
        self._sequences: dict[str, dict[int, Sequence]] = {}
        self._by_job: dict[Job, Sequence] = {}
        self._names = itertools.count()

    def _policy(self, policy: Policy | str) -> Policy:
        policy = Policy.parse(policy) if isinstance(policy, str) else policy
        policy = policy.bind(self.max_depth)
        require(policy, policy.reads, self.probe)
        return policy

    def _prefill_policy(self, policy: Policy | str | None) -> Policy:
        depth = min(self.usual, self.policy.max_depth or self.usual)
        chosen = self._policy(f"depth={depth}" if policy is None else policy)
        return check_prefill(chosen, self.model)

    def _num_blocks(self, size: int) -> int:
        c = self.model.config
        cost = Cost.of(c).kv_bytes("depth_indexed" if self.layout.exact else self.layout.name, max_depth=self.max_depth)
        bytes_per_block = size * cost * self.model.embedding.weight.element_size() // 4
        wanted = self.places * -(-self.context // size)
        fitting = max(POOL_BYTES // bytes_per_block, -(-self.context // size))
        return -(-self.config.kv_tokens // size) if self.config.kv_tokens else min(wanted, fitting)

    def _knobs(self, size: int) -> Knobs:
        config = self.config
        granule = size if self.layout.exact else math.lcm(size, config.chunk) if config.chunk else 0
        return Knobs(
            places=self.places,
            max_rows=config.max_rows,
            block_size=size,
            min_turn=config.max_rows if config.min_turn is None else config.min_turn,
            min_prefill=config.min_prefill,
            chunk=config.chunk,
            prefill_tokens=config.prefill_tokens,
            granule=granule if config.prefix_cache else 0,
            static=config.static,
            lockstep=config.lockstep,
        )

    # Requests

    def check(self, request: Request) -> Request:
        """The request with its policy settled; `InputError` if it can never run. May be called from any thread."""
        check_tokens(list(request.prompt), self.model.config.vocab_size)
        policy = self.policy if request.policy is None else self._policy(request.policy)
        request = dataclasses.replace(request, policy=policy)
        params = request.params
        positions = len(request.prompt) + params.max_tokens - 1
        for limit, what in ((self.context, "context"), (self.blocks.total * self.runner.pool.size, "KV memory")):
            if positions > limit:
                raise InputError(
                    f"prompt of {len(request.prompt)} tokens and max_tokens {params.max_tokens} exceed the {what} of "
                    f"{limit} positions: shorten the prompt or lower max_tokens"
                )
        if any(not 0 <= t < self.model.config.vocab_size for t in params.logit_bias):
            raise InputError(f"logit_bias names a token out of range: use ids 0 to {self.model.config.vocab_size - 1}")
        if params.stop and self.tokenizer is None:
            raise InputError("stop strings need a tokenizer: pass one to the engine")
        return request

    def submit(self, request: Request) -> str:
        """Queue a request and return its id; see docs/engine.md."""
        request = self.check(request)
        name = f"r{next(self._names)}" if request.id is None else request.id
        if name in self._sequences:
            raise InputError(f"request id '{name}' is in use: choose another")
        self._queue(name, request)
        return name

    def _queue(self, name: str, request: Request) -> None:
        assert isinstance(request.policy, Policy)
        kind, params = Kind.of(request.policy), request.params
        positions = len(request.prompt) + params.max_tokens - 1
        seed = secrets.randbits(63) if params.seed is None else params.seed
        plain = request.prompt_depths is None and request.prompt_logprobs is None
        start = chain_start(*self._start, request.salt) if plain else None
        eos = self.tokenizer.eos_id if self.tokenizer and self.tokenizer.eos else None
        self._sequences[name] = {}
        for index in range(params.n):
            job = Job(name=name, prompt=request.prompt, positions=positions, priority=request.priority, start=start)
            sequence = Sequence(request, name, index, seed + index, kind, job).speak(
                self.tokenizer, eos, self.model.config.vocab_size
            )
            self._sequences[name][index] = self._by_job[job] = sequence
            self.planner.add(job)
        self.totals.requests += 1

    def cancel(self, name: str) -> None:
        """Forget a request; unknown and finished ones are ignored."""
        for sequence in self._sequences.pop(name, {}).values():
            self.planner.cancel(sequence.job)
            del self._by_job[sequence.job]
            self.totals.cancelled += sequence.index == 0

    @property
    def busy(self) -> bool:
        """Whether anything is queued or running."""
        return bool(self._sequences)

    @property
    def requests(self) -> list[str]:
        """Ids of requests that have not ended."""
        return list(self._sequences)

    def choices(self, name: str) -> list[int]:
        """Choices of a request that have not ended."""
        return list(self._sequences.get(name, ()))

    def reset_prefix_cache(self) -> None:
        """Forget all cached prompts."""
        self.blocks.forget()

    # Launches

    def step(self) -> list[Event]:
        """Plan and run one launch; the events of the tokens that became known."""
        begin = _CLOCK()
        work = self.planner.plan()
        late, self._late = self._late, None
        events = self._turn(work.places) if isinstance(work, Turn) else []
        if isinstance(work, Core):
            self._core(work.places)
        elif isinstance(work, Prefill):
            self._prefill(work)
        if late is not None:
            events += self._catch_up(late, work.places if isinstance(work, Core) else [])
        self.totals.wall_s += _CLOCK() - begin
        return events

    def _core(self, places: list[int]) -> None:
        start = _CLOCK()
        leave, asked, verdicts = self.runner.core(places)
        if verdicts is not None and self.lag:
            self._late = Exits([self.planner.jobs[places[n]] for n in asked], [leave[n] for n in asked], verdicts)
        elif verdicts is not None:
            for number, verdict in zip(asked, verdicts.take()[0], strict=True):
                leave[number] |= verdict
        self.totals.count("core", len(places), _CLOCK() - start)
        self.planner.passed(leave)

    def _catch_up(self, late: Exits | Tokens, launched: list[int]) -> list[Event]:
        """Take what the launch before the last one said. Rows that it ended ran for nothing if they were `launched`."""
        if isinstance(late, Tokens):
            events = self._push(late)
            ended = [s.job for s in late.sequences if s.finish and not s.job.over]
            self.totals.surplus_passes += sum(job.place in launched for job in ended)
            for job in ended:
                self.planner.cancel(job)
            return events
        places = {job.place for job in late.left() if self.planner.jobs.get(job.place) is job}
        self.totals.surplus_passes += len(places.intersection(launched))
        self.planner.left(places)
        return []

    def _prefill(self, work: Prefill) -> None:
        chunks, tokens = [], 0
        for job, start, stop in work.pieces:
            sequence = self._by_job[job]
            request = sequence.request
            if not sequence.admitted:
                sequence.admitted = True
                self.runner.admit(job.place, job.blocks, sequence.kind)
                self.totals.cached_tokens += job.cached
                self.totals.prompt_tokens += len(job.prompt)
            depths = None if request.prompt_depths is None else request.prompt_depths[start:stop]
            wants = request.prompt_logprobs is not None
            chunks.append(Work(job.place, job.prompt[start:stop], start, depths, wants))
            tokens += stop - start
        begin = _CLOCK()
        logits = self.runner.prefill(chunks)
        self.totals.count("prefill", tokens, _CLOCK() - begin)
        for job, start, stop in work.pieces:
            if job.place in logits:
                self._read_prompt(self._by_job[job], logits[job.place], start, stop)
        self.planner.prefilled()

    def _read_prompt(self, sequence: Sequence, logits: torch.Tensor, start: int, stop: int) -> None:
        following = sequence.job.prompt[start + 1 : stop + 1]
        ids = upload(following, logits.device, torch.long)
        readings = Readings(logits[: len(following)], ids, [sequence.request.prompt_logprobs] * len(following))
        for token, found in zip(following, readings.take(), strict=True):
            assert found is not None
            sequence.prompt_logprobs.append(PromptToken(token, *found))

    def _turn(self, places: list[int]) -> list[Event]:
        start = _CLOCK()
        sequences = [self._by_job[self.planner.jobs[place]] for place in places]
        numbers = [len(s.output) for s in sequences]
        logits = self.runner.coda(places)
        tokens = choose(logits, [s.ask() for s in sequences])
        readings = Readings(logits, tokens, [s.params.logprobs for s in sequences])
        made = Tokens(sequences, Readback(tokens, *self.runner.outcome(places)), readings)
        events, host_s = [], 0.0
        if self.lag:
            self._late = made
            ends = [n + 1 >= s.params.max_tokens for n, s in zip(numbers, sequences, strict=True)]
        else:
            found, at = made.take(), _CLOCK()
            events = self._push(made, found)
            host_s = _CLOCK() - at
            ends = [s.finish is not None for s in sequences]
        going = [n for n, end in enumerate(ends) if not end]
        if going:
            depths = [sequences[n].deepest(numbers[n]) for n in going]
            chosen = tokens if len(going) == len(places) else tokens[upload(going, tokens.device)]
            self.runner.begin([places[n] for n in going], chosen, depths)
        self.totals.count("turn", len(places), _CLOCK() - start - host_s)
        self.planner.turned({places[n] for n, end in enumerate(ends) if end})
        return events

    def _push(self, made: Tokens, found: list[Made] | None = None) -> list[Event]:
        """Give tokens to their sequences, but for those that were cancelled meanwhile."""
        events = []
        for sequence, one in zip(made.sequences, made.take() if found is None else found, strict=True):
            if self._sequences.get(sequence.name, {}).get(sequence.index) is sequence:
                events.append(sequence.push(one))
                if sequence.finish:
                    self._end(sequence)
        self._count(events)
        return events

    def _end(self, sequence: Sequence) -> None:
        del self._by_job[sequence.job]
        group = self._sequences[sequence.name]
        del group[sequence.index]
        if not group:
            del self._sequences[sequence.name]
            self.totals.finished += 1

    def _count(self, events: list[Event]) -> None:
        totals = self.totals
        totals.output_tokens += len(events)
        for event in events:
            totals.exit_depths[event.depth] = totals.exit_depths.get(event.depth, 0) + 1
            totals.passes_saved += self.max_depth - event.depth

    def stats(self) -> dict[str, Any]:
        """Counters since the start; see docs/engine.md."""
        pool = self.blocks
        return self.totals.as_dict() | {
            "readouts": self.runner.readouts,
            "prompt_passes": self.runner.prompt_passes,
            "waiting": self.planner.num_waiting,
            "running": len(self.planner.jobs),
            "kv_blocks": pool.total,
            "kv_blocks_held": pool.num_held,
            "kv_blocks_cached": pool.num_cached,
            "kv_bytes": self.runner.pool.num_bytes,
            "block_size": self.runner.pool.size,
        }
