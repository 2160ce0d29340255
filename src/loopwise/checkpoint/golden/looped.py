"""Stored cases of Parcae, looped_nanochat and the retrofitted models: states, cached decodes, greedy generation."""

import re
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from loopwise.checkpoint.golden.replay import Replay, Slot, greedy, own_slots, pieces, run
from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM

Stored = Mapping[str, Tensor]
FULL = re.compile(r"full\.r\d+")  # names of cases that we know how to compute; others are left for the caller to refuse
BUDGET = re.compile(r"kv[1-9]\d*(\.warmstart)?\.r\d+")
COMPRESSED = re.compile(r"decode\.(full|compress-(s\d+|first\d+|last\d+|stride\d+|boundaries))\.r\d+\.logits")


def depths(names: Mapping[str, Tensor], prefix: str) -> list[int]:
    """The depths N of cases `prefix.rN`."""
    found = [n.removeprefix(f"{prefix}.r") for n in names if n.startswith(f"{prefix}.r")]
    return sorted(int(n) for n in found if n.isdigit())


def states(
    model: RecurrentLM, tokens: Tensor, starts: Mapping[str, Tensor | None], names: tuple[str, str], expected: Stored
) -> Iterator[tuple[str, Tensor]]:
    """Logits and states at every stored depth from several starting states (None: the prelude's output); `names` are
    the words for logits and state in case names."""
    for kind, start in starts.items():
        for depth in depths(expected, f"{kind}.{names[0]}"):
            ctx = DenseCausal.over(tokens)
            e = model.prelude(tokens, ctx)
            s = model.recurrence(e if start is None else start, e, ctx, depth)
            yield f"{kind}.{names[0]}.r{depth}", model.coda(s, ctx)
            yield f"{kind}.{names[1]}.r{depth}", s


def generations(
    expected: Stored, prompt: Tensor, make: Callable[[str], Callable[[Tensor], Tensor]], known: re.Pattern[str] = FULL
) -> Iterator[tuple[str, Tensor]]:
    """Greedy runs: `make(name)` gives the step function of the case `gen.name`, if the name is `known`."""
    for name in [n.removesuffix(".tokens") for n in expected if n.startswith("gen.") and n.endswith(".tokens")]:
        if not known.fullmatch(name.removeprefix("gen.")):
            continue
        made = greedy(make(name.removeprefix("gen.")), prompt, expected[f"{name}.tokens"].shape[-1])
        for kind, value in zip(("tokens", "logits"), made, strict=True):
            yield f"{name}.{kind}", value[0]


def last_row(model: RecurrentLM, ctx: Replay, depth: int) -> Callable[[Tensor], Tensor]:
    """Step function of a plain cached greedy run."""
    return lambda tokens: run(model, ctx, tokens, depth)[0][:, -1]


def retrofit(model: RecurrentLM, inputs: Stored, expected: Stored) -> Iterator[tuple[str, Tensor]]:
    """The converted checkpoint's own cases."""
    starts = {"zero": torch.zeros_like(inputs["init_state"]), "given": inputs["init_state"]}
    yield from states(model, inputs["input_ids"], starts, ("logits", "state_raw"), expected)
    yield from generations(
        expected,
        inputs["prompt_ids"],
        lambda name: last_row(model, Replay(own_slots(model)), int(name.rsplit(".r", 1)[1])),
    )


def parcae(model: RecurrentLM, inputs: Stored, expected: Stored) -> Iterator[tuple[str, Tensor]]:
    """Parcae, with its cache compressions."""
    tokens = inputs["input_ids"]
    yield "prelude_out", model.prelude(tokens, DenseCausal.over(tokens))
    starts = {"zero": torch.zeros_like(inputs["init_state"]), "given": inputs["init_state"]}
    yield from states(model, tokens, starts, ("logits", "state"), expected)
    for name in filter(COMPRESSED.fullmatch, expected):
        _, strategy, depth, _ = name.split(".")
        slot = _compressed(model, strategy, int(depth[1:]))
        yield name, pieces(model, Replay(slot), tokens, _one_by_one(tokens, expected[name]), int(depth[1:]))
    yield from generations(
        expected,
        inputs["prompt_ids"],
        lambda name: last_row(model, Replay(own_slots(model)), int(name.rsplit(".r", 1)[1])),
    )


def _compressed(model: RecurrentLM, strategy: str, total: int) -> Slot:
    """Which loops of `total` share keys and values: the 0-based loop a loop writes as."""
    own, word = own_slots(model), strategy.removeprefix("compress-")
    number = int("".join(c for c in word if c.isdigit()) or 0)
    rules: dict[str, Callable[[int], int]] = {
        "full": lambda i: i,
        "first": lambda i: min(i, number),
        "last": lambda i: max(i - (total - number) + 1, 0),
        "stride": lambda i: i // max(number, 1),
        "boundaries": lambda i: int(i == total - 1),
        "s": lambda i: i % max(number, 1),
    }
    rule = rules[word.rstrip("0123456789")]
    return lambda layer, depth: own(layer, rule(depth - 1) + 1 if depth else 0)


def nanochat(model: RecurrentLM, inputs: Stored, expected: Stored) -> Iterator[tuple[str, Tensor]]:
    """looped_nanochat: a cache of `budget` loops used in rotation, optional warm starts."""
    tokens = inputs["input_ids"]
    yield "prelude_out", model.prelude(tokens, DenseCausal.over(tokens))
    yield from states(model, tokens, {"default": None, "given": inputs["init_state"]}, ("logits", "state"), expected)
    for name in (n for n in expected if BUDGET.fullmatch(n.removeprefix("decode.").removesuffix(".logits"))):
        _, budget, depth, _ = name.split(".")
        sizes = _one_by_one(tokens, expected[name])
        yield name, pieces(model, _budgeted(model, int(budget[2:])), tokens, sizes, int(depth[1:]))

    def make(name: str) -> Callable[[Tensor], Tensor]:
        budget, *warm, depth = name.split(".")
        ctx, carried = _budgeted(model, int(budget[2:])), []

        def step(tokens: Tensor) -> Tensor:
            logits, s = run(model, ctx, tokens, int(depth[1:]), carried[-1] if warm and carried else None)
            carried.append(s[:, -1:])
            return logits[:, -1]

        return step

    yield from generations(expected, inputs["prompt_ids"], make, BUDGET)


def _one_by_one(tokens: Tensor, stored: Tensor) -> list[int]:
    """Sizes of the pieces of a cached run: a prompt, then single tokens, whose logits are stored."""
    return [tokens.shape[1] - stored.shape[1]] + [1] * stored.shape[1]


def _budgeted(model: RecurrentLM, budget: int) -> Replay:
    own = own_slots(model)
    return Replay(lambda layer, depth: own(layer, (depth - 1) % budget + 1 if depth else 0), windowed_chunks=True)
