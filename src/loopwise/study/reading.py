"""Section 5: replay against live decoding by KV layout, drift along a continuation, and text by tier.

*Gap.* The same policy, the same tokens: mean loss live less mean loss in replay, paired token by token. Uniform depth
is included, so that a layout's own error is told from what early exits add to it. `last_exited` reads the same planes
as `depth_indexed` and is not decoded again.
*Drift.* The full-depth model continues a prompt greedily; each policy then decodes those same tokens, and the KL from
the full-depth next-token distribution to the policy's is followed along the continuation. If exits corrupted the
context, it would grow.
*Text.* Every tier continues the same prompts with the same random numbers; a judge reads the result in `judge.py`.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch

from loopwise.exit.policy import Policy
from loopwise.exit.signals import kl
from loopwise.generate import Decoder, generate
from loopwise.measure.allocate import spread
from loopwise.measure.live import live
from loopwise.measure.replay import replay
from loopwise.measure.stats import draw_weights, paired_interval
from loopwise.measure.windows import groups
from loopwise.model.kv_layout import LAYOUTS
from loopwise.sampling import SamplingParams
from loopwise.study.book import matched
from loopwise.study.subject import Subject

VERSION = 2
PROMPT = 32  # tokens, or half of a shorter context
BIN = 8  # positions
Json = dict[str, Any]


class Tier(NamedTuple):
    """A named policy."""

    name: str
    policy: Policy


def tiers(subject: Subject, allocation: Json) -> list[Tier]:
    """The checkpoint's calibrated tiers if it has any; and in any case fixed depths, and A1 and the free signal where
    they matched live (or in replay)."""
    found = {f"depth {d}": f"depth={d}" for d in {1, 2, allocation["best_fixed"]["depth"], subject.reference}}
    for signal, name in (("kl", "A1 kl"), ("rel_change", "rel_change")):
        row = matched(allocation, signal, "live") or matched(allocation, signal, "replay")
        if row:
            found[name] = row["policy"]
    for tier in (subject.checkpoint.tiers or {}).get("tiers", []):
        found[f"tier {tier['name']}"] = tier["policy"]
    order = sorted(
        found, key=lambda name: (name.split()[0] != "depth", int(name.split()[1]) if name[-1].isdigit() else 0)
    )
    return [Tier(name, Policy.parse(found[name])) for name in order]


def reading(subject: Subject, allocation: Json) -> Json:
    """Gap by layout, drift, and the texts of every tier."""
    listed = tiers(subject, allocation)
    return {
        "layouts": layouts(subject, [t for t in listed if t.policy.signal or t.policy.max_depth == subject.reference]),
        "drift": drift(subject, [t for t in listed if t.policy.max_depth != subject.reference or t.policy.signal]),
        "texts": texts(subject, listed),
    }


def layouts(subject: Subject, listed: list[Tier]) -> list[Json]:
    """Loss live less loss in replay for every policy and KV layout."""
    chosen = spread(subject.windows, subject.settings.live_tokens // 3)
    part = subject.windows.take(chosen)
    found = subject.trace.rows(np.isin(subject.trace.index["window"], chosen))
    group, unit = groups(part.index)
    weights = draw_weights(int(group.max()) + 1, draws=subject.settings.draws, seed=subject.settings.seed)
    rows = []
    for tier in listed:
        base = replay(found, tier.policy)
        for name, layout in LAYOUTS.items():
            if name == "last_exited" or (tier.policy.signal is None and layout.exact):
                continue  # uniform depth on an exact layout: live is replay (tested)
            what = f"{subject.name}: {tier.name}, {name}"
            subject.tell(what, 0.0)
            done = live(subject.model, part, tier.policy, layout=name, probe=subject.probe)
            gap = paired_interval(done.nll, base.nll, group, weights)
            rows.append({"policy": tier.name, "rule": str(tier.policy), "layout": name, "gap": [gap.value, *gap.ends],
                         "depth": float(done.depth.mean()), "replay_depth": float(base.depth.mean()),
                         "tokens": part.num_tokens, "ci_over": unit})  # fmt: skip
    return rows


def _prompts(subject: Subject) -> list[list[int]]:
    """The beginnings of windows spread over the text."""
    size = _prompt(subject)
    long = [i for i, ids in enumerate(subject.windows.ids) if len(ids) > size]
    picked = np.unique(np.linspace(0, len(long) - 1, subject.settings.prompts).round().astype(int)) if long else []
    return [subject.windows.ids[long[i]][:size].tolist() for i in picked]


def _prompt(subject: Subject) -> int:
    return min(PROMPT, max(1, subject.checkpoint.config.context // 2))


def _length(subject: Subject) -> int:
    return max(1, min(subject.settings.new_tokens, subject.checkpoint.config.context - _prompt(subject)))


def _decoder(subject: Subject, policy: Policy, length: int) -> Decoder:
    """A decoder whose prompt runs at the training mean, as the engine's canonical prefill does."""
    prefill = Policy.parse(f"depth={subject.reference}")
    bound = dataclasses.replace(policy, max_depth=policy.max_depth or subject.reference)
    return Decoder(subject.model, bound, length=length, prefill=prefill, probe=subject.probe)


@torch.no_grad()
def drift(subject: Subject, listed: list[Tier]) -> Json:
    """Mean KL(full ‖ policy), in nats, by position in bins of `BIN`, and the share of equal first choices."""
    count, found = _length(subject), {t.name: [] for t in listed}
    full = Policy.parse(f"depth={subject.reference}")
    for number, prompt in enumerate(_prompts(subject)):
        subject.tell(f"{subject.name}: drift", number / subject.settings.prompts)
        reference = _decoder(subject, full, len(prompt) + count)
        logits, tokens, rows = reference.prefill(prompt), [], []
        for _ in range(count):
            tokens.append(int(logits.argmax()))
            logits = reference.step(tokens[-1])[0]
            rows.append(logits.log_softmax(-1))
        whole = torch.stack(rows)
        for tier in listed:
            decoder = _decoder(subject, tier.policy, len(prompt) + count)
            decoder.prefill(prompt)
            steps = [decoder.step(token) for token in tokens]
            own = torch.stack([s[0] for s in steps]).log_softmax(-1)
            same = (own.argmax(-1) == whole.argmax(-1)).float()
            found[tier.name].append(torch.stack([kl(whole, own), same, torch.tensor([float(s[1]) for s in steps])]))
    return {"prompts": len(_prompts(subject)), "new_tokens": count, "bin": BIN,
            "policies": [_drifted(name, torch.stack(runs)) for name, runs in found.items() if runs]}  # fmt: skip


def _drifted(name: str, runs: torch.Tensor) -> Json:
    """`runs` is `[prompts, (kl, same, depth), positions]`."""
    bins = [slice(i, i + BIN) for i in range(0, runs.shape[-1], BIN)]
    by_bin = [runs[:, :, b].mean((0, 2)).tolist() for b in bins]
    half = runs.shape[-1] // 2
    change = (runs[:, 0, half:].mean(1) - runs[:, 0, :half].mean(1)).numpy()
    rng = np.random.default_rng(0)
    drawn = change[rng.integers(0, len(change), (1000, len(change)))].mean(1)
    return {
        "name": name,
        "position": [b.start + BIN / 2 for b in bins],
        "kl": [row[0] for row in by_bin],
        "agreement": [row[1] for row in by_bin],
        "depth": float(runs[:, 2].mean()),
        "late_less_early": [float(change.mean()), *np.percentile(drawn, [2.5, 97.5]).tolist()],
    }


def texts(subject: Subject, listed: list[Tier]) -> list[Json]:
    """Sampled continuations of every tier, with repetition and agreement with the full-depth tier's text."""
    count, rows, full = _length(subject), [], []
    prompts = _prompts(subject)
    if not prompts:
        return []
    reference = next(t for t in listed if t.policy.signal is None and t.policy.max_depth == subject.reference)
    for tier in [reference, *(t for t in listed if t is not reference)]:
        made, depth = [], []
        for number, prompt in enumerate(prompts):
            subject.tell(f"{subject.name}: text of {tier.name}", number / len(prompts))
            params = SamplingParams(temperature=0.8, top_p=0.95, seed=number, max_tokens=count, ignore_eos=True)
            out = generate(_decoder(subject, tier.policy, len(prompt) + count), prompt, params)
            made.append([t.id for t in out.tokens])
            depth += [t.depth for t in out.tokens[1:]]
        full = full or made
        rows.append({
            "name": tier.name,
            "rule": str(tier.policy),
            "mean_depth": float(np.mean(depth)) if depth else None,
            "repetition": float(np.mean([repetition(ids) for ids in made])),
            "agreement": float(np.mean([np.mean(np.equal(a, b)) for a, b in zip(made, full, strict=True)])),
            "prompts": [subject.tokenizer.decode(p) for p in prompts],
            "texts": [subject.tokenizer.decode(ids) for ids in made],
            "tokens": sum(map(len, made)),
        })  # fmt: skip
    return rows


def repetition(ids: list[int], size: int = 4) -> float:
    """Share of the n-grams of a text that occurred before in it."""
    grams = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
