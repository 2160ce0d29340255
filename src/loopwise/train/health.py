"""Signs that a run goes wrong in ways peculiar to looped models, with advice. Pure functions of measured figures."""

import math
from collections.abc import Mapping

from torch import Tensor, nn

from loopwise.train.optim import whole
from loopwise.train.validate import Validation

STAGES = ("embedding", "prelude", "recurrence", "coda", "head")


def gradient_norms(model: nn.Module) -> dict[str, float]:
    """Norm of the gradients of each stage, after clipping (all processes must call it when sharded)."""
    grads: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            stage = next((s for s in STAGES if name.startswith(s)), "coda")  # the final norm belongs to the coda
            grads.setdefault(stage, []).append(parameter.grad)
    return {s: whole(nn.utils.get_total_norm(found)).item() for s, found in sorted(grads.items())}


def diagnose(validation: Validation, gradients: Mapping[str, float], mean_depth: float) -> dict[str, str]:
    """Findings as `name -> advice`; empty when all is well."""
    found, losses = {}, validation.loss
    near = min(losses, key=lambda d: abs(d - mean_depth))
    deep = max(losses)
    if validation.correlation > 0.95:
        found["collapse"] = (
            f"states of different tokens look alike (mean cosine {validation.correlation:.3f}): the core forgets its "
            "input; use model.injection concat, model.norm sandwich, or a lower train.lr"
        )
    if not math.isfinite(losses[deep]) or losses[deep] > losses[near] + 0.1:
        found["divergence"] = (
            f"loss at depth {deep} is {losses[deep]:.3f}, at {near} {losses[near]:.3f}: the loop is unstable past the "
            "depths it trains; raise depth.max or depth.sigma, or set model.state_norm true"
        )
    total = math.sqrt(sum(norm**2 for norm in gradients.values()))
    if gradients and gradients.get("recurrence", 0.0) < 1e-3 * total:
        found["starved"] = (
            "the core gets less than a thousandth of the gradient: raise depth.backprop, or use model.norm sandwich"
        )
    return found
