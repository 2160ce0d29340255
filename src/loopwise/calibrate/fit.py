"""Fitting what some exit signals read: factors of the readout's Fisher information, a regression of log KL, and A2.

Where reading ends and learning begins: the factors say how the model's *own* readout reacts to a change of state; there
is nothing to be right or wrong about, only an average over text. `distil` is a regression, but of a quantity that the
model defines (its own KL), and A1's rule still decides. A2 learns the decision itself.

KL(p_i ‖ p_{i-1}) ≈ ½ Δᵀ F Δ with F = E[g gᵀ], g the gradient of log p(y) with respect to the state and y drawn from p
(the expected Fisher information). Gradients are taken with respect to the state at unit root mean square, as the
signal sees it, through coda and head (`fisher`), or through the last norm and the head alone, as if there were no coda
(`fisher_raw`). A gradient also holds what a state does to later positions through the coda's attention.
`sketch` needs no text at all: a random projection of the head's rows, centred (Johnson and Lindenstrauss).
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from loopwise.config import InputError
from loopwise.exit.fitted import distil_terms
from loopwise.exit.look import RANK, TINY, Look, Probe
from loopwise.exit.readout import kl
from loopwise.measure.probe import MIN_TOKENS, fit, label
from loopwise.measure.trace import check_depth, passes
from loopwise.measure.windows import Windows
from loopwise.model.recurrent import RecurrentLM

BATCH_TOKENS = 1024
RIDGE = 1e-3
FLOOR = 1e-9  # nats: below it a KL is arithmetic noise
Progress = Callable[[str, float], None]


def fit_probe(model: RecurrentLM, windows: Windows, depth: int, *, progress: Progress) -> Probe:
    """Every fitted tensor, for passes up to `depth`. Text must not be evaluated later. Fewer than `MIN_TOKENS` tokens
    raise `InputError`."""
    check_depth("reference-depth", depth, model)
    if windows.num_tokens < MIN_TOKENS:
        raise InputError(f"the fit has {windows.num_tokens} tokens: give at least {MIN_TOKENS} with --fit-text")
    progress("fitting the A2 probe", 0.0)
    found = fit(label(model, windows, depth))
    progress("fitting the Fisher factors", 0.0)
    through, raw = (_leading(f) for f in _fisher(model, windows, depth))
    found = found._replace(fisher=through, fisher_raw=raw, sketch=random_sketch(model))
    progress("fitting the regression of log KL", 0.0)
    return _distil(model, windows, depth, found)


def random_sketch(model: RecurrentLM, *, seed: int = 0) -> Float[Tensor, "rank d"]:
    """½ ‖sketch Δ‖² estimates half the variance of the logits' change over the vocabulary, without the coda."""
    head = model.head.weight.detach().float().cpu()
    scale = getattr(model.final_norm, "weight", torch.ones(head.shape[1])).detach().float().cpu()
    signs = torch.randn(RANK, head.shape[0], generator=torch.Generator().manual_seed(seed))
    return signs @ ((head - head.mean(0)) * scale) / math.sqrt(RANK * head.shape[0])


def _fisher(model: RecurrentLM, windows: Windows, depth: int) -> tuple[Tensor, Tensor]:
    """Mean over tokens and depths of g gᵀ, through coda and head and through the head alone."""
    sums = torch.zeros(2, model.config.d_model, model.config.d_model, dtype=torch.float64)
    generator, count = torch.Generator().manual_seed(0), 0
    for batch in windows.batches(BATCH_TOKENS, model.embedding.weight.device):
        with torch.no_grad():
            states = [(p.state, p.ctx) for p in passes(model, batch.tokens, depth)]
        for state, ctx in states:
            scale = state.float().square().mean(-1, keepdim=True).clamp_min(TINY).sqrt()
            for i, hidden in enumerate((lambda s, c=ctx: model.hidden(s, c), model.final_norm)):
                unit = (state / scale).detach().requires_grad_()
                log_probs = model.logits(hidden(unit * scale)[batch.valid]).log_softmax(-1)
                drawn = torch.multinomial(log_probs.detach().exp().cpu(), 1, generator=generator)
                (gradient,) = torch.autograd.grad(log_probs.gather(1, drawn.to(log_probs.device)).sum(), unit)
                g = gradient[batch.valid].double().cpu()
                sums[i] += g.T @ g
            count += int(batch.valid.sum())
    return sums[0] / count, sums[1] / count


def _leading(fisher: Float[Tensor, "d d"]) -> Float[Tensor, "rank d"]:
    """P with PᵀP the best approximation of rank `RANK` (zero rows if the state is narrower)."""
    values, vectors = torch.linalg.eigh(fisher)
    kept = min(RANK, len(values))
    factor = torch.zeros(RANK, len(values))
    factor[:kept] = (vectors[:, -kept:] * values[-kept:].clamp_min(0).sqrt()).T.float().flip(0)
    return factor


@torch.no_grad()
def _distil(model: RecurrentLM, windows: Windows, depth: int, probe: Probe) -> Probe:
    """Ridge regression of log KL: one weight per channel of the state, and terms and bias per depth."""
    assert probe.fisher is not None
    d, terms = model.config.d_model, 4
    size = d + terms * (depth - 1)
    gram, moment = np.zeros((size, size)), np.zeros(size)
    for batch in windows.batches(BATCH_TOKENS, model.embedding.weight.device):
        before: Tensor | None = None
        for i, state, prev, _, ctx in passes(model, batch.tokens, depth):
            log_probs = model.logits(model.hidden(state, ctx)[batch.valid]).log_softmax(-1)
            if before is not None:
                target = kl(log_probs, before).clamp_min(FLOOR).log()
                now, logs = distil_terms(Look(state[batch.valid], prev[batch.valid]), probe.fisher.to(state.device))
                x = np.zeros((len(target), size))
                x[:, :d] = now.cpu().numpy()
                at = d + terms * (i - 2)
                x[:, at : at + terms - 1], x[:, at + terms - 1] = logs.cpu().numpy(), 1.0
                gram, moment = gram + x.T @ x, moment + x.T @ target.double().cpu().numpy()
            before = log_probs
    ridge = RIDGE * np.trace(gram) / size * np.eye(size)
    solution = torch.from_numpy(np.linalg.solve(gram + ridge, moment)).float()
    rows = solution[d:].reshape(depth - 1, terms)
    # Row j serves depth j + 1; depth 1 has no KL and repeats depth 2.
    return probe._replace(distil_state=solution[:d].clone(), distil_terms=torch.cat([rows[:1], rows]))
