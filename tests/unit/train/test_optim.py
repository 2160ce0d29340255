"""Muon on a CPU: the same update as torch's, without a bfloat16 product."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from loopwise.train.config import TrainConfig
from loopwise.train.optim import Float32Muon, build

SHAPES = ((48, 48), (96, 48), (48, 96))


def stepped(kind: type[torch.optim.Muon], steps: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    optimizer = kind(parameters, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return [p.detach() for p in parameters]


class Types(TorchDispatchMode):
    """Records the type of every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.seen |= {x.dtype for x in (found if isinstance(found, tuple) else (found,)) if isinstance(x, torch.Tensor)}
        return found


def test_update_equals_torch_to_bfloat16_rounding() -> None:
    for ours, theirs in zip(stepped(Float32Muon), stepped(torch.optim.Muon), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)
        assert not torch.equal(ours, theirs), "torch rounds to bfloat16: equal means that nothing was replaced"


@pytest.mark.parametrize(("kind", "rounds"), [(Float32Muon, False), (torch.optim.Muon, True)])
def test_bfloat16_is_used_by_torch_and_not_here(kind: type[torch.optim.Muon], rounds: bool) -> None:
    with Types() as types:
        stepped(kind, steps=1)
    assert (torch.bfloat16 in types.seen) is rounds


def test_gradients_and_momentum_survive_the_in_place_iteration() -> None:
    parameter = nn.Parameter(torch.eye(8))
    parameter.grad = torch.arange(64.0).reshape(8, 8)
    kept = parameter.grad.clone()
    optimizer = Float32Muon([parameter], lr=0.1, momentum=0.5, nesterov=False)
    optimizer.step()
    assert torch.equal(parameter.grad, kept)
    assert torch.equal(optimizer.state[parameter]["momentum_buffer"], kept * 0.5)


def test_matrices_inside_blocks_go_to_muon_on_the_cpu() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(8, 4), "block": nn.Linear(4, 4), "head": nn.Linear(4, 8)})
    adamw, muon = build(model, TrainConfig(optimizer="muon", tokens=64, batch_size=1, context=8))
    assert isinstance(muon, Float32Muon)
    assert [p.shape for group in muon.param_groups for p in group["params"]] == [torch.Size((4, 4))]
    assert sum(len(group["params"]) for group in adamw.param_groups) == 5 - 1
