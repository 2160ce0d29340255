"""What a run will need, worked out before it starts: FLOPs, memory, hours and cost. Nothing is allocated."""

from statistics import fmean
from typing import Any, NamedTuple

from loopwise.model.cost import Cost
from loopwise.train.config import Recipe
from loopwise.train.depth import depth_at


class Budget(NamedTuple):
    """Assumptions that turn FLOPs into hours and money."""

    peak_flops: float
    mfu: float
    dollars_per_hour: float
    processes: int = 1


# Dense bf16 tensor-core peak with fp32 accumulation, from the vendor's data sheets, in FLOP/s.
PEAK_FLOPS: dict[str, float] = {"rtx-4090": 165.2e12, "a100": 312e12, "h100": 989e12, "h200": 989e12}


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

    Activations per token of one block: about 34 d + 6 d_ff numbers in the compute dtype without recomputation
    (inputs, norms, q, k, v, attention output, MLP), one state per pass with it; logits are counted three times in fp32
    (values, log-softmax, gradient). An estimate: expect 20% either way.
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


def plan(recipe: Recipe, budget: Budget) -> dict[str, Any]:
    """The JSON object of `loopwise train --dry-run`."""
    forward, backward, deepest = mean_depths(recipe)
    flops = train_flops_per_token(recipe)
    tokens = recipe.train.steps * recipe.train.tokens_per_step
    hours = tokens * flops / (budget.peak_flops * budget.mfu * budget.processes) / 3600
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
        "memory_bytes": memory_bytes(recipe, budget.processes),
        "assumed": budget._asdict(),
        "tokens_per_s": round(budget.peak_flops * budget.mfu * budget.processes / flops, 1),
        "hours": hours,
        "dollars": hours * budget.dollars_per_hour * budget.processes,
    }


def card(result: dict[str, Any]) -> str:
    """For people."""
    memory, assumed = result["memory_bytes"], result["assumed"]
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in memory.items() if name != "total")
    return "\n".join((
        f"{result['recipe']}: {result['params'] / 1e6:.1f}M parameters; nothing was started",
        f"  tokens   {result['tokens']:,} in {result['steps']:,} steps of {result['tokens_per_step']:,}",
        f"  depth    mean {result['mean_depth']} (gradients reach {result['mean_backprop_depth']}), at most {result['max_depth']}",
        f"  FLOPs    {result['train_flops_per_token']:.3e} per token, {result['train_flops']:.3e} in all",
        f"  memory   {memory['total'] / 2**30:.2f} GiB per process ({parts})",
        f"  time     {result['hours']:.2f} h at {assumed['peak_flops']:.3g} FLOP/s x {assumed['processes']} and MFU "
        f"{assumed['mfu']:.0%}: {result['tokens_per_s']:,.0f} tokens/s",
        f"  cost     ${result['dollars']:.2f} at ${assumed['dollars_per_hour']:.2f} an hour and process",
    ))
