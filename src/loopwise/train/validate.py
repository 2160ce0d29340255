"""Validation while training: loss at several depths, successive KL, convergence depth and signs of collapse."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM

EPSILON = 1e-3  # nats: a token has converged once every later successive KL stays below this


class Batches(Protocol):
    """Where windows come from: a pure function of the step."""

    def batch(self, step: int) -> Int[Tensor, "batch window"]:
        """Windows of context + 1 token ids."""
        ...


class Validation(NamedTuple):
    """Held-out figures, in nats. Lists and maps are by depth; `converged` is the median convergence depth."""

    loss: dict[int, float]
    kl: dict[int, float]
    converged: float
    correlation: float

    def flat(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "val_loss_by_depth": {str(d): round(v, 6) for d, v in self.loss.items()},
            "kl_by_depth": {str(d): v for d, v in self.kl.items()},
            "median_convergence_depth": self.converged,
            "token_state_correlation": self.correlation,
        }


@torch.no_grad()
def validate(model: RecurrentLM, batches: Batches, depths: Sequence[int], num_batches: int) -> Validation:
    """Run `num_batches` held-out batches once to the deepest of `depths`; KL and convergence on the first of them."""
    sums, count, depths = dict.fromkeys(sorted(depths), 0.0), 0, sorted(depths)
    watched: _Watched | None = None
    device = next(model.parameters()).device
    for index in range(num_batches):
        windows = batches.batch(index).to(device)
        tokens, targets = windows[:, :-1], windows[:, 1:]
        watch = _Watched() if index == 0 else None
        for depth, state, ctx in _states(model, tokens, depths[-1]):
            if depth in sums:
                sums[depth] += F.cross_entropy(model.coda(state, ctx).flatten(0, 1), targets.flatten()).item()
            if watch is not None:
                watch.see(state[:4], model)
        watched, count = watch or watched, count + 1
    assert watched is not None
    return Validation({d: s / count for d, s in sums.items()}, watched.kl, watched.median(), watched.correlation)


def _states(model: RecurrentLM, tokens: Tensor, top: int) -> Iterator[tuple[int, Tensor, DenseCausal]]:
    ctx = DenseCausal.over(tokens)
    e = model.prelude(tokens, ctx)
    s = model.init_state(e, ctx)
    for depth in range(1, top + 1):
        ctx.depth = depth
        s = model.core(s, e, ctx)
        yield depth, s, ctx


class _Watched:
    """Successive KL(p_i || p_{i-1}) over a few windows, without keeping more than two readouts."""

    def __init__(self) -> None:
        self.kl: dict[int, float] = {}
        self.depth, self.correlation = 0, 0.0
        self.before: Tensor | None = None
        self.last_move: Tensor | None = None

    def see(self, state: Float[Tensor, "rows time d"], model: RecurrentLM) -> None:
        self.depth += 1
        ctx = DenseCausal(torch.arange(state.shape[1], device=state.device).expand(state.shape[:2]))
        ctx.turn = model.rotary(ctx.positions)
        now = F.log_softmax(model.coda(state, ctx), dim=-1)
        if self.before is None:
            self.last_move = torch.ones(now.shape[:2], device=now.device)
        else:
            kl = (now.exp() * (now - self.before)).sum(-1)
            self.kl[self.depth] = kl.mean().item()
            assert self.last_move is not None
            self.last_move = torch.where(kl >= EPSILON, self.depth, self.last_move)
        self.before, self.correlation = now, correlation(state)

    def median(self) -> float:
        """Median over tokens of the last depth that still changed the output."""
        assert self.last_move is not None
        return self.last_move.float().median().item()


def correlation(state: Float[Tensor, "rows time d"]) -> float:
    """Mean cosine between the states of different tokens of one window: 1 means that all tokens look alike."""
    unit = F.normalize(state.float(), dim=-1)
    time = unit.shape[1]
    if time < 2:
        return 0.0
    together = unit.sum(1).square().sum(-1)
    return ((together - time) / (time * (time - 1))).mean().item()
