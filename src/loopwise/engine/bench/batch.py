"""A batch of requests of mixed lengths, from first prompt to last token: the engine beside static batches, its own and
those of `transformers` (the same weights, exported)."""

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

from loopwise.checkpoint.hf_baseline import load_exported, static_batches
from loopwise.checkpoint.native import open_checkpoint
from loopwise.engine.bench.arms import Stopwatch, Timed, rate, ratio
from loopwise.engine.llm import LLM
from loopwise.exit.policy import Policy
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import SamplingParams

ROWS, BATCHES = 16, 4


def bench_batch(args: argparse.Namespace, much: Any) -> dict[str, Any]:
    """Tokens per second of the batch, prompts included. `transformers` is left out where it is not installed, and a
    row says so."""
    checkpoint = open_checkpoint(args.checkpoint)
    deepest = Policy.parse(args.policy).bind(checkpoint.config.max_depth).max_depth or 1
    rng = random.Random(0)
    count = ROWS * (1 if args.quick else BATCHES)
    sizes = [(rng.randint(2, much.prompt), rng.randint(max(1, much.new // 12), much.new)) for _ in range(count)]
    prompts = [[rng.randrange(checkpoint.config.vocab_size) for _ in range(length)] for length, _ in sizes]
    lengths = [new for _, new in sizes]
    model = checkpoint.model()
    arms = {
        "static": _engine(model, args, f"depth={deepest}", deepest, places=ROWS, min_turn=ROWS, static=True),
        "full": _engine(model, args, f"depth={deepest}", deepest, places=ROWS, min_turn=ROWS),
        "refill": _engine(model, args, args.policy, deepest),
    }
    runs = {name: _Run(llm, prompts, lengths) for name, llm in arms.items()}
    with tempfile.TemporaryDirectory() as folder:
        theirs = load_exported(checkpoint, Path(folder) / "model", deepest)
        timed: dict[str, list[Timed]] = {name: [] for name in [*runs, *(["transformers"] if theirs else [])]}
        for repeat in range(much.repeats + 1):  # the first warms up
            for name, run in runs.items():
                timed[name] += [run()][: bool(repeat)]
            if theirs:
                timed["transformers"] += [_theirs(theirs, prompts, lengths)][: bool(repeat)]
    return _figures(timed)


def _engine(model: RecurrentLM, args: argparse.Namespace, policy: str, deepest: int, **options: Any) -> LLM:
    return LLM(
        model, policy=policy, prefill=f"depth={deepest}", layout=args.layout, max_rows=ROWS, prefix_cache=False,
        **options,
    )  # fmt: skip


class _Run:
    """One pass over the batch."""

    def __init__(self, llm: LLM, prompts: list[list[int]], lengths: list[int]) -> None:
        self.llm, self.prompts = llm, prompts
        self.params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths]

    def __call__(self) -> Timed:
        watch = Stopwatch()
        with watch:
            found = self.llm.generate(self.prompts, self.params)
        return Timed(sum(len(o.tokens) for o in found), watch.wall, watch.cpu)


def _theirs(model: Any, prompts: list[list[int]], lengths: list[int]) -> Timed:
    """Batches in order of arrival, each until its longest is done. Only tokens that were asked for count."""
    watch = Stopwatch()
    with watch:
        static_batches(model, prompts, lengths, ROWS)
    return Timed(sum(lengths), watch.wall, watch.cpu)


def _figures(timed: dict[str, list[Timed]]) -> dict[str, Any]:
    rows = [
        {"name": f"batch {ROWS}: {name}", "value": rate(found), "unit": "tokens/s"} for name, found in timed.items()
    ]
    if "transformers" not in timed:
        rows.append({"name": "batch: transformers is not installed", "value": 0, "unit": "runs"})
    ratios = {f"batch {ROWS}: refill/{name}": ratio(timed["refill"], timed[name]) for name in timed if name != "refill"}
    if "transformers" in timed:
        ratios[f"batch {ROWS}: full/transformers"] = ratio(timed["full"], timed["transformers"])
        ratios[f"batch {ROWS}: refill/transformers, wall"] = ratio(timed["refill"], timed["transformers"], "wall_s")
    arms = {name: {"repeats": [t._asdict() for t in found]} for name, found in timed.items()}
    return {"rows": rows, "ratios": {k: round(v, 4) for k, v in ratios.items()}, "arms": arms}
