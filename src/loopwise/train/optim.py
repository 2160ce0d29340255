"""Optimizers, torch's own: AdamW for everything, or Muon for the matrices inside blocks and AdamW for the rest."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.overrides import TorchFunctionMode

from loopwise.train.config import TrainConfig


def build(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Optimizers over all parameters; weight decay acts on matrices only. Each group carries its `base_lr`."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    muon = [
        p for n, p in named if config.optimizer == "muon" and p.ndim == 2 and "embedding" not in n and "head" not in n
    ]
    taken = {id(p) for p in muon}
    rest = [p for _, p in named if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True
    )
    optimizers: list[torch.optim.Optimizer] = [adamw]
    if muon:
        # match_rms_adamw scales the update so that one learning rate suits both (Liu et al., 2025).
        kind = Float32Muon if muon[0].device.type == "cpu" else torch.optim.Muon
        optimizers.append(
            kind(muon, lr=config.muon_lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return optimizers


class Float32Muon(torch.optim.Muon):
    """torch's Muon, its Newton-Schulz iteration in float32.

    torch casts the momentum to bfloat16 first. That is right for accelerators; a CPU without bfloat16 instructions
    multiplies it some twenty times slower than float32, and a step of a small model is then mostly optimizer.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """As torch's."""
        with _BFloat16AsFloat32():
            return super().step(closure)


class _BFloat16AsFloat32(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.bfloat16:  # a copy, as a cast makes one: the iteration works in place
            return args[0].to(torch.float32, copy=True)
        return func(*args, **(kwargs or {}))


def set_lr(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Set every group's learning rate to its base times `factor`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor


def state_tensors(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Optimizer state as `parameter/key -> whole tensor` (gathers shards: call it on every rank)."""
    names = {id(p): n for n, p in model.named_parameters()}
    found = {}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                found[f"{names[id(parameter)]}/{key}"] = whole(torch.as_tensor(value))
    return found


def load_state_tensors(model: nn.Module, optimizers: list[torch.optim.Optimizer], saved: dict[str, Tensor]) -> None:
    """Inverse of `state_tensors`; each tensor is sharded and placed as its parameter is."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for name, value in saved.items():
        parameter, _, key = name.rpartition("/")
        by_name.setdefault(parameter, {})[key] = value
    names = {id(p): n for n, p in model.named_parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = by_name.get(names[id(parameter)], {})
                optimizer.state[parameter] = {key: like(value, parameter) for key, value in state.items()}


def whole(tensor: Tensor) -> Tensor:
    """The full tensor, on every rank, detached; a view of the storage when it is not sharded."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(value: Tensor, parameter: Tensor) -> Tensor:
    """Place a whole tensor as `parameter` is placed: device, and shards if the shapes agree."""
    value = value.to(parameter.device)
    if isinstance(parameter, DTensor) and value.shape == parameter.shape:
        return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return value
