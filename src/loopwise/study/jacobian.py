"""Section 2: the spectrum of one core pass at the fixed point, token by token, by power iteration through autograd.

Attention is causal, so the Jacobian of a pass over all states of a window is block triangular and its spectrum is that
of its diagonal blocks J_t = d f(s)_t / d s_t. J_tᵀ u is a vector-Jacobian product and J_t v the derivative of that
product with respect to u; neither matrix is ever formed, and one graph serves all iterations. The spectral radius is
the growth of J_t^n v (its geometric mean over the second half of the iterations, which also serves complex pairs), the
largest singular value that of J_tᵀ J_t. A radius below 1 makes the state after the last pass an attracting fixed point.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from loopwise.measure.trace import passes
from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM
from loopwise.study.subject import Subject

VERSION = 1
ROWS = 16  # tokens whose blocks are iterated together
BINS = 24


class Point(NamedTuple):
    """Windows at their last pass: one chosen token each."""

    state: Float[Tensor, "rows time d"]
    e: Float[Tensor, "rows time d"]
    ctx: DenseCausal
    token: Int[Tensor, "rows"]


class Spectrum(NamedTuple):
    """Per chosen token: spectral radius and largest singular value of its block, and its last relative change."""

    radius: Float[np.ndarray, "rows"]
    singular: Float[np.ndarray, "rows"]
    residual: Float[np.ndarray, "rows"]


def jacobian(subject: Subject) -> dict[str, Any]:
    """Spectra of tokens spread evenly over the text, at the deepest pass."""
    model, settings = subject.model, subject.settings
    index = subject.windows.index
    chosen = np.unique(np.linspace(0, subject.windows.num_tokens - 1, settings.jacobians).round().astype(int))
    found: list[Spectrum] = []
    for start in range(0, len(chosen), ROWS):
        part = chosen[start : start + ROWS]
        subject.tell(f"{subject.name}: spectrum of a pass", start / len(chosen))
        windows = subject.windows.ids
        ids = [windows[w][:-1] for w in index["window"][part]]
        longest = max(len(row) for row in ids)
        tokens = torch.tensor(np.stack([np.pad(row, (0, longest - len(row))) for row in ids]), dtype=torch.long)
        at = torch.from_numpy(index["position"][part].astype(np.int64))
        point, residual = last_pass(model, tokens, at, subject.max_depth)
        generator = torch.Generator().manual_seed(settings.seed + start)
        found.append(spectrum(model, point, residual, settings.iterations, generator))
    radius, singular, residual = (np.concatenate([getattr(s, n) for s in found]) for n in Spectrum._fields)
    edges = np.linspace(0, 1.2, BINS + 1)
    return {
        "tokens": len(radius),
        "depth": subject.max_depth,
        "iterations": settings.iterations,
        "radius": _describe(radius),
        "singular": _describe(singular),
        "attracting": float((radius < 1).mean()),
        "residual": _describe(residual),
        "histogram": np.histogram(np.clip(radius, 0, 1.1999), edges)[0].tolist(),
        "edges": edges.tolist(),
        "mean_log_radius": float(np.log(np.maximum(radius, 1e-12)).mean()),
    }


def _describe(values: np.ndarray) -> dict[str, float]:
    return {f"{q:g}": float(np.quantile(values, q)) for q in (0.05, 0.25, 0.5, 0.75, 0.95)} | {
        "max": float(values.max())
    }


@torch.no_grad()
def last_pass(
    model: RecurrentLM, tokens: Int[Tensor, "rows time"], at: Int[Tensor, "rows"], depth: int
) -> tuple[Point, np.ndarray]:
    """States after `depth` passes, and the chosen tokens' relative change in the last one."""
    last = list(passes(model, tokens, depth))[-1]
    e = model.prelude(tokens, last.ctx)
    last.ctx.depth = depth
    row = torch.arange(len(at))
    now, before = last.state[row, at], last.prev[row, at]
    residual = (now - before).norm(dim=-1) / now.norm(dim=-1)
    return Point(last.state, e, last.ctx, at), residual.numpy()


def spectrum(
    model: RecurrentLM, point: Point, residual: np.ndarray, iterations: int, generator: torch.Generator
) -> Spectrum:
    """Power iterations for all rows together."""
    row, width = torch.arange(len(point.token)), point.state.shape[-1]
    start = torch.randn(len(row), width, generator=generator)

    def block(own: Tensor) -> Tensor:
        state = point.state.index_put((row, point.token), own)
        return model.core(state, point.e, point.ctx)[row, point.token]

    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():  # fused kernels have no second derivative
        own = point.state[row, point.token].detach().requires_grad_()
        out = block(own)
        dual = torch.zeros_like(out).requires_grad_()
        pulled = torch.autograd.grad(out, own, dual, create_graph=True)[0]  # J^T dual, linear in dual

        def pull(u: Tensor) -> Tensor:
            return torch.autograd.grad(out, own, u, retain_graph=True)[0]

        def push(v: Tensor) -> Tensor:
            return torch.autograd.grad(pulled, dual, v, retain_graph=True)[0]

        radius = _growth(push, start, iterations, skip=iterations // 2)
        squared = _growth(lambda v: pull(push(v)), start, iterations, skip=iterations - 1)
    return Spectrum(radius.numpy(), squared.sqrt().numpy(), residual)


def _growth(apply: Any, start: Tensor, iterations: int, *, skip: int) -> Tensor:
    """Geometric mean of the growth of each row after the first `skip` iterations."""
    v = start / start.norm(dim=-1, keepdim=True)
    logs = []
    for i in range(iterations):
        v = apply(v).detach()
        size = v.norm(dim=-1, keepdim=True).clamp_min(1e-30)
        v = v / size
        if i >= skip:
            logs.append(size[:, 0].log())
    return torch.stack(logs).mean(0).exp()
