"""Huginn's stored cases: states, cached decodes under each lookup strategy, exit criteria, adaptive generation."""

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from loopwise.checkpoint.golden.criteria import CRITERIA, Watch
from loopwise.checkpoint.golden.replay import Recall, Replay, greedy, own_slots, pieces, present, run
from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM

Stored = Mapping[str, Tensor]


def cases(model: RecurrentLM, inputs: Stored, expected: Stored) -> Iterator[tuple[str, Tensor]]:
    """Every stored case, computed with our model: (name, value)."""
    tokens, prompt = inputs["input_ids"], inputs["prompt_ids"]
    yield "prelude_out", model.prelude(tokens, DenseCausal.over(tokens))
    yield from _states(model, tokens, inputs["init_state"], expected)
    for parts in sorted({tuple(name.split(".")[:-1]) for name in expected}):
        match parts:
            case ("decode" | "chunked8", strategy, depth) if _known(strategy, depth):
                rest = expected[_name(parts, "logits")].shape[1]
                sizes = [tokens.shape[1] - rest] + ([1] * rest if parts[0] == "decode" else [8] * (rest // 8))
                yield _name(parts, "logits"), pieces(model, cached(model, strategy), tokens, sizes, _n(depth))
            case ("schedule", strategy) if _known(strategy):
                yield _name(parts, "logits"), _scheduled(model, strategy, tokens[:1], inputs["schedule"])
            case ("exit", criterion, "parallel") if criterion in CRITERIA:
                yield from _parallel(model, criterion, tokens, _limit(parts, expected, 1))
            case ("exit", criterion, "tokenwise", strategy) if criterion in CRITERIA and _known(strategy):
                yield from _tokenwise(model, criterion, strategy, tokens, _limit(parts, expected, 2))
            case ("gen", "minimal" | "minimal_warmstart", strategy, depth) if _known(strategy, depth):
                warm, count = parts[1].endswith("warmstart"), len(expected[_name(parts, "tokens")])
                made = _minimal(model, strategy, prompt, _n(depth), count, warm=warm)
                yield from ((_name(parts, kind), x[0]) for kind, x in zip(("tokens", "logits"), made, strict=True))
            case ("gen", "speculative", draft, lookahead, depth) if _known("full", draft, lookahead, depth):
                count = len(expected[_name(parts, "tokens")])
                made = _speculative(model, prompt, _n(draft), _n(lookahead), _n(depth), count)
                yield _name(parts, "tokens"), made[:count]  # the last draft may go past the end
            case ("gen", "adaptive", criterion, strategy, variant) if criterion in CRITERIA and _known(strategy):
                count = len(expected[_name(parts, "tokens")])
                yield from _adaptive(model, criterion, strategy, variant, prompt, count, _limit(parts, expected, 1))


def _name(parts: tuple[str, ...], kind: str) -> str:
    return ".".join((*parts, kind))


def _limit(parts: tuple[str, ...], expected: Stored, axis: int) -> int:
    """The most loops of a stored run: the width of its values."""
    return expected[_name(parts, "values")].shape[axis]


def unstable(name: str, expected: Stored) -> Tensor | None:
    """Entries of an exit-step case that the golden files' README calls noise: a value came too close to the threshold
    on the way to the exit (for `parallel`, and everywhere for minp-kl and cosine)."""
    parts = name.split(".")
    if parts[0] != "exit" or not (parts[2] == "parallel" or parts[1] in ("minp-kl", "cosine")):
        return None
    kind = CRITERIA[parts[1]]
    values = expected[".".join((*parts[:-1], "values"))]
    near = ((values - kind.threshold).abs() <= kind.margin).any(1 if parts[2] == "parallel" else 2)
    if parts[2] == "tokenwise":  # one doubtful exit changes what all later tokens see
        near = near.cumsum(1) > 0
    if parts[2] == "parallel":
        return near if parts[-1] == "steps" else None
    return near if parts[-1] == "steps" else near.unsqueeze(-1)


def _n(text: str) -> int:
    return int(text[1:])


def _states(model: RecurrentLM, tokens: Tensor, given: Tensor, expected: Stored) -> Iterator[tuple[str, Tensor]]:
    for kind, start in (("zero", torch.zeros_like(given)), ("given", given)):
        depths = {_n(name.split(".")[2]) for name in expected if name.startswith(f"{kind}.state_raw.")}
        for depth in sorted(depths):
            ctx = DenseCausal.over(tokens)
            s = model.recurrence(start, model.prelude(tokens, ctx), ctx, depth)
            yield f"{kind}.state_raw.r{depth}", s
            yield f"{kind}.state_lnf.r{depth}", model.final_norm(s)
            yield f"{kind}.head_hidden.r{depth}", model.hidden(s, ctx)
            yield f"{kind}.logits.r{depth}", model.coda(s, ctx)


STRATEGY = re.compile(r"full|skip|((latest|available|always-last)-m4)?-?(compress-([sr]\d+|anchor))?")


def _known(strategy: str, *numbers: str) -> bool:
    """Whether a cache strategy and counts such as `r4` are ones that we can replay."""
    return STRATEGY.fullmatch(strategy) is not None and all(n[:1].isalpha() and n[1:].isdigit() for n in numbers)


def cached(model: RecurrentLM, strategy: str) -> Replay:
    """Huginn's dynamic cache. Its strategies hard-code two prelude and four core layers; so does this. `sN` keeps N
    slots in turn, `rN` joins N neighbouring ones, `anchor` keeps eight loops and then reuses those of the next."""
    own, (_, _, word) = own_slots(model), strategy.partition("compress-")
    size = int(word[1:]) if word[1:].isdigit() else 0

    def slot(layer: int, depth: int) -> int:
        step = own(layer, depth)
        if not word or step < 2:
            return step
        if word == "anchor":
            return step if step < 34 else 34 + (step - 34) % 4
        return (step - 2) % size + 2 if word[0] == "s" else (step - 2) // size + 2

    return Replay(slot, _recall(strategy))


def _recall(strategy: str) -> Recall:
    latest, available, last = (strategy.startswith(s) for s in ("latest-m4", "available-m4", "always-last-m4"))
    if not (latest or available or last):
        return present

    def recall(cache: dict[int, dict[int, tuple[Tensor, Tensor]]], slot: int) -> list[tuple[int, int]]:
        if len(cache[slot]) == len(cache[0]):
            return present(cache, slot)
        top = max(s for s in cache if s % 4 == slot % 4) if last else slot
        steps = range(top, 1, -4) if slot >= 2 else ()  # the deepest that holds the position
        found = []
        for position in cache[0]:
            own = position in cache[slot] and (available or slot < 2)
            found.append((slot if own else next((s for s in steps if position in cache[s]), 0), position))
        return found

    return recall


def _scheduled(model: RecurrentLM, strategy: str, tokens: Tensor, schedule: Tensor) -> Tensor:
    """Token by token, each at its own depth."""
    ctx = cached(model, strategy)
    rows = [run(model, ctx, tokens[:, i : i + 1], depth)[0] for i, depth in enumerate(schedule.tolist())]
    return torch.cat(rows, dim=1)[0]


def _parallel(model: RecurrentLM, criterion: str, tokens: Tensor, limit: int) -> Iterator[tuple[str, Tensor]]:
    """All positions to full depth; where the criterion would have stopped each."""
    ctx = DenseCausal.over(tokens)
    e = model.prelude(tokens, ctx)
    s, values, exits = torch.zeros_like(e), [], []
    watch = Watch(criterion, s, model.config.vocab_size)
    for _ in range(limit):
        s = model.core(s, e, ctx)
        value, leaves = watch.check(s, model.coda(s, ctx) if watch.kind.reads == "logits" else None)
        values.append(value)
        exits.append(leaves)
    first = torch.stack([*exits[:-1], torch.ones_like(exits[-1])], dim=1).long().argmax(1) + 1
    yield f"exit.{criterion}.parallel.values", torch.stack(values, dim=1)
    yield f"exit.{criterion}.parallel.steps", first


def _until(
    model: RecurrentLM, ctx: Replay, watch: Watch, s: Tensor, e: Tensor, limit: int, due: range
) -> tuple[Tensor, Tensor, int, list[float]]:
    """Loop until the criterion says so at one of the `due` depths: logits, state, depth and the values seen. If the
    last loop is not checked, the logits are those of the last check (as in the official code)."""
    logits, values = None, []
    for depth in range(1, limit + 1):
        s = ctx.loop(model, s, e, depth)
        if depth not in due:
            continue
        seen = model.coda(s, ctx) if watch.kind.reads == "logits" else None
        logits = seen if seen is not None else logits
        value, leaves = watch.check(s, seen)
        values.append(float(value))
        if leaves.all():
            return (model.coda(s, ctx) if seen is None else seen), s, depth, values
    return (model.coda(s, ctx) if logits is None else logits), s, limit, values


def _row(values: list[float], length: int) -> Tensor:
    return torch.tensor(values + [float("nan")] * (length - len(values)))


def _tokenwise(
    model: RecurrentLM, criterion: str, strategy: str, tokens: Tensor, limit: int
) -> Iterator[tuple[str, Tensor]]:
    """One token at a time; an exit really leaves the cache short."""
    logits, steps, values = [], [], []
    for sequence in tokens:
        ctx = cached(model, strategy)
        for token in sequence:
            e = ctx.begin(model, token.view(1, 1))
            s = torch.zeros_like(e)
            watch = Watch(criterion, s, model.config.vocab_size)
            out, _, depth, seen = _until(model, ctx, watch, s, e, limit, range(1, limit + 1))
            logits.append(out[0, 0])
            steps.append(depth)
            values.append(_row(seen, limit))
    prefix, shape = f"exit.{criterion}.tokenwise.{strategy}", tokens.shape
    yield f"{prefix}.logits", torch.stack(logits).view(*shape, -1)
    yield f"{prefix}.steps", torch.tensor(steps).view(shape)
    yield f"{prefix}.values", torch.stack(values).view(*shape, limit)


def _minimal(
    model: RecurrentLM, strategy: str, prompt: Tensor, depth: int, count: int, *, warm: bool
) -> tuple[Tensor, Tensor]:
    """Greedy at uniform depth; `warm` starts each token from the normed last state of the one before."""
    ctx = cached(model, strategy)
    carried: list[Tensor] = []

    def step(tokens: Tensor) -> Tensor:
        start = carried[-1] if warm and carried else torch.zeros(1, 1, model.config.d_model)
        logits, s = run(model, ctx, tokens, depth, start)
        carried.append(model.final_norm(s)[:, -1:])
        return logits[:, -1]

    return greedy(step, prompt, count)


def _speculative(model: RecurrentLM, prompt: Tensor, draft: int, lookahead: int, depth: int, count: int) -> Tensor:
    """Draft some tokens at few loops, check them at many, keep the agreeing ones and one more."""
    ctx, zero = cached(model, "full"), torch.zeros(1, 1, model.config.d_model)
    made = [int(run(model, ctx, prompt, depth, zero)[0][0, -1].argmax())]
    while len(made) < count:
        guesses = [made[-1]]
        for _ in range(lookahead):
            logits = run(model, ctx, torch.tensor([guesses[-1:]]), draft, zero)[0]
            guesses.append(int(logits[0, -1].argmax()))
        ctx.forget(lookahead)
        truth = run(model, ctx, torch.tensor([guesses[:-1]]), depth, zero)[0][0].argmax(-1).tolist()
        agreed = next((i for i in range(lookahead) if truth[i] != guesses[i + 1]), lookahead)
        made += truth[: agreed + 1]
        ctx.forget(max(lookahead - agreed - 1, 0))
    return torch.tensor(made)


def _due(variant: str, limit: int) -> range | None:
    """The depths at which a variant of adaptive generation checks; None for a variant we do not know."""
    every = re.fullmatch(r"min(\d+)every(\d+)", variant)
    if every:
        return range(int(every[1]) + 1, limit + 1, int(every[2]))
    return range(1, limit + 1) if variant in ("default", "noprefillexit", "warmstart") else None


def _adaptive(
    model: RecurrentLM, criterion: str, strategy: str, variant: str, prompt: Tensor, count: int, limit: int
) -> Iterator[tuple[str, Tensor]]:
    """Greedy with exits; the prompt leaves as one."""
    checks = _due(variant, limit)
    if checks is None:
        return
    ctx, zero = cached(model, strategy), torch.zeros(1, 1, model.config.d_model)
    tokens, start = prompt, zero
    rows: dict[str, list[Tensor]] = {kind: [] for kind in ("tokens", "steps", "values", "logits")}
    for index in range(count):
        e = ctx.begin(model, tokens)
        s = start.expand_as(e)
        due = range(0) if variant == "noprefillexit" and not index else checks
        watch = Watch(criterion, s, model.config.vocab_size, whole=True)
        logits, s, depth, seen = _until(model, ctx, watch, s, e, limit, due)
        tokens = logits[:, -1].argmax(-1, keepdim=True)
        start = s[:, -1:] if variant == "warmstart" else zero
        made = (tokens[0, 0], torch.tensor(depth), _row(seen, limit), logits[0, -1])
        for kind, value in zip(rows, made, strict=True):
            rows[kind].append(value)
    yield from ((f"gen.adaptive.{criterion}.{strategy}.{variant}.{kind}", torch.stack(v)) for kind, v in rows.items())
