"""Ouro's stored cases: states and gates of every loop, exits by accumulated gate probability, padding, generation."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from loopwise.checkpoint.golden.replay import Replay, greedy, own_slots
from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM

Stored = Mapping[str, Tensor]


def cases(
    model: RecurrentLM, foreign: Mapping[str, Any], inputs: Stored, expected: Stored
) -> Iterator[tuple[str, Tensor]]:
    """Every stored case, computed with our model: (name, value)."""
    tokens, steps = inputs["input_ids"], foreign["total_ut_steps"]
    longer = {int(n[0][2:]) for n in (name.split(".") for name in expected) if re.fullmatch(r"ut\d+", n[0])}
    states = _states(model, tokens, max({steps, *longer}))
    gates = torch.stack([model.exit_gate(s).squeeze(-1) for s in states[:steps]], dim=-1)
    yield "gate_prob", gates.sigmoid()
    yield "exit_pdf", exit_pdf(gates)
    yield "exit_cdf", exit_pdf(gates).cumsum(-1)
    from_embeds = _states(model, tokens, steps, inputs["inputs_embeds"])
    for i, state in enumerate(states):
        logits = model.head(state)
        for total in longer:  # the same weights, with another total_ut_steps
            yield f"ut{total}.hidden.ut{i + 1}", state
            yield f"ut{total}.logits.ut{i + 1}", logits
        if i < steps:
            yield f"hidden.ut{i + 1}", states[i]
            yield f"logits.ut{i + 1}", logits
            yield f"gate_logit.ut{i + 1}", gates[..., i]
            yield f"embeds.logits.ut{i + 1}", model.head(from_embeds[i])
    weighted = sum((model.head(s) * p.unsqueeze(-1) for s, p in zip(states, exit_pdf(gates).unbind(-1), strict=False)))
    assert isinstance(weighted, Tensor)
    yield "logits.weighted", weighted
    yield "labels.logits", weighted
    yield "labels.loss", F.cross_entropy(weighted[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).view(1)
    yield "logits.default", model.head(_default(states[:steps], gates, foreign))
    for name in expected:
        if re.fullmatch(r"exit_step\.thr\d*\.?\d+", name):
            state, step = chosen(states[:steps], gates, float(name.removeprefix("exit_step.thr")))
            yield name, step
            yield f"logits.{name.removeprefix('exit_step.')}", model.head(state)
    yield from _padded(model, inputs, steps, expected)
    yield from _generated(model, foreign, inputs["prompt_ids"], expected)


def _default(states: list[Tensor], gates: Tensor, foreign: Mapping[str, Any]) -> Tensor:
    """What a plain call reads: a fixed (0-based) step goes before a threshold, and without either the last."""
    step, threshold = foreign.get("early_exit_step"), foreign.get("early_exit_threshold")
    if step is not None and 0 <= step < len(states):
        return states[step]
    return states[-1] if threshold is None else chosen(states, gates, threshold)[0]


def exit_pdf(gates: Tensor) -> Tensor:
    """Probability of leaving after each loop, from gate logits `[..., loops]`: the last loop takes what remains."""
    stay = (1 - gates.sigmoid()).cumprod(-1)
    before = torch.cat([torch.ones_like(stay[..., :1]), stay[..., :-1]], dim=-1)
    leave = gates.sigmoid() * before
    return torch.cat([leave[..., :-1], before[..., -1:]], dim=-1)


def chosen(states: list[Tensor], gates: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """State of the first loop whose accumulated probability reaches the threshold (else the last), and its 0-based
    number."""
    reached = exit_pdf(gates).cumsum(-1) >= threshold
    reached[..., -1] = True
    step = reached.long().argmax(-1)
    which = step[..., None, None].expand(*step.shape, 1, states[0].shape[-1])
    return torch.stack(states, dim=-2).gather(-2, which).squeeze(-2), step


def _states(model: RecurrentLM, tokens: Tensor, count: int, start: Tensor | None = None) -> list[Tensor]:
    ctx = DenseCausal.over(tokens)
    e = model.prelude(tokens, ctx)
    return _loops(model, ctx, e if start is None else start, e, count)


def _loops(model: RecurrentLM, ctx: Any, s: Tensor, e: Tensor, count: int) -> list[Tensor]:
    found = []
    for depth in range(1, count + 1):
        ctx.depth = depth
        s = model.core(s, e, ctx)
        found.append(s)
    return found


def _padded(model: RecurrentLM, inputs: Stored, steps: int, expected: Stored) -> Iterator[tuple[str, Tensor]]:
    """Left padding. Rows that are padding are NaN in the stored logits: not to be compared."""
    tokens, valid = inputs["padded_input_ids"], inputs["padded_attention_mask"].bool()
    yield "padded.logits", model(tokens, steps, valid=valid).masked_fill(~valid.unsqueeze(-1), float("nan"))
    if "gen.padded.tokens" not in expected:
        return
    seen = {"tokens": tokens[:, :0], "valid": valid[:, :0]}

    def step(new: Tensor) -> Tensor:
        fresh = valid if not seen["tokens"].shape[1] else torch.ones_like(new, dtype=torch.bool)
        seen["tokens"], seen["valid"] = torch.cat([seen["tokens"], new], 1), torch.cat([seen["valid"], fresh], 1)
        return model(seen["tokens"], steps, valid=seen["valid"])[:, -1]

    made = greedy(step, tokens, expected["gen.padded.tokens"].shape[1])
    yield from ((f"gen.padded.{kind}", value) for kind, value in zip(("tokens", "logits"), made, strict=True))


def _generated(
    model: RecurrentLM, foreign: Mapping[str, Any], prompt: Tensor, expected: Stored
) -> Iterator[tuple[str, Tensor]]:
    """Greedy with a cache of every loop; an exit only chooses which state the head reads."""
    for name in [n.removesuffix(".tokens") for n in expected if n.startswith("gen.") and n.endswith(".tokens")]:
        way = re.fullmatch(r"gen\.(full|thr(\d*\.?\d+)|exitstep(\d+))", name)
        if way is None:
            continue
        ctx = Replay(own_slots(model))
        asked = (
            {"early_exit_step": int(way[3])} if way[3] else {"early_exit_threshold": float(way[2])} if way[2] else {}
        )

        def step(tokens: Tensor, ctx: Replay = ctx, how: Mapping[str, Any] = {**foreign, **asked}) -> Tensor:
            e = ctx.begin(model, tokens)
            states = _loops(model, ctx, e, e, foreign["total_ut_steps"])
            gates = torch.stack([model.exit_gate(s).squeeze(-1) for s in states], dim=-1)
            return model.head(_default(states, gates, how))[:, -1]

        made = greedy(step, prompt, expected[f"{name}.tokens"].shape[1])
        yield from ((f"{name}.{kind}", value) for kind, value in zip(("tokens", "logits"), made, strict=True))
