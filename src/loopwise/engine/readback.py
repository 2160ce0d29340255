"""From the device to the host without waiting for what was launched since (the other way: `sampling.upload`)."""

from typing import Any

import torch
from torch import Tensor


class Readback:
    """Tensors on their way to the host. Made right after the launch that computes them; `take` waits for that launch
    only, not for what was launched since. Nobody may write to the tensors in between."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors, self._event = list(tensors), None
        if tensors and tensors[0].is_cuda:
            self._tensors = [
                torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in tensors
            ]
            self._event = torch.cuda.Event()
            self._event.record()

    def take(self) -> list[list[Any]]:
        """The values, tensor by tensor."""
        if self._event is not None:
            self._event.synchronize()
        return [t.tolist() for t in self._tensors]
