"""What `measure`, `allocate` and `score` share: arguments for checkpoint and text, loading, progress, run folders."""

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from loopwise import hardware, records
from loopwise.checkpoint.native import Checkpoint, open_checkpoint
from loopwise.config import InputError
from loopwise.data.text import documents
from loopwise.data.tokenizer import Tokenizer
from loopwise.measure.windows import Windows, pack
from loopwise.model.recurrent import RecurrentLM

Show = Callable[[str, float], None]


class Loaded(NamedTuple):
    """A checkpoint ready to run, and the text to run it on."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    model: RecurrentLM
    windows: Windows
    started: float


def configure_text(parser: argparse.ArgumentParser, *, tokens: str) -> None:
    """Arguments for checkpoint, text and machine; `tokens` is the default budget."""
    parser.add_argument("checkpoint", metavar="CKPT", help="'tiny', a checkpoint folder, or a hub id org/name")
    parser.add_argument("--text", action="append", required=True, metavar="SOURCE", help="file, folder, hub:..., factbook or puzzles (repeatable)")  # fmt: skip  # noqa: E501
    parser.add_argument("--split", choices=("all", "train", "valid"), default="all", help="use only the documents on one side of the hash split (valid: what 'loopwise prepare' holds out)")  # fmt: skip  # noqa: E501
    parser.add_argument("--tokens", default=tokens, metavar="N", help=f"tokens to evaluate, spread over documents, e.g. 100k, or 'all' (default {tokens})")  # fmt: skip  # noqa: E501
    parser.add_argument("--context", type=int, metavar="N", help="window length (default: the model's context)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")


def load(args: argparse.Namespace) -> Loaded:
    """Open the checkpoint and read the text; everything wrong with either raises `InputError`."""
    started = time.perf_counter()
    checkpoint = open_checkpoint(args.checkpoint)
    config = checkpoint.config
    context = config.context if args.context is None else args.context
    if not 2 <= context <= config.context:
        raise InputError(f"context is {context}: use 2 to {config.context}, this model's context")
    if args.threads is not None:
        if args.threads < 1:
            raise InputError(f"threads is {args.threads}: use at least 1")
        torch.set_num_threads(args.threads)
    budget = None if args.tokens == "all" else count(args.tokens, "tokens")
    tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    tokenizer.check_vocab(config.vocab_size)
    model = checkpoint.model(device=hardware.pick_device(args.device))
    texts = documents(args.text, split=args.split)
    windows = pack(tokenizer, texts, context=context, max_tokens=budget)
    return Loaded(checkpoint, tokenizer, model, windows, started)


def count(text: str, name: str) -> int:
    """A positive integer such as 20000, 20k or 1.5M."""
    scale = {"k": 10**3, "m": 10**6, "g": 10**9}.get(text[-1:].lower(), 1)
    try:
        found = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        found = 0.0
    if not 1 <= found < 1e15:
        raise InputError(f"{name} is '{text}': use a positive number such as 20000, 20k or 1.5M, or 'all'")
    return int(found)


@contextmanager
def watching(args: argparse.Namespace) -> Iterator[Show]:
    """A bar on stderr: call the result with what is being worked on and the share of it that is done."""
    shown = not args.quiet and sys.stderr.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def show(what: str, share: float) -> None:
            if bar.tasks[0].description != what:
                bar.reset(task, total=1.0, description=what)
            bar.update(task, completed=share)

        yield show


def counter(show: Show, what: str, total: int) -> Callable[[int], None]:
    """Turn "so many more" into shares for `show`."""
    done = [0]

    def advance(more: int) -> None:
        done[0] += more
        show(what, done[0] / total)

    return advance


def manifest(args: argparse.Namespace, command: str, loaded: Loaded) -> dict[str, Any]:
    """Where a record comes from: command with its arguments, commit, model and text digests, hardware, time taken."""
    values = {name: str(v) if isinstance(v, Path) else v for name, v in vars(args).items() if name not in _OUTPUT}
    found = records.manifest(
        command=f"loopwise {command}",
        config={"arguments": values, "model": loaded.checkpoint.config.to_dict()},
        data_sha256=loaded.windows.digest,
        seed=args.seed,
        hardware=hardware.describe(),
        commit=hardware.commit(),
    )
    return found | {
        "checkpoint": loaded.checkpoint.name,
        "weights_sha256": loaded.checkpoint.digest,
        "tokenizer_sha256": loaded.tokenizer.digest,
        **resources(loaded),
    }


_OUTPUT = ("json", "quiet", "out")


def resources(loaded: Loaded) -> dict[str, float]:
    """Wall time since loading began, and the peak memory of the process, libraries included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"wall_s": round(time.perf_counter() - loaded.started, 2), "peak_memory_bytes": peak}


def write_record(out: Path, name: str, record: dict[str, Any], about: dict[str, Any]) -> None:
    """Write `NAME.json` into a run folder and add its manifest to `manifest.json` (one entry per command)."""
    path = out / "manifest.json"
    runs = records.read_json(path).get("runs", {}) if path.is_file() else {}
    records.write_json(out / f"{name}.json", record)
    records.write_json(path, {"schema": records.SCHEMA, "runs": {**runs, name: about}})


def open_run(out: Path | None) -> Path | None:
    """The run folder, checked before hours of work: it must be a folder or not exist yet."""
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out '{out}' is a file: give a folder")
    return out
