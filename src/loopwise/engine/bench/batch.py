"""A batch of requests of mixed lengths, from first prompt to last token: the engine beside static batches, its own and
those of `transformers` (the same weights, exported).

Launches have at most as many rows as a static batch; `refill` keeps four times as many requests in progress, so that
launches stay full, and `refill 32` may also launch twice as many rows."""

import argparse
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from loopwise.checkpoint.hf_baseline import load_exported, static_batches
from loopwise.checkpoint.native import Checkpoint, open_checkpoint, save
from loopwise.config import ModelConfig
from loopwise.engine.bench import schedule
from loopwise.engine.bench.arms import Stopwatch, Timed, rate, ratio
from loopwise.engine.llm import LLM, Choice
from loopwise.exit.policy import Policy
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import SamplingParams

ROWS = 16


def bench_batch(args: argparse.Namespace, much: Any) -> dict[str, Any]:
    """The checkpoint under its live policy."""
    checkpoint = open_checkpoint(args.checkpoint)
    deepest = Policy.parse(args.policy).bind(checkpoint.config.max_depth).max_depth or 1
    count = ROWS if args.quick else 4 * ROWS
    return _compare(f"batch {ROWS}", checkpoint, args.layout, much, count, deepest, lambda number: args.policy)


def bench_shape(shape: ModelConfig, args: argparse.Namespace, much: Any) -> dict[str, Any]:
    """The shape with random weights, exit depths played back."""
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
        save(Path(folder) / "shape", RecurrentLM(shape).initialise(0).eval().requires_grad_(False))
        checkpoint, deepest = open_checkpoint(str(Path(folder) / "shape")), min(schedule.DEEPEST, shape.max_depth)
        return _compare(
            f"shape, batch {ROWS}", checkpoint, args.layout, much, 2 * ROWS, deepest,
            lambda number: schedule.replay(much.new, number),
        )  # fmt: skip


def _compare(
    part: str, checkpoint: Checkpoint, layout: str, much: Any, count: int, deepest: int, exits: Callable[[int], Choice]
) -> dict[str, Any]:
    """Tokens per second of `count` requests, prompts included. `transformers` is left out where it is not installed,
    and a row says so."""
    rng = random.Random(0)
    sizes = [(rng.randint(2, much.prompt), rng.randint(max(1, much.new // 12), much.new)) for _ in range(count)]
    prompts = [[rng.randrange(checkpoint.config.vocab_size) for _ in range(length)] for length, _ in sizes]
    lengths = [new for _, new in sizes]
    model, full = checkpoint.model(), [f"depth={deepest}"] * count
    own = [exits(number) for number in range(count)]
    context = max(prompt + new for prompt, new in sizes)

    def engine(**options: Any) -> LLM:
        return LLM(
            model, policy=f"depth={deepest}", prefill=f"depth={deepest}", max_depth=deepest, layout=layout,
            context=context, prefix_cache=False, **{"max_rows": ROWS, **options},
        )  # fmt: skip

    runs = {
        "full": _Run(engine(places=ROWS, min_turn=ROWS), prompts, lengths, full),
        "refill": _Run(engine(places=4 * ROWS), prompts, lengths, own),
        "refill 32": _Run(engine(places=4 * ROWS, max_rows=2 * ROWS), prompts, lengths, own),
    }
    if much.repeats > 1:
        runs["static"] = _Run(engine(places=ROWS, min_turn=ROWS, static=True), prompts, lengths, full)
    with tempfile.TemporaryDirectory() as folder:
        theirs = load_exported(checkpoint, Path(folder) / "model", deepest)
        timed: dict[str, list[Timed]] = {name: [] for name in [*runs, *(["transformers"] if theirs else [])]}
        warm = 1 if much.repeats > 1 else 0  # a single repeat is for what runs long
        for repeat in range(much.repeats + warm):
            for name, run in runs.items():
                timed[name] += [run()][: repeat >= warm]
            if theirs:
                timed["transformers"] += [_theirs(theirs, prompts, lengths)][: repeat >= warm]
    found = _figures(part, timed)
    for name, run in runs.items():
        found["arms"][name]["stats"] = {k: run.llm.stats()[k] for k in ("launches", "rows_per_launch", "seconds")}
    return found


class _Run:
    """One pass over the batch."""

    def __init__(self, llm: LLM, prompts: list[list[int]], lengths: list[int], policies: Sequence[Choice]) -> None:
        self.llm, self.prompts, self.policies = llm, prompts, policies
        self.params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths]

    def __call__(self) -> Timed:
        watch = Stopwatch()
        with watch:
            found = self.llm.generate(self.prompts, self.params, self.policies)
        return Timed(sum(len(o.tokens) for o in found), watch.wall, watch.cpu)


def _theirs(model: Any, prompts: list[list[int]], lengths: list[int]) -> Timed:
    """Batches in order of arrival, each until its longest is done. Only tokens that were asked for count."""
    watch = Stopwatch()
    with watch:
        static_batches(model, prompts, lengths, ROWS)
    return Timed(sum(lengths), watch.wall, watch.cpu)


def _figures(part: str, timed: dict[str, list[Timed]]) -> dict[str, Any]:
    rows = [{"name": f"{part}: {name}", "value": rate(found), "unit": "tokens/s"} for name, found in timed.items()]
    if "transformers" not in timed:
        rows.append({"name": f"{part}: transformers is not installed", "value": 0, "unit": "runs"})
    ratios = {f"{part}: refill/{name}": ratio(timed["refill"], timed[name]) for name in timed if name != "refill"}
    if "transformers" in timed:
        theirs = timed["transformers"]
        ratios[f"{part}: refill/transformers, wall"] = ratio(timed["refill"], theirs, "wall_s")
        ratios |= {f"{part}: {name}/transformers": ratio(timed[name], theirs) for name in ("full", "refill 32")}
    arms = {name: {"repeats": [t._asdict() for t in found]} for name, found in timed.items()}
    return {"rows": rows, "ratios": {k: round(v, 4) for k, v in ratios.items()}, "arms": arms}
