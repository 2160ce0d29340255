"""Section 4, learning: a PonderNet-style halting head (arXiv 2107.05407) on the frozen backbone.

After pass i a token halts with probability λ_i = sigmoid(w_i·s_i + b_i); p_i = λ_i Π_{j<i} (1 - λ_j). The head is
trained to minimise the expected loss Σ p_i nll_i plus β KL(p ‖ truncated geometric prior). Features and capacity are
those of A2 (one linear map per depth on standardised states), so that only the objective differs. At test time a token
leaves when λ_i exceeds a threshold; swept like any signal, in replay and live, through the signal `probe` with 1 - λ.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from loopwise.exit.fitted import probe_value
from loopwise.exit.look import Look, Probe
from loopwise.measure.allocate import parse_plans
from loopwise.measure.trace import Trace, passes, trace
from loopwise.study.allocation import run, upto
from loopwise.study.subject import Subject

VERSION = 1
BETAS = (0.001, 0.01, 0.1)
CHOSEN = 0.01  # the paper's
STEPS, RATE = 300, 0.03


class Head(NamedTuple):
    """One linear map per depth on standardised states."""

    weight: Float[Tensor, "depths d"]
    bias: Float[Tensor, "depths"]
    mean: Float[Tensor, "d"]
    scale: Float[Tensor, "d"]

    def probe(self) -> Probe:
        """The head as the signal `probe`: the value is 1 - λ, the probability of going on."""
        return Probe(weight=-self.weight, bias=-self.bias, mean=self.mean, scale=self.scale)


def halting(subject: Subject) -> dict[str, Any]:
    """Heads for every β, what they do on their own, and the frontier of the paper's β; `reason` if there is no text."""
    if subject.labelled is None or subject.training is None:
        return {"policies": [], "reason": "there is no text outside the evaluated documents to train a head on"}
    states, depth = subject.labelled.states, subject.reference
    nll = trace(subject.model, subject.training, max_depth=depth, signals=()).columns["nll"]
    losses = torch.from_numpy(np.ascontiguousarray(nll)).float()
    natural, heads = {}, {}
    test = upto(subject.trace, depth)
    for beta in BETAS:
        subject.tell(f"{subject.name}: halting head, beta {beta:g}", 0.0)
        heads[beta] = train_head(states, losses, beta=beta, prior=2 / depth, seed=subject.settings.seed)
        going = going_on(subject, heads[beta], depth)
        natural[f"{beta:g}"] = on_its_own(torch.from_numpy(going), torch.from_numpy(test.columns["nll"]).float())
    found = with_signal(test, going_on(subject, heads[CHOSEN], depth))
    table = run(subject, parse_plans("probe"), found, heads[CHOSEN].probe())
    for row in table["policies"]:
        row.update(name="ponder", label="PonderNet head", signal="ponder")
    keep = (
        "reference_depth",
        "reference_loss",
        "tolerance",
        "tokens",
        "ci_over",
        "num_groups",
        "policies",
        "best_fixed",
    )
    return {name: table[name] for name in keep} | {
        "beta": CHOSEN, "prior_mean": depth / 2, "natural": natural, "training_tokens": subject.training.num_tokens,
    }  # fmt: skip


def halt_probabilities(going: Float[Tensor, "depths tokens"]) -> Float[Tensor, "all_depths tokens"]:
    """p_1..p_D from 1 - λ_1..1 - λ_{D-1}; at the last depth whatever is left halts."""
    survive = torch.cat([torch.ones_like(going[:1]), going.cumprod(0)])
    return survive * (1 - torch.cat([going, torch.zeros_like(going[:1])]))


def geometric(rate: float, depths: int) -> Float[Tensor, "depths"]:
    """Truncated geometric distribution over 1..depths."""
    p = rate * (1 - rate) ** torch.arange(depths, dtype=torch.float32)
    return p / p.sum()


def train_head(
    states: Float[Tensor, "depths tokens d"],
    nll: Float[Tensor, "all_depths tokens"],
    *,
    beta: float,
    prior: float,
    seed: int,
) -> Head:
    """Full-batch Adam from a head that halts with the prior's rate everywhere."""
    flat = states.flatten(0, 1)
    mean, scale = flat.mean(0), flat.std(0).clamp_min(1e-6)
    x = (states - mean) / scale
    wanted = geometric(prior, len(nll))
    generator = torch.Generator().manual_seed(seed)
    weight = (0.01 * torch.randn(len(states), states.shape[-1], generator=generator)).requires_grad_()
    bias = torch.full((len(states),), float(np.log(prior / (1 - prior)))).requires_grad_()
    optimizer = torch.optim.Adam([weight, bias], lr=RATE)
    for _ in range(STEPS):
        p = halt_probabilities(torch.sigmoid(-((x * weight[:, None]).sum(-1) + bias[:, None])))
        away = (p * ((p + 1e-9).log() - wanted.log()[:, None])).sum(0).mean()
        loss = (p * nll).sum(0).mean() + beta * away
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Head(weight.detach(), bias.detach(), mean, scale)


@torch.inference_mode()
def going_on(subject: Subject, head: Head, depth: int) -> Float[np.ndarray, "depths tokens"]:
    """1 - λ of every evaluated token after passes 1..depth - 1."""
    found = np.empty((depth - 1, subject.windows.num_tokens), dtype=np.float32)
    probe = head.probe()
    for batch in subject.windows.batches(4096):
        for i, state, *_ in passes(subject.model, batch.tokens, depth - 1):
            rows = state[batch.valid]
            found[i - 1, batch.rows] = probe_value(Look(rows, rows), i, probe).numpy()
    return found


def on_its_own(going: Float[Tensor, "depths tokens"], nll: Float[Tensor, "all_depths tokens"]) -> dict[str, Any]:
    """What the head does without a threshold: expected depth and loss under p, share halting at each depth."""
    p = halt_probabilities(going)
    scale = torch.arange(1, len(p) + 1, dtype=torch.float32)[:, None]
    depth = (p * scale).sum(0)
    return {
        "mean_depth": float(depth.mean()),
        "spread": float(depth.std()),
        "loss": float((p * nll).sum(0).mean()),
        "loss_at_last": float(nll[-1].mean()),
        "share": p.mean(1).tolist(),
    }


def with_signal(found: Trace, going: Float[np.ndarray, "depths tokens"]) -> Trace:
    """A trace whose `probe` column is 1 - λ (at the last depth nobody asks)."""
    column = np.concatenate([going, np.full_like(going[:1], np.nan)])
    return Trace(columns={**found.columns, "probe": column}, index=found.index, max_depth=found.max_depth,
                 digest=found.digest)  # fmt: skip
