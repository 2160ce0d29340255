"""What a signal leaves of the saving on a given shape, from FLOPs alone."""

from typing import Any

from loopwise.calibrate.families import CANDIDATES, NUM_CANDIDATES
from loopwise.config import ModelConfig
from loopwise.exit.signals import SIGNALS
from loopwise.model.cost import Cost

STUDY_DEPTHS = (4.94, 8)  # mean loops of A1 and the reference, as the study reports them


def net(shape: ModelConfig, *, keys: float = 0.0) -> list[dict[str, Any]]:
    """Speed-up in FLOPs on a shape at the study's mean depth with each signal checked after every pass that needs it,
    and how much of the bound (checks free) it keeps."""
    cost, (mean, top), d, v = Cost.of(shape), STUDY_DEPTHS, shape.d_model, shape.vocab_size
    whole, bound = cost.flops(top, keys=keys), cost.bound(mean, top, keys=keys)
    found = []
    coda = cost.readout - 2 * d * v + 2 * d * NUM_CANDIDATES + 4 * NUM_CANDIDATES
    own = [(s.name, s.cost, s.first_depth, s.readouts, s.flops(d, v)) for s in SIGNALS.values()]
    for name, kind, first, reads, check in [*own, (CANDIDATES, "coda", 2, 0, coda)]:
        checks = mean - first + 1
        readouts = mean if reads == 2 else checks if reads else 1.0
        once = cost.readout if name == CANDIDATES else 0  # the candidates come from one readout of pass 1
        speedup = whole / cost.flops(mean, keys=keys, readouts=readouts, check_flops=checks * check + once)
        found.append({
            "signal": name,
            "cost": kind,
            "check_of_core_pass": (check + (cost.readout if reads else 0)) / cost.per_pass,
            "speedup": speedup,
            "bound": bound,
            "of_bound": speedup / bound,
            "saving": 1 - 1 / speedup,
            "saving_of_bound": (1 - 1 / speedup) / (1 - 1 / bound),
        })  # fmt: skip
    return found
