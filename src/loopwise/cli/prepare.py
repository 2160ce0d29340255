"""`loopwise prepare`: train or load a tokenizer and write token shards."""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from loopwise.data.prepare import prepare
from loopwise.data.split import HOLDOUT

EXAMPLE = "loopwise prepare --text books/ --text notes.txt --out data --vocab 4096"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument(
        "--text",
        action="append",
        required=True,
        metavar="SOURCE",
        help=".txt, .jsonl(.gz) or .parquet file, a folder of those, hub:org/name[:config][:split], factbook:train; "
        "repeatable",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where tokenizer.json, train/ and valid/ go"
    )
    parser.add_argument(
        "--tokenizer", metavar="T", help="a tokenizer.json, its folder, or a hub id hub:org/name (default: train one)"
    )
    parser.add_argument(
        "--vocab", type=int, default=4096, metavar="N", help="size of a trained tokenizer (default 4096)"
    )
    parser.add_argument(
        "--holdout",
        type=float,
        default=HOLDOUT,
        metavar="F",
        help=f"share of documents held out, by hash (default {HOLDOUT})",
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the shards."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("encoding: {task.completed:,.0f} bytes of text"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=args.quiet or not sys.stderr.isatty()) as bar:
        task = bar.add_task("encoding", total=None)
        result = prepare(
            args.text,
            args.out,
            tokenizer=args.tokenizer,
            vocab_size=args.vocab,
            holdout=args.holdout,
            progress=lambda done: bar.update(task, completed=done),
        )
    return dataclasses.asdict(result)


def card(result: dict[str, Any]) -> str:
    """For people."""
    return "\n".join(
        (
            f"{result['tokens']:,} tokens from {result['documents']:,} documents in {result['folder']}",
            f"  tokenizer   {result['vocab_size']:,} tokens, {result['tokenizer']}",
            f"  held out    {result['valid_tokens']:,} tokens of {result['valid_documents']:,} documents",
            f"  sha256      {result['sha256']}",
        )
    )
