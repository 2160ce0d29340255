"""`loopwise bench signal`: FLOPs and measured time of one check of each signal, beside one core pass and one readout.

One step of a running batch is imitated: `rows` tokens, each with its own context of `--keys` positions in a paged-like
dense cache, go through one core pass; then each signal is checked on the states that came out. All arms are
interleaved, and medians over `--repeats` rounds are stated, so that a busy machine troubles all alike.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from loopwise import hardware, records
from loopwise.config import InputError, ModelConfig
from loopwise.exit.look import FACTORS, RANK, Look, Probe
from loopwise.exit.signals import SIGNALS, Signal
from loopwise.measure.live import BatchedCache
from loopwise.model.cost import Cost
from loopwise.model.kv_layout import kv_layout
from loopwise.model.recurrent import RecurrentLM

BATCHES = (1, 16, 64)
SHAPES = ("tiny", "base-135m")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `loopwise bench signal`."""
    parser.add_argument("--shape", action="append", metavar="NAME", help="recipe whose shape is measured, with random weights (repeatable; default tiny and base-135m)")  # fmt: skip  # noqa: E501
    parser.add_argument("--batch", action="append", type=int, metavar="N", help="rows (repeatable; default 1, 16, 64)")
    parser.add_argument("--keys", type=int, default=64, metavar="N", help="context of each row (default 64)")
    parser.add_argument(
        "--repeats", type=int, default=20, metavar="N", help="rounds, each arm once in each (default 20)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")


def bench_signal(
    shapes: dict[str, ModelConfig], *, batches: tuple[int, ...], keys: int, repeats: int, device: str = "auto"
) -> dict[str, Any]:
    """Rows, ratios and the manifest. Ratios: time of a check over time of a core pass, by shape, batch and signal."""
    for name, value in (("batch", min(batches)), ("keys", keys), ("repeats", repeats)):
        if value < 1:
            raise InputError(f"--{name} is {value}: use at least 1")
    where, rows, ratios = hardware.pick_device(device), [], {}
    for shape, config in shapes.items():
        if keys >= config.context:
            raise InputError(f"--keys is {keys}: use less than {config.context}, the context of '{shape}'")
        model = RecurrentLM(config).initialise(0).to(where).eval().requires_grad_(False)
        for batch in batches:
            found = _measure(model, batch, keys, repeats)
            here = [_row(shape, config, batch, keys, name, found) for name in found]
            rows += here
            ratios |= {row["name"]: row["time_of_core_pass"] for row in here if row["arm"] != "core pass"}
    command = "loopwise bench signal" + "".join(f" --shape {s}" for s in shapes) + f" --keys {keys} --repeats {repeats}"
    return {
        "rows": rows,
        "ratios": {name: round(value, 5) for name, value in ratios.items()},
        "manifest": records.manifest(
            command=command + "".join(f" --batch {b}" for b in batches),
            config={name: config.to_dict() for name, config in shapes.items()},
            data_sha256="random weights, random tokens",
            seed=0,
            hardware=hardware.describe(),
            commit=hardware.commit(),
        ),
    }


def random_probe(config: ModelConfig, device: torch.device | str) -> Probe:
    """Fitted tensors of the right shapes: the time of a check does not depend on their values."""
    g, d = torch.Generator().manual_seed(0), config.d_model
    factors = {name: torch.randn(RANK, d, generator=g) / d for name in FACTORS}
    depths = round(config.mean_depth)
    probe = Probe(
        weight=torch.randn(depths, d, generator=g),
        bias=torch.zeros(depths),
        mean=torch.zeros(d),
        scale=torch.ones(d),
        distil_state=torch.zeros(d),
        distil_terms=torch.zeros(depths, 4),
        **factors,
    )
    return probe.to(device)


@torch.inference_mode()
def _measure(model: RecurrentLM, batch: int, keys: int, repeats: int) -> dict[str, float]:
    """Median seconds of a core pass, a readout, and a check of each signal without its readouts."""
    config, device = model.config, model.embedding.weight.device
    arms = _arms(model, batch, keys, random_probe(config, device))
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(repeats + 2):  # two rounds to warm up
        for name, arm in arms.items():
            begun = time.perf_counter()
            arm()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 2:
                taken[name].append(time.perf_counter() - begun)
    return {name: median(seconds) for name, seconds in taken.items()}


def _arms(model: RecurrentLM, batch: int, keys: int, probe: Probe) -> dict[str, Callable[[], Any]]:
    device = model.embedding.weight.device
    cache = BatchedCache(model, kv_layout("depth_indexed"), 3, batch, keys + 1)
    cache.position = keys
    rows = torch.arange(batch, device=device)
    tokens = torch.randint(0, model.config.vocab_size, (batch,), generator=torch.Generator().manual_seed(0)).to(device)
    model.rotary.reserve(keys + 1)
    e = model.prelude(tokens, cache.at(rows, 0))
    turn, states = cache.turn, [model.init_state(e, cache)]
    for depth in (1, 2, 3):
        states.append(model.core(states[-1], e, cache.at(rows, depth, turn)))
    logs = [model.coda(s, cache.at(rows, 0, turn)).log_softmax(-1) for s in states[-2:]]
    look = Look(states[3], states[2], states[1], logs[1], logs[0])

    def check(signal: Signal) -> Callable[[], Any]:
        return lambda: signal.value(look, 3, probe)

    return {
        "core pass": lambda: model.core(states[2], e, cache.at(rows, 3, turn)),
        "readout": lambda: model.coda(states[3], cache.at(rows, 0, turn)).log_softmax(-1),
        **{name: check(signal) for name, signal in SIGNALS.items()},
    }


def _row(shape: str, config: ModelConfig, batch: int, keys: int, name: str, found: dict[str, float]) -> dict[str, Any]:
    """One check (a signal that reads the output includes one readout, since each pass needs a new one): its time, its
    FLOPs per row, and both as a share of a core pass."""
    cost, signal = Cost.of(config), SIGNALS.get(name)
    whole = cost.per_pass + cost.per_pass_per_key * keys
    readout = cost.readout + cost.readout_per_key * keys
    flops, seconds = {"core pass": whole, "readout": readout}.get(name, 0), found[name]
    if signal is not None:
        flops = signal.flops(config.d_model, config.vocab_size) + (readout if signal.readouts else 0)
        seconds += found["readout"] if signal.readouts else 0.0
    return {
        "name": f"{shape} x{batch} {name}",
        "value": seconds * 1e6,
        "unit": "us",
        "shape": shape,
        "batch": batch,
        "arm": name,
        "cost": signal.cost if signal else name,
        "flops": flops,
        "flops_of_core_pass": flops / whole,
        "time_of_core_pass": seconds / found["core pass"],
    }
