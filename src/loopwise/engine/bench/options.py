"""What `bench decode` and `bench prefill` both can be told."""

import argparse
import os
import time

import torch

from loopwise import hardware
from loopwise.config import ModelConfig
from loopwise.engine.llm import DTYPES


def configure(parser: argparse.ArgumentParser) -> None:
    """Shape, checkpoint and where it runs."""
    parser.add_argument("--recipe", default="base-135m", metavar="NAME", help="shape to replay on (default base-135m)")
    parser.add_argument(
        "--checkpoint", default="tiny", metavar="CKPT", help="checkpoint with real exits (default tiny)"
    )
    parser.add_argument("--layout", default="depth_indexed", help="KV layout (default depth_indexed)")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="OpenMP threads (default 1; 0: the fastest, measured)",
    )
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of weights and KV (default float32)")
    parser.add_argument("--repeats", type=int, metavar="N", help="repeats of every arm, interleaved")


def settle(shape: ModelConfig, args: argparse.Namespace) -> list[dict[str, float | str]]:
    """Set the threads that torch uses, and check the device. With `--threads 0` the fastest number of them for the
    products of a launch is measured and put into `args`; rows say what was measured."""
    hardware.pick_device(args.device)
    rows = []
    if not args.threads:
        found = {n: _products_ms(shape, n) for n in range(1, (os.cpu_count() or 1) + 1)}
        args.threads = min(found, key=lambda n: found[n])
        rows = [{"name": f"products of 32 rows, {n} threads", "value": ms, "unit": "ms"} for n, ms in found.items()]
    torch.set_num_threads(args.threads)
    return rows


def _products_ms(shape: ModelConfig, threads: int) -> float:
    """Median wall time of the matrix products of one core block for 32 rows."""
    torch.set_num_threads(threads)
    d, ff = shape.d_model, shape.core_d_ff or shape.d_ff
    weights = [torch.ones(size) for size in ((d, 3 * d), (d, d), (d, 2 * ff), (ff, d))]
    inputs = [torch.ones(32, len(weight)) for weight in weights]
    spent = []
    for _ in range(20):
        begun = time.perf_counter()
        for given, weight in zip(inputs, weights, strict=True):
            torch.mm(given, weight)
        spent.append(1e3 * (time.perf_counter() - begun))
    return sorted(spent)[len(spent) // 2]
