"""The reference decoder: one request at a time, plain loops, dense cache. It is the specification of the engine.

Prompts run in chunks: all positions of a chunk go through the core together, each leaving by the *prefill policy*,
which may read states but not readouts (a readout of a prompt position would depend on where chunks are cut).
Generated tokens run one by one under the request's policy. Exited positions keep the KV that their last pass wrote;
what later queries read of it is the KV layout's business.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from loopwise.config import InputError
from loopwise.exit.policy import Policy
from loopwise.exit.signals import Look, Probe, require
from loopwise.model.kv_layout import KVLayout, kv_layout
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import SamplingParams, penalise, sample, uniform


class DenseCached:
    """Attention context of one sequence with a dense cache: every layer, plane and position has its slot."""

    def __init__(self, model: RecurrentLM, layout: KVLayout, max_depth: int, length: int) -> None:
        c, weight = model.config, model.embedding.weight
        core = range(c.prelude_layers, c.prelude_layers + c.core_layers)
        planes = [layout.num_planes(max_depth) if i in core else 1 for i in range(c.num_layers)]
        size = (length, c.kv_heads, c.width)
        self.keys = [torch.zeros(n, *size, dtype=weight.dtype, device=weight.device) for n in planes]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.deepest = torch.zeros(length, dtype=torch.long, device=weight.device)
        self.layout, self.depth = layout, 0
        self.windows: tuple[int, ...] = ()
        self.positions = torch.zeros(0, dtype=torch.long, device=weight.device)
        self.turn = torch.zeros(0)

    def at(self, positions: Int[Tensor, "rows"], turn: Tensor, depth: int) -> "DenseCached":
        """Point at the rows of the next call; a core pass (depth of at least 1) also becomes their deepest pass."""
        self.positions, self.turn, self.depth = positions, turn, depth
        if depth:
            self.deepest[positions] = depth
        return self

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "rows heads width"],
        k: Float[Tensor, "rows kv width"],
        v: Float[Tensor, "rows kv width"],
    ) -> Float[Tensor, "rows heads width"]:
        """Write k and v of these rows, then attend over every position up to each row's own."""
        length = int(self.positions.max()) + 1
        here = torch.arange(length, device=q.device)
        plane = self.layout.write(self.depth) if self.depth else 0
        self.keys[layer][plane, self.positions], self.values[layer][plane, self.positions] = k, v
        read = self.layout.read(self.depth, self.deepest[:length]) if self.depth else torch.zeros_like(here)
        keys, values = self.keys[layer][read, here], self.values[layer][read, here]
        mask = here <= self.positions[:, None]
        if self.windows and self.windows[layer]:
            mask &= here > self.positions[:, None] - self.windows[layer]
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=mask[None, None],
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out[0].transpose(0, 1)


class Token(NamedTuple):
    """One generated token: its id, exit depth, how many readouts it cost, its log-probability under the unprocessed
    logits, and the alternatives asked for as (id, log-probability), best first."""

    id: int
    depth: int
    readouts: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Generation(NamedTuple):
    """All of one continuation. `finish` is `length`, `stop` (end-of-text, stop id or stop string)."""

    tokens: list[Token]
    finish: str
    text: str
    prompt_depths: list[int]


class Decoder:
    """Decoding state of one sequence.

    `policy` serves generated tokens, `prefill` prompt tokens (default: uniform depth `policy.max_depth`). `length` is
    the most positions the cache holds. Raises `InputError` for a policy deeper than the model's `max_depth`, a prefill
    policy that needs readouts, or a probe policy without a probe.
    """

    def __init__(
        self,
        model: RecurrentLM,
        policy: Policy,
        *,
        length: int,
        layout: str = "depth_indexed",
        prefill: Policy | None = None,
        probe: Probe | None = None,
        chunk: int = 1 << 30,
    ) -> None:
        self.model, self.probe, self.chunk = model, probe, chunk
        self.policy = policy.bind(model.config.max_depth)
        self.prefill_policy = check_prefill(prefill or Policy.parse(f"depth={self.policy.max_depth}"), model)
        for chosen in (self.policy, self.prefill_policy):
            require(chosen, chosen.reads, probe)
        deepest = max(self.policy.max_depth or 1, self.prefill_policy.max_depth or 1)
        model.rotary.reserve(length)
        self.ctx = DenseCached(model, kv_layout(layout), deepest, length)
        self.position = 0
        self.exit_depths: list[int] = []

    @torch.no_grad()
    def prefill(self, tokens: list[int]) -> Float[Tensor, "vocab"]:
        """Run prompt tokens; returns the logits after the last one."""
        logits = torch.zeros(0)
        for start in range(0, len(tokens), self.chunk):
            logits = self._chunk(tokens[start : start + self.chunk])
        return logits

    def _chunk(self, tokens: list[int]) -> Float[Tensor, "vocab"]:
        ids = torch.tensor(tokens, device=self.ctx.deepest.device)
        positions = torch.arange(self.position, self.position + len(tokens), device=ids.device)
        e = self.model.prelude(ids, self.ctx.at(positions, self.ctx.turn, 0))
        turn, s = self.ctx.turn, self.model.init_state(e, self.ctx)
        rule, signal = self.prefill_policy.rule(), self.prefill_policy.reads
        carry, prev, prev2 = rule.init(len(tokens), ids.device), s.clone(), s.clone()
        live, depth = torch.arange(len(tokens), device=ids.device), 0
        while len(live):
            depth += 1
            new = self.model.core(s[live], e[live], self.ctx.at(positions[live], turn[:, live], depth))
            prev2[live], prev[live], s[live] = prev[live], s[live], new
            look = Look(new, prev[live], prev2[live])
            value = signal.value(look, depth, self.probe) if signal and rule.checks_at(depth) else None
            leave, carry = rule.step(value, depth, carry)
            live, carry = live[~leave], carry[~leave]
        self.exit_depths += self.ctx.deepest[positions].tolist()
        self.position += len(tokens)
        return self.model.coda(s, self.ctx.at(positions, turn, 0))[-1]

    @torch.no_grad()
    def step(self, token: int, recorded: int | None = None) -> tuple[Float[Tensor, "vocab"], int, int]:
        """Run one token; returns (logits, exit depth, readouts). `recorded` plays an exit depth back."""
        ids = torch.tensor([token], device=self.ctx.deepest.device)
        positions = torch.tensor([self.position], device=ids.device)
        e = self.model.prelude(ids, self.ctx.at(positions, self.ctx.turn, 0))
        turn, s = self.ctx.turn, self.model.init_state(e, self.ctx)
        rule, signal = self.policy.rule(), self.policy.reads
        carry, prev, prev2 = rule.init(1, ids.device), s, s
        logits: Tensor | None = None
        log_probs: Tensor | None = None
        depth = readouts = 0
        leave = False
        while not leave:
            depth += 1
            prev2, prev, logits = prev, s, None
            s = self.model.core(s, e, self.ctx.at(positions, turn, depth))
            checks = rule.checks_at(depth)
            before = log_probs
            if signal and signal.readouts and (checks or (signal.readouts > 1 and rule.checks_at(depth + 1))):
                logits = self.model.coda(s, self.ctx.at(positions, turn, 0))
                log_probs, readouts = logits.log_softmax(-1), readouts + 1
            value = torch.tensor([float(recorded)]) if recorded else None
            if signal and checks:
                value = signal.value(Look(s, prev, prev2, log_probs, before), depth, self.probe)
            decision = rule.step(value, depth, carry)
            leave, carry = bool(decision.leave), decision.carry
        if logits is None:
            logits, readouts = self.model.coda(s, self.ctx.at(positions, turn, 0)), readouts + 1
        self.exit_depths.append(depth)
        self.position += 1
        return logits[0], depth, readouts


def check_prefill(policy: Policy, model: RecurrentLM) -> Policy:
    """Bind a prefill policy; one that needs readouts raises `InputError`."""
    policy = policy.bind(model.config.max_depth)
    if (policy.reads and policy.reads.readouts) or policy.recorded:
        raise InputError(f"prefill policy '{policy}' reads the output: use depth=N or a signal of the state")
    return policy


def generate(
    decoder: Decoder,
    prompt: list[int],
    params: SamplingParams,
    *,
    eos: int | None = None,
    decode: Callable[[list[int]], str] = lambda ids: "",
    on_token: Callable[[Token], None] = lambda token: None,
) -> Generation:
    """Continue `prompt` (at least one token). The first new token is sampled from the prompt's last logits, at the
    prefill policy's depth; every later one after a step under the decode policy. `decode` turns ids into text and is
    needed only for stop strings and `text`. Token ids out of range raise `InputError`."""
    check_tokens(prompt, decoder.model.config.vocab_size)
    made: list[Token] = []
    finish = "length"
    for token in tokens(decoder, prompt, params):
        made.append(token)
        on_token(token)
        ids = [t.id for t in made]
        ends = token.id in params.stop_ids or (token.id == eos and not params.ignore_eos)
        if len(made) >= params.min_tokens and (ends or any(s in decode(ids) for s in params.stop)):
            finish = "stop"
            break
    return Generation(made, finish, cut(decode([t.id for t in made]), params), decoder.exit_depths[: len(prompt)])


def tokens(decoder: Decoder, prompt: list[int], params: SamplingParams) -> Iterator[Token]:
    """Endless in principle, `params.max_tokens` long in practice: the tokens that continue `prompt`."""
    logits, depth, readouts = decoder.prefill(prompt), decoder.exit_depths[-1], 1
    output: list[int] = []
    recorded = decoder.policy.recorded or ()
    for index in range(params.max_tokens):
        adjusted = logits if params.plain else penalise(logits, params, prompt, output)
        u = uniform(params.seed or 0, len(prompt) + index)
        choice = int(sample(adjusted[None], [params], [u])[0])
        yield _token(choice, depth, readouts, logits, params)
        output.append(choice)
        if index + 1 < params.max_tokens:
            logits, depth, readouts = decoder.step(choice, recorded[index] if index < len(recorded) else None)


def _token(choice: int, depth: int, readouts: int, logits: Tensor, params: SamplingParams) -> Token:
    log_probs = logits.log_softmax(-1)
    best = log_probs.topk(params.logprobs) if params.logprobs else None
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)) if best else ()
    return Token(choice, depth, readouts, float(log_probs[choice]), top)


def cut(text: str, params: SamplingParams) -> str:
    """Text up to the earliest stop string (included if `include_stop`)."""
    found = [(text.find(s), s) for s in params.stop if s in text]
    if not found:
        return text
    start, stop = min(found)
    return text[: start + len(stop)] if params.include_stop else text[:start]


def check_tokens(tokens: list[int], vocab_size: int) -> None:
    """Refuse an empty prompt and ids outside the vocabulary."""
    if not tokens:
        raise InputError("prompt has no tokens: give at least one character")
    bad = [t for t in tokens if not 0 <= t < vocab_size]
    if bad:
        raise InputError(f"token id {bad[0]} is out of range: this model's vocabulary has ids 0 to {vocab_size - 1}")
