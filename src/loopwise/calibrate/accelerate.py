"""`loopwise bench fixed-point`: do training-free accelerations reach the fixed point of a frozen core in fewer passes?

Plain iteration s ← f(s) against Aitken's Δ² on each token (the whole vector moves by one estimated rate) and Anderson
mixing of depth m per token: the next state is the combination of the last m outputs whose residuals f(s) - s cancel
best (Walker and Ni, 2011). Each pass costs one core evaluation either way; what mixing adds is a few vector operations.
Uniform depth on whole windows; every position accelerates on its own, while attention sees the accelerated states.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from loopwise import hardware, records
from loopwise.checkpoint.native import open_checkpoint
from loopwise.data.text import documents
from loopwise.data.tokenizer import Tokenizer
from loopwise.measure.windows import Windows, pack
from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM

RIDGE = 1e-6
SLOWEST = 0.9


class History(NamedTuple):
    """States before and after the last passes, oldest first."""

    states: list[Float[Tensor, "batch time d"]]
    outputs: list[Float[Tensor, "batch time d"]]


def plain(history: History) -> Float[Tensor, "batch time d"]:
    """The core's own next state."""
    return history.outputs[-1]


def aitken(history: History) -> Float[Tensor, "batch time d"]:
    """Every second pass, jump by the rest of a geometric series whose rate the last two changes show."""
    if len(history.outputs) < 2 or len(history.outputs) % 2:
        return history.outputs[-1]
    last = history.outputs[-1] - history.states[-1]
    before = history.outputs[-2] - history.states[-2]
    rate = (last * before).sum(-1, keepdim=True) / before.square().sum(-1, keepdim=True).clamp_min(1e-12)
    rate = rate.clamp(0, SLOWEST)
    return history.outputs[-1] + last * rate / (1 - rate)


def anderson(size: int) -> Callable[[History], Tensor]:
    """Mixing over the last `size` passes."""

    def mix(history: History) -> Float[Tensor, "batch time d"]:
        count = min(size, len(history.outputs))
        if count < 2:
            return history.outputs[-1]
        outputs = torch.stack(history.outputs[-count:], dim=-2)
        residual = outputs - torch.stack(history.states[-count:], dim=-2)
        gram = residual @ residual.transpose(-1, -2)
        scale = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        eye = torch.eye(count, dtype=gram.dtype, device=gram.device)
        ones = torch.ones(*gram.shape[:-1], 1, dtype=gram.dtype, device=gram.device)
        weight = torch.linalg.solve(gram + RIDGE * scale * eye + 1e-12 * eye, ones)
        weight = weight / weight.sum(-2, keepdim=True)
        return (weight.transpose(-1, -2) @ outputs)[..., 0, :]

    return mix


METHODS: dict[str, Callable[[History], Tensor]] = {
    "plain": plain,
    "aitken": aitken,
    "anderson 2": anderson(2),
    "anderson 3": anderson(3),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `loopwise bench fixed-point`."""
    parser.add_argument("--checkpoint", default="tiny", metavar="CKPT")
    parser.add_argument("--text", action="append", metavar="SOURCE", help="repeatable (default factbook and puzzles)")
    parser.add_argument("--tokens", type=int, default=6144, metavar="N")
    parser.add_argument("--depth", type=int, default=12, metavar="N", help="passes to run (default 12)")


def bench_fixed_point(args: argparse.Namespace) -> dict[str, Any]:
    """Loss and distance from the fixed point after each pass, by method; `passes` needed for the loss of plain depth
    `mean_depth` plus 0.01 nats."""
    checkpoint = open_checkpoint(args.checkpoint)
    model, sources = checkpoint.model(), args.text or ["factbook", "puzzles"]
    tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    windows = pack(tokenizer, documents(sources), context=checkpoint.config.context, max_tokens=args.tokens)
    depth = min(args.depth, checkpoint.config.max_depth)
    found = {name: run(model, windows, depth, method) for name, method in METHODS.items()}
    goal = found["plain"]["loss"][min(depth, round(checkpoint.config.mean_depth)) - 1] + 0.01
    rows = []
    for name, values in found.items():
        reached = [d for d, loss in enumerate(values["loss"], 1) if loss <= goal]
        values["passes"] = reached[0] if reached else None
        rows += [
            {"name": f"{name}: loss at {d}", "value": loss, "unit": "nats"} for d, loss in enumerate(values["loss"], 1)
        ]
    return {
        "rows": rows,
        "ratios": {},
        "methods": found,
        "goal": goal,
        "checkpoint": checkpoint.name,
        "tokens": windows.num_tokens,
        "manifest": records.manifest(
            command="loopwise bench fixed-point",
            config={"tokens": args.tokens, "depth": depth, "text": [Path(s).name for s in sources]},
            data_sha256=windows.digest,
            seed=0,
            hardware=hardware.describe(),
            commit=hardware.commit(),
        ),
    }


@torch.inference_mode()
def run(model: RecurrentLM, windows: Windows, depth: int, method: Callable[[History], Tensor]) -> dict[str, Any]:
    """Mean loss after each pass, and mean relative residual ‖f(s) - s‖ / ‖f(s)‖ of each pass."""
    loss, residual, count = torch.zeros(depth), torch.zeros(depth), 0
    for batch in windows.batches(2048, model.embedding.weight.device):
        ctx = DenseCausal.over(batch.tokens)
        e = model.prelude(batch.tokens, ctx)
        state, history = model.init_state(e, ctx), History([], [])
        for i in range(depth):
            ctx.depth = i + 1
            output = model.core(state, e, ctx)
            history.states.append(state)
            history.outputs.append(output)
            gap = (output - state).norm(dim=-1) / output.norm(dim=-1).clamp_min(1e-12)
            residual[i] += gap[batch.valid].sum().cpu()
            state = method(history)
            logits = model.logits(model.hidden(state, ctx)[batch.valid])
            loss[i] += F.cross_entropy(logits, batch.targets[batch.valid], reduction="sum").cpu()
        count += int(batch.valid.sum())
    return {"loss": (loss / count).tolist(), "residual": (residual / count).tolist()}
