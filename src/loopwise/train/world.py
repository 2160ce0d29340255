"""Processes of one run, as torchrun starts them: rank, size, device, and the few collectives the trainer needs."""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from loopwise.config import InputError
from loopwise.hardware import pick_device
from loopwise.model.recurrent import RecurrentLM
from loopwise.train.config import Recipe, check_batch
from loopwise.train.optim import whole


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among all of them. `size` 1 means that no process group exists."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def mean(self, values: list[float]) -> list[float]:
        """Mean over all processes of a short list of numbers (one collective)."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return (tensor / self.size).tolist()

    def close(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def enter(device: str = "auto") -> World:
    """Join the process group that torchrun's environment describes, or stand alone without it."""
    picked = pick_device(device)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(rank=0, size=1, device=picked)
    if picked.type == "cuda":
        picked = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(picked)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if picked.type == "cuda" else "gloo")
    return World(rank=dist.get_rank(), size=size, device=picked)


def check(recipe: Recipe, world: World) -> None:
    """Refuse combinations that cannot work, before anything is built."""
    check_batch(recipe.train, world.size)
    if world.size > 1 and recipe.train.parallel == "fsdp" and recipe.train.optimizer == "muon":
        raise InputError("recipe field 'train.optimizer' is 'muon': it needs whole matrices, use train.parallel ddp")


def spread(model: RecurrentLM, recipe: Recipe, world: World) -> nn.Module:
    """The module to call in training: the model itself, DDP around it, or the model sharded in place (FSDP2).

    FSDP2 units are the recurrence (the whole loop) and the rest: three all-gathers per step whatever the depth.
    """
    if world.size == 1:
        return model
    if recipe.train.parallel == "fsdp":
        mesh = init_device_mesh(world.device.type, (world.size,))
        low = torch.bfloat16 if recipe.train.dtype == "bfloat16" else None
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
        fully_shard(model.recurrence, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return model
    ids = [world.device.index] if world.device.type == "cuda" else None
    # Without injection a truncated step gives the prelude no gradient; DDP has to look for that.
    return DistributedDataParallel(
        model, device_ids=ids, find_unused_parameters=recipe.model.injection == "none", gradient_as_bucket_view=True
    )


def synchronised(net: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Context for one micro-batch: gradients are reduced over processes in the last one only."""
    if isinstance(net, FSDPModule):
        net.set_requires_gradient_sync(last)
    elif isinstance(net, DistributedDataParallel) and not last:
        return net.no_sync()
    return nullcontext()


def whole_model(model: RecurrentLM) -> RecurrentLM:
    """The model itself, or an unsharded copy of one that FSDP2 has sharded (call on every rank)."""
    if not isinstance(model, FSDPModule):
        return model
    copy = RecurrentLM(model.config)
    copy.load_state_dict(whole_tensors(model), strict=False)  # the tied head has one entry for two names
    return copy.to(next(model.parameters()).device)


def whole_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, shards gathered (call on every rank)."""
    return {name: whole(parameter) for name, parameter in model.named_parameters()}
