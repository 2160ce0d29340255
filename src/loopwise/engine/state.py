"""Rows in progress as a structure of arrays: one entry per place, gathered for a launch and scattered after it."""

import torch
from torch import Tensor

from loopwise.model.recurrent import RecurrentLM


class Rows:
    """State of every place, and of one row more that belongs to nobody (`nowhere`). `depth` counts completed passes of
    the token under way, `left` says that it needs no more, `seen` is its exit signal's last value, `deepest` the planes
    its sequence may read."""

    def __init__(self, model: RecurrentLM, places: int, blocks: int) -> None:
        weight, c = model.embedding.weight, model.config
        device = weight.device
        self.nowhere, places = places, places + 1

        def ints(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.long, device=device)

        self.table = ints(places, blocks)
        self.positions, self.depth, self.deepest = ints(places), ints(places), ints(places)
        self.carry = torch.zeros(places, dtype=torch.int32, device=device)
        self.left = torch.zeros(places, dtype=torch.bool, device=device)
        self.seen = torch.zeros(places, device=device)
        self.e, self.state, self.prev = torch.zeros(3, places, c.d_model, dtype=weight.dtype, device=device)
        columns = c.width // 2 + (1 if c.value_layers else 0)
        self.turn = torch.zeros(2, places, columns, device=device)
        self.readout: Tensor | None = None  # last log-probabilities, for signals that compare readouts
        self._vocab = c.vocab_size

    def read_out(self) -> Tensor:
        """The buffer of readouts, made when first wanted."""
        if self.readout is None:
            self.readout = torch.zeros(len(self.depth), self._vocab, device=self.depth.device)
        return self.readout
