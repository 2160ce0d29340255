"""Is depth useful, and unevenly? Loss by depth on the held-out mixture, and accuracy by depth and number of hops.

Command: `python benchmarks/tiny_elasticity.py --data DIR --out benchmarks/results/tiny-elasticity.json CHECKPOINT...`
where DIR holds the prepared sets of recipe `tiny` (see its docstring). About three minutes on one CPU core.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from loopwise import hardware, records
from loopwise.checkpoint.native import open_checkpoint
from loopwise.data.puzzles import HELD_OUT_SEED, labelled_tokens, puzzles
from loopwise.data.tokenizer import Tokenizer
from loopwise.model.context import DenseCausal
from loopwise.model.recurrent import RecurrentLM
from loopwise.recipes.catalog import recipe
from loopwise.train.inputs import open_inputs
from loopwise.train.validate import validate
from loopwise.train.world import enter

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
HOPS = 10
CLOSE = 0.01  # nats within which a fixed depth counts as good as the best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=8, help="batches of 16 windows of every held-out set")
    parser.add_argument("--puzzles", type=int, default=400)
    args = parser.parse_args()
    chosen = recipe("tiny")
    inputs = open_inputs(args.data, chosen, enter("cpu"))
    result: dict[str, Any] = {}
    for name in args.checkpoints:
        checkpoint = open_checkpoint(name)
        model = checkpoint.model(dtype=torch.float32, device="cpu")
        losses = validate(model, inputs.held_out, DEPTHS, args.batches)
        found = losses.flat() | {"useful_depth": useful_depth(losses.loss)}
        found["useful_depth_by_source"] = {source: useful_depth(loss) for source, loss in losses.loss_by_source.items()}
        result[checkpoint.name] = found | answers(model, Tokenizer.load(inputs.tokenizer), args.puzzles)
    manifest = records.manifest(
        command="python benchmarks/tiny_elasticity.py " + " ".join(Path(name).name for name in args.checkpoints),
        config={"depths": DEPTHS, "batches": args.batches, "puzzles": args.puzzles, "context": chosen.train.context},
        seed=HELD_OUT_SEED,
        data_sha256=inputs.fingerprint["data_sha256"],
        hardware=hardware.describe(),
        commit=hardware.commit(),
    )
    records.write_json(args.out, {"manifest": manifest, "checkpoints": result})


def useful_depth(loss: dict[int, float]) -> int:
    """First fixed depth whose loss is within `CLOSE` of the best."""
    return min(depth for depth, value in loss.items() if value <= min(loss.values()) + CLOSE)


@torch.no_grad()
def answers(model: RecurrentLM, tokenizer: Tokenizer, count: int) -> dict[str, Any]:
    """Accuracy by hops and depth, and the mean depth from which an answer no longer changes, on held-out puzzles."""
    right: dict[int, torch.Tensor] = defaultdict(lambda: torch.zeros(DEPTHS[-1]))
    asked: dict[int, int] = defaultdict(int)
    settled: dict[int, int] = defaultdict(int)
    held = list(puzzles(HELD_OUT_SEED, count, max_difficulty=HOPS))
    for start in range(0, count, 32):
        part = held[start : start + 32]
        tokens = torch.tensor([tokenizer.encode(puzzle.text) for puzzle in part])
        labels = labelled_tokens(tokenizer, part)
        rows, places = (torch.tensor(column) for column in zip(*[(x.puzzle, x.token) for x in labels], strict=True))
        guesses = torch.stack([logits[rows, places - 1].argmax(-1) for logits in readouts(model, tokens)])
        correct = (guesses == tokens[rows, places]).float()
        same = (guesses == guesses[-1]).flip(0).cumprod(0).sum(0)
        for column, label in enumerate(labels):
            right[label.difficulty] += correct[:, column]
            asked[label.difficulty] += 1
            settled[label.difficulty] += DEPTHS[-1] + 1 - int(same[column])
    hops = sorted(asked)
    accuracy = {
        str(k): {str(d): round(float(right[k][d - 1]) / asked[k], 4) for d in range(1, DEPTHS[-1] + 1)} for k in hops
    }
    return {
        "questions_by_hops": {str(k): asked[k] for k in hops},
        "accuracy_by_hops_and_depth": accuracy,
        "mean_depth_of_last_change_by_hops": {str(k): round(settled[k] / asked[k], 3) for k in hops},
    }


def readouts(model: RecurrentLM, tokens: torch.Tensor):
    """Logits after 1, 2, ... passes."""
    context = DenseCausal.over(tokens)
    injected = model.prelude(tokens, context)
    state = model.init_state(injected, context)
    for depth in range(1, DEPTHS[-1] + 1):
        context.depth = depth
        state = model.core(state, injected, context)
        yield model.coda(state, context)


if __name__ == "__main__":
    main()
