"""Validation while training: loss at several depths, successive KL, convergence depth and signs of collapse."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM

EPSILON = 1e-3  # nats: a token has converged once every later successive KL stays below this


@runtime_checkable
class Batches(Protocol):
    """Where windows come from: a pure function of the step."""

    def batch(self, step: int) -> Int[Tensor, "batch window"]:
        """This process's windows of context + 1 token ids."""
        ...


class HeldOut(NamedTuple):
    """One held-out set and its share in the averaged loss."""

    batches: Batches
    weight: float = 1.0


class Validation(NamedTuple):
    """Held-out figures, in nats, by depth. `loss` averages the sets; `kl`, `converged` (median convergence depth) and
    `correlation` (of the states of different tokens) are of the first few windows of the set with the largest share."""

    loss: dict[int, float]
    loss_by_source: dict[str, dict[int, float]]
    kl: dict[int, float]
    converged: float
    correlation: float

    def flat(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "val_loss_by_depth": _rounded(self.loss),
            "val_loss_by_source": {name: _rounded(by_depth) for name, by_depth in self.loss_by_source.items()},
            "kl_by_depth": {str(d): float(f"{v:.4g}") for d, v in self.kl.items()},
            "median_convergence_depth": self.converged,
            "token_state_correlation": round(self.correlation, 6),
        }


def _rounded(by_depth: Mapping[int, float]) -> dict[str, float]:
    return {str(depth): round(value, 6) for depth, value in by_depth.items()}


@torch.no_grad()
def validate(model: RecurrentLM, sets: Mapping[str, HeldOut], depths: Sequence[int], num_batches: int) -> Validation:
    """Run `num_batches` batches of every set once to the deepest of `depths`."""
    main = max(sets, key=lambda name: sets[name].weight)
    watch = _Watched()
    losses = {
        name: _losses(model, held.batches, sorted(depths), num_batches, watch if name == main else None)
        for name, held in sets.items()
    }
    total = sum(held.weight for held in sets.values())
    mean = {d: sum(sets[n].weight * losses[n][d] for n in sets) / total for d in sorted(depths)}
    return Validation(mean, losses, watch.kl, watch.median(), watch.correlation)


def _losses(
    model: RecurrentLM, batches: Batches, depths: Sequence[int], num_batches: int, watch: "_Watched | None"
) -> dict[int, float]:
    """Mean loss by depth; the first batch also feeds `watch`."""
    sums, device = dict.fromkeys(depths, 0.0), next(model.parameters()).device
    for index in range(num_batches):
        windows = batches.batch(index).to(device)
        for depth, state, ctx in _states(model, windows[:, :-1], depths[-1]):
            if depth in sums:
                sums[depth] += F.cross_entropy(model.coda(state, ctx).flatten(0, 1), windows[:, 1:].flatten()).item()
            if watch is not None and index == 0:
                watch.see(state[:4], model)
    return {depth: total / num_batches for depth, total in sums.items()}


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
