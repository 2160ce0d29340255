"""What exit signals may look at: the states and readouts of one pass, and tensors fitted for one checkpoint."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

TINY = 1e-12
A2 = ("weight", "bias", "mean", "scale")  # what the classifier needs
FACTORS = ("fisher", "fisher_raw", "sketch")
RANK = 16  # rows of every low-rank factor: fixed, so that a signal's cost follows from the shape alone


class Look(NamedTuple):
    """What a signal may look at after pass i, one row each; `None` where the signal's needs do not ask for it.

    `state` s_i, `prev` s_{i-1}, `prev2` s_{i-2} (for depth 1: prev is the initial state and prev2 repeats it),
    `log_probs` and `prev_log_probs` fp32 log-softmax of the readouts at i and i-1.
    """

    state: Float[Tensor, "rows d"]
    prev: Float[Tensor, "rows d"]
    prev2: Float[Tensor, "rows d"] | None = None
    log_probs: Float[Tensor, "rows vocab"] | None = None
    prev_log_probs: Float[Tensor, "rows vocab"] | None = None


class Probe(NamedTuple):
    """Tensors that belong to one checkpoint and that some signals need (`Signal.tensors`): `probe.safetensors`.

    A2, a linear classifier: sigmoid(weight·features + bias) is the probability that the argmax will still change;
    `weight` is `[depths, d]`, `bias` `[depths]`, `mean` and `scale` `[d]` standardise the state. Row j serves depth
    j + 1; the last row serves every deeper pass, so a pooled probe has one row.
    `fisher`, `fisher_raw`, `sketch`: factors P `[RANK, d]` of a quadratic form of the change of the normalised state
    (see `exit/fitted.py`). `distil_state` `[d]` and `distil_terms` `[depths, 4]`: a regression of log KL.
    """

    weight: Tensor | None = None
    bias: Tensor | None = None
    mean: Tensor | None = None
    scale: Tensor | None = None
    fisher: Tensor | None = None
    fisher_raw: Tensor | None = None
    sketch: Tensor | None = None
    distil_state: Tensor | None = None
    distil_terms: Tensor | None = None

    def lacks(self, names: tuple[str, ...]) -> list[str]:
        """Those of the named tensors that are absent."""
        return [name for name in names if getattr(self, name) is None]

    def to(self, device: torch.device | str) -> "Probe":
        """The same tensors on another device."""
        return Probe(*(None if t is None else t.to(device) for t in self))
