"""`loopwise bench prefill`: per-token exit in prompts, and what a shared prefix saves.

- `replay`: prompts of 512 tokens on a shape with random weights; every prompt token leaves at a recorded depth and
  stops computing, beside all of them to full depth. The exits are the prefill policy's business: decoding is not timed.
- `real`: prompts of the checkpoint's own context under a live policy of the state.
- `ttft`: time to first token of a request that shares a long prefix with an earlier one, beside the first one.
"""

import argparse
import itertools
import resource
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from loopwise.checkpoint.native import open_checkpoint
from loopwise.config import ModelConfig
from loopwise.engine.bench import options, schedule
from loopwise.engine.bench.arms import Stopwatch, Timed, mean_depth, rate, ratio
from loopwise.engine.bench.decode import manifest
from loopwise.engine.engine import Engine
from loopwise.engine.llm import DTYPES
from loopwise.engine.request import EngineConfig, Request
from loopwise.exit.policy import Policy
from loopwise.model.cost import Cost
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import SamplingParams

PARTS = ("replay", "real", "ttft")
DEEPEST = schedule.DEEPEST


class Size(NamedTuple):
    """Prompt length, own tokens after a shared prefix, prompts per repeat of the part real, repeats."""

    prompt: int
    own: int
    prompts: int
    repeats: int


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `loopwise bench prefill`."""
    options.configure(parser)
    parser.add_argument("--policy", default="rel_change<0.236,max=8", help="live prefill policy of the part real")
    parser.add_argument("--part", action="append", choices=PARTS, help="run only this part (repeatable)")
    parser.add_argument("--quick", action="store_true", help="a small shape and short prompts: does it run at all")


def bench_prefill(shape: ModelConfig, args: argparse.Namespace) -> dict[str, Any]:
    """Rows, ratios, arms with all their figures, and the manifest. `shape` is what replay and ttft run on."""
    threads = options.settle(shape, args)
    much = Size(24, 4, 2, 2) if args.quick else Size(512, 16, 16, 3)
    much = much._replace(repeats=args.repeats) if args.repeats else much
    with torch.random.fork_rng():
        model = RecurrentLM(shape).initialise(0).eval().requires_grad_(False).to(args.device, DTYPES[args.dtype])
    parts = {"replay": lambda: _replay(model, args, much), "ttft": lambda: _ttft(model, args, much)}
    parts |= {"real": lambda: _real(args, much)}
    found: dict[str, Any] = {"rows": threads, "ratios": {}, "arms": {}}
    for name in args.part or PARTS:
        result = parts[name]()
        found["rows"] += result["rows"]
        found["ratios"] |= {key: round(value, 4) for key, value in result["ratios"].items()}
        found["arms"][name] = {k: [t._asdict() for t in v] for k, v in result["arms"].items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found["rows"].append({"name": "peak memory of the process", "value": peak / 2**20, "unit": "MiB"})
    return found | {"manifest": manifest("prefill", args, shape)}


def _engine(model: RecurrentLM, args: argparse.Namespace, prefill: str, positions: int, **options: Any) -> Engine:
    deepest = min(DEEPEST, model.config.max_depth)
    config = EngineConfig(
        policy=f"depth={deepest}", prefill=prefill, max_depth=deepest, layout=args.layout, max_rows=8,
        context=positions, kv_tokens=4 * (positions + model.config.width), **options,
    )  # fmt: skip
    engine = Engine(model, config)
    _first_token(engine, [0] * 8)  # warms up
    return engine


def _first_token(engine: Engine, prompt: list[int], depths: tuple[int, ...] | None = None) -> Timed:
    """One request from submission to its first token."""
    watch, passes = Stopwatch(engine.model.embedding.weight.device), engine.runner.prompt_passes
    with watch:
        engine.submit(Request(prompt=prompt, params=SamplingParams(max_tokens=1), prompt_depths=depths))
        while engine.busy:
            engine.step()
    return Timed(len(prompt), watch.wall, watch.cpu, engine.runner.prompt_passes - passes)


def _prompt(model: RecurrentLM, length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.vocab_size, (length,), generator=generator).tolist()


def _turns(arms: dict[str, Callable[[int], Timed]], repeats: int) -> dict[str, list[Timed]]:
    """Every arm in turn."""
    numbers = itertools.count()
    rounds = [{name: run(next(numbers)) for name, run in arms.items()} for _ in range(repeats)]
    return {name: [found[name] for found in rounds] for name in arms}


def _replay(model: RecurrentLM, args: argparse.Namespace, much: Size) -> dict[str, Any]:
    engine = _engine(model, args, f"depth={DEEPEST}", much.prompt, prefix_cache=False)
    arms = {
        "full": lambda n: _first_token(engine, _prompt(model, much.prompt, n)),
        "exits": lambda n: _first_token(engine, _prompt(model, much.prompt, n), schedule.depths(much.prompt, n)),
    }
    return _compared(f"replay {much.prompt}", _turns(arms, much.repeats), Cost.of(model.config), much.prompt)


def _real(args: argparse.Namespace, much: Size) -> dict[str, Any]:
    """Prompts that the model wrote itself, as long as its context."""
    model = open_checkpoint(args.checkpoint).model(device=args.device, dtype=DTYPES[args.dtype])
    length = min(much.prompt, model.config.context)
    writer = Engine(model, EngineConfig(context=length + 1))
    params = SamplingParams(max_tokens=length - 1, temperature=0.8, seed=1, ignore_eos=True)
    for number in range(much.prompts):
        writer.submit(Request(prompt=[7 * number + 1], params=params, id=str(number)))
    prompts: dict[str, list[int]] = {str(n): [7 * n + 1] for n in range(much.prompts)}
    while writer.busy:
        for event in writer.step():
            prompts[event.id].append(event.token)
    policy = str(Policy.parse(args.policy).bind(model.config.max_depth))
    deepest = Policy.parse(policy).max_depth
    engines = {
        name: _engine(model, args, prefill, length, prefix_cache=False)
        for name, prefill in {"full": f"depth={deepest}", "exits": policy}.items()
    }

    def run(engine: Engine) -> Callable[[int], Timed]:
        return lambda n: _add([_first_token(engine, prompt) for prompt in prompts.values()])

    timed = _turns({name: run(engine) for name, engine in engines.items()}, much.repeats)
    return _compared(f"real {length}", timed, Cost.of(model.config), length)


def _add(parts: list[Timed]) -> Timed:
    return Timed(*(sum(values) for values in zip(*parts, strict=True)))


def _compared(part: str, timed: dict[str, list[Timed]], cost: Cost, length: int) -> dict[str, Any]:
    rows = [{"name": f"{part}: {name}", "value": rate(found), "unit": "tokens/s"} for name, found in timed.items()]
    depth, deepest = mean_depth(timed["exits"]), mean_depth(timed["full"])

    # Of a prompt only the last position needs the head.
    def flops(d: float) -> float:
        return cost.flops(d, keys=length / 2) - 2 * cost.config.d_model * cost.config.vocab_size * (1 - 1 / length)

    bound, gain = flops(deepest) / flops(depth), ratio(timed["exits"], timed["full"])
    rows += [{"name": f"{part}: mean depth", "value": depth, "unit": "passes"}]
    rows += [{"name": f"{part}: FLOP bound", "value": bound, "unit": "times"}]
    ratios = {f"{part}: exits/full": gain, f"{part}: share of the bound": gain / bound}
    ratios[f"{part}: exits/full, wall"] = ratio(timed["exits"], timed["full"], "wall_s")
    return {"rows": rows, "ratios": ratios, "arms": timed}


def _ttft(model: RecurrentLM, args: argparse.Namespace, much: Size) -> dict[str, Any]:
    """Cold: the cache holds nothing of it. Warm: an earlier request had the same first `prompt` tokens."""
    engine = _engine(model, args, f"depth={DEEPEST}", much.prompt + much.own)

    def cold(number: int) -> Timed:
        engine.reset_prefix_cache()
        return _first_token(engine, [*_prompt(model, much.prompt, 0), *_prompt(model, much.own, number)])

    def warm(number: int) -> Timed:
        return _first_token(engine, [*_prompt(model, much.prompt, 0), *_prompt(model, much.own, number)])

    timed = _turns({"cold": cold, "warm": warm}, much.repeats)
    part = f"shared prefix of {much.prompt}"
    rows = [
        {"name": f"{part}: {name}, time to first token", "value": (much.prompt + much.own) / rate(found), "unit": "s"}
        for name, found in timed.items()
    ]
    return {"rows": rows, "ratios": {f"{part}: cold/warm": ratio(timed["warm"], timed["cold"])}, "arms": timed}
