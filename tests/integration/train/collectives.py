"""Under torchrun: one FSDP2 training step per depth, printing the number of collectives each makes as JSON."""

import json
import warnings
from collections import Counter
from typing import Any

import torch
from micro_run import small
from torch.utils._python_dispatch import TorchDispatchMode

from loopwise.model.recurrent import RecurrentLM
from loopwise.train.world import enter, spread


class Collectives(TorchDispatchMode):
    """Counts operators of torch.distributed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.counts[func.__name__.split(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def main() -> None:
    warnings.simplefilter("error")
    world = enter("cpu")
    made = small({"train.parallel": "fsdp"})
    net = spread(RecurrentLM(made.model).initialise(0), made, world)
    found = {}
    for depth in (1, 2, 9):
        with Collectives() as seen:
            net(torch.arange(12)[None].repeat(2, 1), depth, backprop_depth=None if depth < 4 else 4).sum().backward()
        found[depth] = dict(seen.counts)
    if world.first:
        print(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main()
