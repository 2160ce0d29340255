"""What `bench decode` and `bench prefill` both can be told."""

import argparse

from loopwise.engine.llm import DTYPES


def configure(parser: argparse.ArgumentParser) -> None:
    """Shape, checkpoint and where it runs."""
    parser.add_argument("--recipe", default="base-135m", metavar="NAME", help="shape to replay on (default base-135m)")
    parser.add_argument(
        "--checkpoint", default="tiny", metavar="CKPT", help="checkpoint with real exits (default tiny)"
    )
    parser.add_argument("--layout", default="depth_indexed", help="KV layout (default depth_indexed)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="OpenMP threads (default 1)")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of weights and KV (default float32)")
    parser.add_argument("--repeats", type=int, metavar="N", help="repeats of every arm, interleaved")
