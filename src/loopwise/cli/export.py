"""`loopwise export`: write a checkpoint for another tool."""

import argparse
from pathlib import Path
from typing import Any

from loopwise.checkpoint.foreign import to_foreign
from loopwise.checkpoint.hf_export import to_hf
from loopwise.checkpoint.native import open_checkpoint
from loopwise.config import InputError

EXAMPLE = "loopwise export tiny --format hf --out runs/tiny-hf"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("checkpoint", metavar="CKPT", help="'tiny', a checkpoint folder, or a hub id org/name")
    parser.add_argument(
        "--format",
        choices=("hf", "native-source"),
        default="hf",
        help="hf: transformers remote code, vLLM; native-source: the format it was imported from, tensor for tensor",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--num-steps", type=int, help="hf: depth it runs at by default (default: the training mean)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the folder."""
    checkpoint = open_checkpoint(args.checkpoint)
    if args.format == "native-source" and args.num_steps is not None:
        raise InputError(f"argument '--num-steps' is {args.num_steps}: it belongs to --format hf: leave it out")
    if args.format == "hf":
        out = to_hf(checkpoint, args.out, num_steps=args.num_steps)
    else:
        out = to_foreign(checkpoint, args.out)
    files = sorted(path.name for path in out.iterdir())
    return {
        "checkpoint": checkpoint.name,
        "family": checkpoint.config.family,
        "format": args.format,
        "out": str(out),
        "files": files,
    }


def card(result: dict[str, Any]) -> str:
    """For people."""
    return f"{result['checkpoint']} ({result['family']}) as {result['format']}: {result['out']}\n  " + ", ".join(
        result["files"]
    )
