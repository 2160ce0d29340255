"""`loopwise bench decode`: what depth-wise batching makes of saved loops, beside every scheduler it should beat.

Arms. `bare`: a loop of model calls on one batch at full depth. `masked`: the same with the study's harness, which
computes every pass and freezes the rows that would have left. `full`: token-level continuous batching in this engine,
every token to full depth. `no_refill`: rows that left wait for the slowest of their batch. `refill`: the engine as it
is. `static`: batches that end with their longest request. Parts:

- `replay`: a shape with random weights plays recorded exit depths back, so that all do identical work. Prompts are not
  run: their KV is random numbers.
- `real`: the checkpoint under a live policy, its criterion included, beside its reference depth and its best fixed one.
- `batch`: a batch of requests of mixed lengths, from first prompt to last token, beside `transformers` if installed.
- `shape`: the same on the shape with random weights, depths played back.
- `planner`: the planner alone.
"""

import argparse
import itertools
import resource
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from loopwise import hardware, records
from loopwise.checkpoint.native import open_checkpoint
from loopwise.config import InputError, ModelConfig
from loopwise.engine.bench import options, schedule
from loopwise.engine.bench.arms import Arm, BareArm, EngineArm, Timed, interleave, mean_depth, rate, ratio
from loopwise.engine.bench.batch import bench_batch, bench_shape
from loopwise.engine.bench.planner import bench_planner
from loopwise.engine.engine import Engine
from loopwise.engine.launch import Work
from loopwise.engine.llm import DTYPES, LLM
from loopwise.engine.request import EngineConfig, Request
from loopwise.exit.policy import Policy
from loopwise.model.cost import Cost
from loopwise.model.recurrent import RecurrentLM
from loopwise.sampling import SamplingParams

PARTS = ("replay", "real", "batch", "shape", "planner")


class Size(NamedTuple):
    """How much is run."""

    tokens: int  # per arm and repeat
    repeats: int
    prompt: int  # positions in the cache when decoding starts
    new: int  # most tokens of a request


FULL = {
    "replay": Size(128, 3, 256, 64),
    "real": Size(4096, 7, 24, 64),
    "batch": Size(0, 3, 32, 96),
    "shape": Size(0, 1, 16, 24),
}
QUICK = {"replay": Size(8, 2, 20, 12), "real": Size(8, 2, 4, 8), "batch": Size(0, 1, 8, 8), "shape": Size(0, 1, 8, 8)}


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `loopwise bench decode`."""
    options.configure(parser)
    parser.add_argument("--rows", type=int, default=32, metavar="N", help="rows of a launch in replay (default 32)")
    parser.add_argument("--real-rows", type=int, default=64, metavar="N", help="rows of a launch in real (default 64)")
    parser.add_argument(
        "--schedule", default="study", choices=("study", "live"),
        help="depths that replay plays back: the study's, or those that the checkpoint takes under --policy",
    )  # fmt: skip
    parser.add_argument("--policy", default="rel_change<0.236,max=8", help="live policy of the part real")
    parser.add_argument(
        "--best-fixed", type=int, default=5, metavar="N", help="best fixed depth, from allocate (default 5: tiny's)"
    )
    parser.add_argument("--criterion", default="kl<0.192,max=8", help="criterion of the masked harness in real")
    parser.add_argument("--part", action="append", choices=PARTS, help="run only this part (repeatable)")
    parser.add_argument("--quick", action="store_true", help="a small shape and few tokens: does it run at all")


def bench_decode(model: ModelConfig, args: argparse.Namespace) -> dict[str, Any]:
    """Rows, ratios, arms with all their figures, and the manifest. `model` is the shape of the part `replay`."""
    if min(args.rows, args.real_rows, args.best_fixed) < 1:
        raise InputError("--rows, --real-rows and --best-fixed are numbers of rows and passes: use at least 1")
    threads = options.settle(model, args)
    parts = {"replay": lambda: bench_replay(model, args), "real": lambda: bench_real(args)}
    parts |= {"batch": lambda: bench_batch(args, size(args, "batch")), "planner": lambda: bench_planner(args.quick)}
    parts |= {"shape": lambda: bench_shape(model, args, size(args, "shape"))}
    found: dict[str, Any] = {"rows": threads, "ratios": {}, "arms": {}}
    for name in args.part or PARTS:
        result = parts[name]()
        found["rows"] += result["rows"]
        found["ratios"] |= result["ratios"]
        found["arms"][name] = result.get("arms", {})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found["rows"].append({"name": "peak memory of the process", "value": peak / 2**20, "unit": "MiB"})
    return found | {"manifest": manifest("decode", args, model)}


def size(args: argparse.Namespace, part: str) -> Size:
    """How much to run of a part."""
    chosen = (QUICK if args.quick else FULL)[part]
    return chosen._replace(repeats=args.repeats) if args.repeats else chosen


def manifest(name: str, args: argparse.Namespace, model: ModelConfig) -> dict[str, Any]:
    """Command, configuration, hardware."""
    config = {k: v for k, v in vars(args).items() if k not in ("json", "quiet", "out", "verb", "name")}
    words = []
    for key, value in config.items():
        flag = f"--{key.replace('_', '-')}"
        each = value if isinstance(value, list) else [] if value in (None, False) else [value]
        words += [flag if v is True else f"{flag} {v}" for v in each]
    return records.manifest(
        command=f"loopwise bench {name} {' '.join(words)}",
        config={**config, "model": model.to_dict()},
        data_sha256="random tokens",
        seed=0,
        hardware=hardware.describe(),
        commit=hardware.commit(),
    )


# Replay


def bench_replay(shape: ModelConfig, args: argparse.Namespace) -> dict[str, Any]:
    """The part `replay`."""
    much, rows = size(args, "replay"), args.rows
    with torch.random.fork_rng():
        model = RecurrentLM(shape).initialise(0).eval().requires_grad_(False).to(args.device, DTYPES[args.dtype])
    kinds = {"full": {"places": rows, "min_turn": rows}, "no_refill": {"places": rows, "lockstep": True}, "refill": {}}
    engines = {name: _replaying(model, args, much, options) for name, options in kinds.items()}
    drawn = _live_depths(args, much) if args.schedule == "live" else None
    _share_memory(list(engines.values()), args.layout, much)
    pool = engines["refill"].runner.pool
    span = range(much.prompt, much.prompt + much.new)
    arms: list[Arm] = [
        BareArm("bare", model, pool, rows, span, schedule.DEEPEST, None),
        BareArm("masked", model, pool, rows, span, schedule.DEEPEST, Policy(max_depth=schedule.DEEPEST)),
        *(EngineArm(name, engine, _requests(name, shape, much, drawn)) for name, engine in engines.items()),
    ]
    timed = interleave(arms, much.tokens, much.repeats)
    keys = much.prompt + much.new / 2
    part = f"replay {rows}" if drawn is None else f"replay {rows}, live depths"
    found = figures(part, timed, Cost.of(shape), keys, "full")
    found["rows"].append(_host(part, engines["refill"]))
    return found | {"arms": {a.name: _arm(a, timed[a.name]) for a in arms}}


def _host(part: str, engine: Engine) -> dict[str, Any]:
    """Share of wall time outside launches: planning, text, events."""
    return {"name": f"{part}: host time", "value": 100 * engine.totals.as_dict()["host_share"], "unit": "%"}


def _replaying(model: RecurrentLM, args: argparse.Namespace, much: Size, options: dict[str, Any]) -> Engine:
    places, width = options.get("places", args.rows * 2), model.config.width
    config = EngineConfig(
        policy=f"depth={schedule.DEEPEST}", max_depth=schedule.DEEPEST, layout=args.layout, max_rows=args.rows,
        context=much.prompt + much.new, kv_tokens=places * -(-(much.prompt + much.new) // width) * width,
        prefix_cache=False, chunk=0, **{"places": places, **options},
    )  # fmt: skip
    engine = Engine(model, config)
    engine.runner.prefill = lambda works: _skip(engine, works)  # type: ignore[method-assign]
    return engine


def _skip(engine: Engine, works: list[Work]) -> dict[int, torch.Tensor]:
    """In place of running prompts: rows of noise, ready for their coda."""
    runner, counts = engine.runner, [len(w.tokens) for w in works]
    total = sum(counts)
    state = torch.randn(total, engine.model.config.d_model, generator=torch.Generator().manual_seed(total))
    turn = torch.zeros(2, total, runner.rows.turn.shape[2], device=runner.device)
    with torch.inference_mode():
        depth = torch.full((total,), schedule.DEEPEST, device=runner.device)
        runner._hand_over(works, counts, state.to(runner.rows.state), turn, depth)
    return {}


def _share_memory(engines: Sequence[Engine], layout: str, much: Size) -> None:
    """All engines of a replay work on the memory of the largest: what it holds does not matter, that it is there does.
    Every block of a running request is filled with noise."""
    largest = max(engines, key=lambda e: e.blocks.total)
    pool = largest.runner.pool
    generator = torch.Generator().manual_seed(0)
    for tensor in (*pool.keys, *pool.values):
        tensor.copy_(0.1 * torch.randn(tensor.shape[1:], generator=generator))
    for engine in engines:
        engine.runner.pool.keys, engine.runner.pool.values = pool.keys, pool.values
        engine.runner.pool.blocks = pool.blocks


def _live_depths(args: argparse.Namespace, much: Size) -> list[int]:
    """Depths that the checkpoint takes under the policy, text by text (first tokens are their prompts' business)."""
    model = open_checkpoint(args.checkpoint).model()
    prompts = _texts(model, size(args, "real"), 32)
    params = [SamplingParams(max_tokens=much.new, temperature=0.8, seed=n, ignore_eos=True) for n in range(32)]
    return [depth for o in LLM(model, policy=args.policy).generate(prompts, params) for depth in o.depths[1:]]


def _requests(name: str, shape: ModelConfig, much: Size, drawn: Sequence[int] | None) -> Iterator[Request]:
    """Requests of mixed lengths; `full` goes to full depth, the others play depths back (`drawn`, or the study's)."""
    for number in itertools.count():
        generator = torch.Generator().manual_seed(number)
        prompt = torch.randint(0, shape.vocab_size, (much.prompt,), generator=generator).tolist()
        new = much.new // 2 + number * 7 % (much.new // 2)
        played = schedule.recorded(drawn, much.new, number) if drawn else schedule.replay(much.new, number)
        policy = None if name == "full" else played
        yield Request(prompt=prompt, params=SamplingParams(max_tokens=new, ignore_eos=True), policy=policy)


# Real exits


def bench_real(args: argparse.Namespace) -> dict[str, Any]:
    """The part `real`."""
    checkpoint, much, rows = open_checkpoint(args.checkpoint), size(args, "real"), args.real_rows
    deepest = Policy.parse(args.policy).bind(checkpoint.config.max_depth).max_depth or 1
    options = {"max_rows": rows, "layout": args.layout, "prefill": f"depth={deepest}", "prefix_cache": False}
    lock = {"places": rows, "min_turn": rows}
    model = checkpoint.model(device=args.device, dtype=DTYPES[args.dtype])
    prompts = _texts(model, much, rows)
    engines = {
        "full": LLM(model, policy=f"depth={deepest}", **options, **lock).engine,
        "best_fixed": LLM(model, policy=f"depth={min(args.best_fixed, deepest)}", **options, **lock).engine,
        "no_refill": LLM(model, policy=args.policy, **options, places=rows, lockstep=True).engine,
        "refill": LLM(model, policy=args.policy, **options).engine,
    }
    pool = engines["refill"].runner.pool
    span = range(much.prompt, much.prompt + much.new)
    arms: list[Arm] = [
        BareArm("bare", model, pool, rows, span, deepest, None),
        BareArm("masked", model, pool, rows, span, deepest, Policy.parse(args.criterion)),
        *(EngineArm(name, engine, _continuing(prompts, much)) for name, engine in engines.items()),
    ]
    timed = interleave(arms, much.tokens, much.repeats)
    found = figures(f"real {rows}", timed, Cost.of(checkpoint.config), much.prompt + much.new / 4, "full")
    found["ratios"][f"real {rows}: refill/best_fixed"] = ratio(timed["refill"], timed["best_fixed"])
    found["rows"].append(_host(f"real {rows}", engines["refill"]))
    return found | {"arms": {a.name: _arm(a, timed[a.name]) for a in arms}}


def _texts(model: RecurrentLM, much: Size, count: int) -> list[list[int]]:
    """What the model writes itself when it starts from one token: prompts of its own kind, without a corpus."""
    seeds = [[7 * n % model.config.vocab_size] for n in range(count)]
    params = SamplingParams(max_tokens=much.prompt, temperature=0.8, seed=1, ignore_eos=True)
    return [output.tokens for output in LLM(model).generate(seeds, params)]


def _continuing(prompts: list[list[int]], much: Size) -> Iterator[Request]:
    for number in itertools.count():
        new = much.new // 2 + number * 7 % (much.new // 2)
        own = SamplingParams(max_tokens=new, temperature=0.8, seed=number, ignore_eos=True)
        yield Request(prompt=prompts[number % len(prompts)], params=own)


# Figures


def figures(part: str, timed: dict[str, list[Timed]], cost: Cost, keys: float, base: str) -> dict[str, Any]:
    """Tokens per second of every arm; speed-ups over `base`, the FLOP bound at the depth reached, and its share."""
    rows = [{"name": f"{part}: {name}", "value": rate(found), "unit": "tokens/s"} for name, found in timed.items()]
    depth, full = mean_depth(timed["refill"]), mean_depth(timed[base])  # first tokens cost no passes: they are prompts'
    bound = cost.bound(depth, full, keys=keys)
    rows.append({"name": f"{part}: mean depth", "value": depth, "unit": "passes"})
    rows.append({"name": f"{part}: FLOP bound", "value": bound, "unit": "times"})
    ratios = {f"{part}: {name}/{base}": ratio(timed[name], timed[base]) for name in timed if name not in (base, "bare")}
    reached = ratios[f"{part}: refill/{base}"]
    ratios[f"{part}: share of the bound"] = reached / bound
    ratios[f"{part}: refill/{base}, wall"] = ratio(timed["refill"], timed[base], "wall_s")
    ratios[f"{part}: overhead at full depth"] = 1 / ratio(timed["full"], timed["bare"]) - 1
    return {"rows": rows, "ratios": {k: round(v, 4) for k, v in ratios.items()}}


def _arm(arm: Arm, timed: list[Timed]) -> dict[str, Any]:
    """All figures of an arm."""
    found: dict[str, Any] = {"repeats": [t._asdict() for t in timed], "mean_depth": mean_depth(timed)}
    if isinstance(arm, EngineArm):
        stats = arm.engine.stats()
        kept = ("launches", "rows_per_launch", "seconds", "wall_s", "host_share", "exit_depths", "kv_bytes", "readouts")
        found["stats"] = {key: stats[key] for key in kept}
    return found
