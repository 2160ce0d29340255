"""The policies that the comparison of exit signals sweeps: a family is a list of policies from deep to shallow."""

import dataclasses

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from loopwise.exit.policy import Policy
from loopwise.exit.signals import SIGNALS, kl
from loopwise.measure.replay import Outcome, replay, threshold_grid
from loopwise.measure.trace import Trace, passes
from loopwise.measure.windows import Windows
from loopwise.model.recurrent import RecurrentLM

GRID = 128
BATCH_TOKENS = 2048
SIGNAL_NAMES = tuple(SIGNALS)
# Schedules of the shipped signal and of A1: where a check is made, and when its answer is used.
SCHEDULES = {
    "rel_change from 3": "rel_change<0,min=3",
    "rel_change from 4": "rel_change<0,min=4",
    "rel_change every 2": "rel_change<0,every=2",
    "rel_change every 3": "rel_change<0,every=3",
    "rel_change lag 1": "rel_change<0,lag=1",
    "rel_change twice": "rel_change<0,patience=2",
    "kl every 2": "kl<0,every=2",
    "kl twice": "kl<0,patience=2",
}
BY_DEPTH = "rel_change by depth"
PREDICTED = "rel_change predicted"
CANDIDATES = "kl of candidates"
NUM_CANDIDATES = 64
# Decoded too, not only replayed.
LIVE = (*SIGNAL_NAMES, BY_DEPTH, "rel_change from 3", "rel_change every 2", "rel_change lag 1")

Family = list[tuple[float, Policy]]


def uniform(found: Trace, last: int) -> Family:
    """A0: uniform depths, deep to shallow."""
    return [(float(d), Policy.parse(f"depth={d}")) for d in range(last, 0, -1)]


def swept(found: Trace, template: Policy, last: int, *, size: int = GRID) -> Family:
    """One threshold for all depths, on quantiles of the signal."""
    bound = dataclasses.replace(template, max_depth=last).bind(found.max_depth)
    signal = SIGNALS[bound.signal or ""]
    grid = threshold_grid(found, signal.name, size=size, last=last, first=max(bound.min_depth, signal.first_depth))
    return [(t, dataclasses.replace(bound, threshold=t)) for t in grid]


def by_depth(found: Trace, signal: str, last: int, *, size: int = GRID) -> Family:
    """A threshold for each depth: at every check the same share of all tokens lies below it."""
    first, family = SIGNALS[signal].first_depth, []
    columns = [found.at(signal, d) for d in range(first, last)]
    for share in np.linspace(0, 1, size):
        limits = [float(f"{np.quantile(c, share) * (1.01 if share == 1 else 1):.4g}") for c in columns]
        family.append(
            (float(share), Policy(signal=signal, threshold=limits[0], later=tuple(limits[1:]), max_depth=last))
        )
    return family


def predicted(found: Trace, threshold: float, last: int) -> Outcome:
    """Exit where two early checks say that the relative change *will* fall below the threshold, if it goes on shrinking
    as it did from depth 2 to depth 3; no further checks. Replay only: no rule of the engine does this."""
    two, three = (found.at("rel_change", d).astype(np.float64) for d in (2, 3))
    rate = np.clip(three / np.maximum(two, 1e-12), 1e-6, 0.98)
    more = np.ceil(np.log(np.maximum(threshold, 1e-12) / np.maximum(three, 1e-12)) / np.log(rate))
    depth = np.where(two < threshold, 2, np.clip(3 + np.maximum(more, 0), 3, last)).astype(np.int64)
    return at_depths(found, depth, last)._replace(checks=np.minimum(depth - 1, 2))


def below(found: Trace, column: str, threshold: float, last: int) -> Outcome:
    """Exit at the first depth from 2 on at which a column of the trace that is no signal is below the threshold."""
    under = found.columns[column][1 : last - 1] < threshold
    depth = np.where(under.any(0), under.argmax(0) + 2, last).astype(np.int64)
    return at_depths(found, depth, last)


def at_depths(found: Trace, depth: np.ndarray, last: int) -> Outcome:
    """What tokens lose if they leave at these depths."""
    token = np.arange(found.num_tokens)
    return replay(found, Policy.parse(f"depth={last}"))._replace(
        nll=found.columns["nll"][depth - 1, token], top1=found.columns["top1"][depth - 1, token], depth=depth
    )


@torch.inference_mode()
def candidate_kl(model: RecurrentLM, windows: Windows, last: int) -> Float[np.ndarray, "depth tokens"]:
    """KL between successive readouts over the `NUM_CANDIDATES` likeliest tokens after pass 1 alone, renormalised: the
    head is read in 64 rows, but the coda has to run at every check."""
    found = np.full((last, windows.num_tokens), np.nan, dtype=np.float32)
    for batch in windows.batches(BATCH_TOKENS, model.embedding.weight.device):
        chosen: Tensor | None = None
        before: Tensor | None = None
        for depth, state, _, _, ctx in passes(model, batch.tokens, last):
            logits = model.logits(model.hidden(state, ctx)[batch.valid])
            if chosen is None:
                chosen = logits.topk(min(NUM_CANDIDATES, logits.shape[-1]), dim=-1).indices
            now = logits.gather(1, chosen).log_softmax(-1)
            if before is not None:
                found[depth - 1, batch.rows] = kl(now, before).cpu().numpy()
            before = now
    return found


def families(found: Trace, last: int) -> dict[str, Family]:
    """Every family that the trace can replay, by name; `predicted` is apart."""
    table: dict[str, Family] = {"A0": uniform(found, last)}
    for name in SIGNAL_NAMES:
        if found.has(name):
            table[name] = swept(found, Policy.parse(f"{name}<0"), last)
    table[BY_DEPTH] = by_depth(found, "rel_change", last)
    table |= {name: swept(found, Policy.parse(text), last) for name, text in SCHEDULES.items()}
    return table
