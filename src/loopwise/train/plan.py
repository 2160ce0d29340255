"""What a run will need, worked out before it starts: FLOPs, memory, hours and cost. Nothing is allocated."""

from statistics import fmean
from typing import Any, NamedTuple

from loopwise.config import InputError, nearest
from loopwise.model.cost import Cost
from loopwise.train.config import Recipe, check_batch
from loopwise.train.depth import depth_at


class Budget(NamedTuple):
    """Assumptions that turn FLOPs into hours and money. `peak_flops` and the price are of one process."""

    peak_flops: float
    mfu: float
    dollars_per_hour: float
    processes: int = 1


class Device(NamedTuple):
    """Dense bf16 peak with fp32 accumulation (FLOP/s, data sheets), and an hourly rent in dollars to start from."""

    peak_flops: float
    dollars_per_hour: float


# The CPU row is a guess for two cores (one reached 5e10 in fp32 matrix products); rents are round figures, give your
# own with --price.
DEVICES: dict[str, Device] = {
    "rtx-4090": Device(165.2e12, 0.40),
    "a100": Device(312e12, 1.50),
    "h100": Device(989e12, 2.50),
    "h200": Device(989e12, 3.50),
    "cpu": Device(2.0e11, 0.05),
}


def budget(device: str, *, mfu: float, dollars_per_hour: float | None = None, processes: int = 1) -> Budget:
    """Assumptions for a device of `DEVICES`; an unknown one or an MFU outside (0, 1] raises `InputError`."""
    if device not in DEVICES:
        raise InputError(f"device '{device}' is unknown: {nearest(device, DEVICES)}")
    if not 0 < mfu <= 1:
        raise InputError(f"mfu is {mfu:g}: use a fraction above 0, at most 1")
    known = DEVICES[device]
    price = known.dollars_per_hour if dollars_per_hour is None else dollars_per_hour
    return Budget(known.peak_flops, mfu, price, processes)


def mean_depths(recipe: Recipe, sample: int = 4000) -> tuple[float, float, int]:
    """Mean passes, mean passes that gradients reach, and the deepest, over the first draws of the real sampler."""
    drawn = [depth_at(recipe.depth, recipe.train.seed, step) for step in range(min(sample, recipe.train.steps))]
    limit = recipe.depth.backprop or max(drawn)
    return fmean(drawn), fmean(min(d, limit) for d in drawn), max(drawn)


def train_flops_per_token(recipe: Recipe) -> float:
    """Forward once over all passes, backward (twice a forward) over those that gradients reach; keys average half the
    context. Recomputation is not counted: it is overhead, not work (as in model FLOPs utilisation)."""
    cost, keys = Cost.of(recipe.model), recipe.train.context / 2
    forward, backward, _ = mean_depths(recipe)
    return cost.flops(forward, keys=keys) + 2 * cost.flops(backward, keys=keys)


def memory_bytes(recipe: Recipe, processes: int = 1) -> dict[str, int]:
    """Peak memory of one process: weights, gradients, optimizer (fp32), and activations of the deepest micro-batch.

    Activations of one block are counted as 10 d + 3 heads x width + 6 d_ff numbers per token in the compute dtype
    (norm inputs and outputs, q, k, v, attention output, MLP); with recomputation one fp32 state per pass and one pass
    at work; logits three times in fp32 (values, log-softmax, gradient). An estimate: expect 20% either way.
    """
    model, train = recipe.model, recipe.train
    params = Cost.of(model).params["total"]
    shards = processes if train.parallel == "fsdp" else 1
    item = 2 if train.dtype == "bfloat16" else 4
    tokens = train.batch_size // (processes * train.accumulation) * train.context
    deepest = mean_depths(recipe)[2]
    passes = min(deepest, recipe.depth.backprop or deepest)
    block = (10 * model.d_model + 3 * model.num_heads * model.width + 6 * model.d_ff) * item
    per_pass = model.d_model * 4 if train.recompute else model.core_layers * block
    outside = (model.prelude_layers + model.coda_layers) * block + 3 * 4 * model.vocab_size
    working = model.core_layers * block if train.recompute else 0
    found = {
        "weights": 4 * params // shards,
        "gradients": 4 * params // shards,
        "optimizer": 8 * params // shards,
        "activations": tokens * (passes * per_pass + outside + working),
    }
    return {**found, "total": sum(found.values())}


def utilisation(device_name: str, flops_per_s: float) -> float | None:
    """Share of the device's peak reached (MFU), or None for a device whose peak is not in `DEVICES`."""
    short = {"4090": "rtx-4090", "A100": "a100", "H100": "h100", "H200": "h200"}
    found = next((DEVICES[name] for word, name in short.items() if word in device_name), None)
    return None if found is None else flops_per_s / found.peak_flops


def plan(recipe: Recipe, assumed: Budget) -> dict[str, Any]:
    """The JSON object of `loopwise train --dry-run`."""
    check_batch(recipe.train, assumed.processes)
    forward, backward, deepest = mean_depths(recipe)
    flops = train_flops_per_token(recipe)
    tokens = recipe.train.steps * recipe.train.tokens_per_step
    hours = tokens * flops / (assumed.peak_flops * assumed.mfu * assumed.processes) / 3600
    return {
        "dry_run": True,
        "recipe": recipe.name,
        "params": Cost.of(recipe.model).params["total"],
        "tokens": tokens,
        "steps": recipe.train.steps,
        "tokens_per_step": recipe.train.tokens_per_step,
        "mean_depth": round(forward, 3),
        "mean_backprop_depth": round(backward, 3),
        "max_depth": deepest,
        "train_flops_per_token": flops,
        "train_flops": tokens * flops,
        "memory_bytes": memory_bytes(recipe, assumed.processes),
        "assumed": assumed._asdict(),
        "tokens_per_s": round(assumed.peak_flops * assumed.mfu * assumed.processes / flops, 1),
        "hours": hours,
        "dollars": hours * assumed.dollars_per_hour * assumed.processes,
    }


def card(result: dict[str, Any]) -> str:
    """For people."""
    memory, assumed = result["memory_bytes"], result["assumed"]
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in memory.items() if name != "total")
    return "\n".join(
        (
            f"{result['recipe']}: {result['params'] / 1e6:.1f}M parameters; nothing was started",
            f"  tokens   {result['tokens']:,} in {result['steps']:,} steps of {result['tokens_per_step']:,}",
            f"  depth    mean {result['mean_depth']} (gradients reach {result['mean_backprop_depth']}), "
            f"at most {result['max_depth']}",
            f"  FLOPs    {result['train_flops_per_token']:.3e} per token, {result['train_flops']:.3e} in all",
            f"  memory   {memory['total'] / 2**30:.2f} GiB per process ({parts})",
            f"  time     {result['hours']:.2f} h at {assumed['peak_flops']:.3g} FLOP/s x {assumed['processes']} and "
            f"MFU {assumed['mfu']:.0%}: {result['tokens_per_s']:,.0f} tokens/s",
            f"  cost     ${result['dollars']:.2f} at ${assumed['dollars_per_hour']:.2f} an hour and process",
        )
    )
