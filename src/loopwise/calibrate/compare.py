"""`loopwise bench exit`: every exit signal and schedule on the same tokens, in replay and live, checks paid for.

*Matched quality* as in `measure/frontier.py`: the threshold with the smallest mean depth whose loss is within the
tolerance of the reference depth's. Set beside it: how well exit depths agree with A1's at *its* matched threshold, the
net FLOPs, and the wall time of decoding the same windows side by side with the reference depth and the best fixed one.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopwise import hardware, records
from loopwise.calibrate.families import CANDIDATES, LIVE, candidate_kl
from loopwise.calibrate.fit import fit_probe
from loopwise.calibrate.net import net
from loopwise.calibrate.table import Arena, table
from loopwise.checkpoint.native import Checkpoint, open_checkpoint
from loopwise.config import InputError, ModelConfig
from loopwise.data.text import documents
from loopwise.data.tokenizer import Tokenizer
from loopwise.measure.frontier import Ground
from loopwise.measure.trace import trace
from loopwise.measure.windows import Windows, pack
from loopwise.model.cost import Cost
from loopwise.store import Store

VERSION = 1  # of the tables; a new one makes kept tables stale
DECIDES = ("fit_text", "fit_tokens", "live_tokens", "live_policies", "wall_tokens", "repeats", "tolerance")
SHAPE = "base-135m"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `loopwise bench exit`."""
    parser.add_argument("--checkpoint", action="append", metavar="CKPT", help="repeatable (default tiny)")
    parser.add_argument("--text", action="append", metavar="NAME=SOURCE[+SOURCE]", help="text to compare on (repeatable; default trained=factbook+puzzles)")  # fmt: skip  # noqa: E501
    parser.add_argument("--fit-text", default="factbook:train+puzzles:4-10:60:7", metavar="SOURCE[+SOURCE]", help="text to fit Fisher factors, regression and A2 on; never evaluated")  # fmt: skip  # noqa: E501
    parser.add_argument("--fit-tokens", type=int, default=8192, metavar="N")
    parser.add_argument("--tokens", type=int, default=16384, metavar="N", help="tokens traced per text")
    parser.add_argument("--live-tokens", type=int, default=4096, metavar="N", help="tokens decoded live per threshold; 0: replay only")  # fmt: skip  # noqa: E501
    parser.add_argument("--live-policies", default=",".join(LIVE), metavar="LIST", help="families to decode live (default: all signals, three schedules)")  # fmt: skip  # noqa: E501
    parser.add_argument("--wall-tokens", type=int, default=2048, metavar="N", help="tokens of the timed decodings")
    parser.add_argument("--repeats", type=int, default=2, metavar="N", help="timed decodings of each policy")
    parser.add_argument("--tolerance", type=float, default=0.01, metavar="NATS")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder that keeps finished tables, so that a run that was cut off goes on")  # fmt: skip  # noqa: E501


def bench_exit(args: argparse.Namespace, shape: ModelConfig) -> dict[str, Any]:
    """Rows, ratios and the manifest; `tables` holds one table per checkpoint and text, `net` the arithmetic on the
    study's shape."""
    texts = dict(_named(t) for t in args.text or ["trained=factbook+puzzles"])
    pairs = [(name, label, sources) for name in args.checkpoint or ["tiny"] for label, sources in texts.items()]
    store = Store(args.cache, command="loopwise bench exit", seed=0) if args.cache else None
    tables = [_table(args, store, f"{place} of {len(pairs)}", *pair) for place, pair in enumerate(pairs, 1)]
    rows = []
    for found in tables:
        head = f"{found['checkpoint']} {found['text']}"
        for row in found["rows"]:
            if row["matched"]:
                depth = row["matched"]["mean_depth"]
                rows.append({"name": f"{head} {row['mode']} {row['name']}", "value": depth, "unit": "passes"})
    hidden = {"out", "json", "quiet", "cache", "text", "fit_text"}
    values = {name: value for name, value in vars(args).items() if name not in hidden}
    values |= {"text": {t["text"]: t["sources"] for t in tables}, "fit_text": args.fit_text}
    return {
        "rows": rows,
        "ratios": {},
        "tables": tables,
        "net": net(shape),
        "manifest": records.manifest(
            command="loopwise bench exit",
            config=values,
            data_sha256=" ".join(t["data_sha256"] for t in tables),
            seed=0,
            hardware=hardware.describe(),
            commit=hardware.commit(),
        ),
    }


def _table(
    args: argparse.Namespace, store: Store | None, place: str, name: str, label: str, sources: list[str]
) -> dict[str, Any]:
    """One checkpoint on one text, from the store if it is there."""
    checkpoint, begun = open_checkpoint(name), time.monotonic()
    about, windows = _about(checkpoint, label, sources, args.tokens)

    def note(what: str) -> None:
        if not args.quiet:
            print(f"{place}: {name} on {label}, {time.monotonic() - begun:,.0f} s: {what}", file=sys.stderr)

    def made() -> dict[str, Any]:
        return table(_arena(args, checkpoint, windows, about["reference_depth"], note), args, note)

    key = about | {key: getattr(args, key) for key in DECIDES} | {"version": VERSION, "text": windows.digest}
    return about | (store.get(f"{checkpoint.name}-{label}", key, made) if store else made())


def _named(text: str) -> tuple[str, list[str]]:
    name, equals, sources = text.partition("=")
    if not equals or not name or not sources:
        raise InputError(f"--text '{text}': give NAME=SOURCE, e.g. trained=factbook+puzzles")
    return name, sources.split("+")


def _about(checkpoint: Checkpoint, label: str, sources: list[str], tokens: int) -> tuple[dict[str, Any], Windows]:
    config = checkpoint.config
    tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    windows = pack(tokenizer, documents(sources), context=config.context, max_tokens=tokens)
    about = {
        "checkpoint": checkpoint.name,
        "weights_sha256": checkpoint.digest,
        "text": label,
        "sources": [Path(s).name for s in sources],
        "tokens": windows.num_tokens,
        "documents": len(windows.hashes),
        "data_sha256": windows.digest,
        "reference_depth": max(3, min(config.max_depth, round(max(config.mean_depth, 8)))),
        "training_mean": config.mean_depth,
    }
    return about, windows


def _arena(
    args: argparse.Namespace, checkpoint: Checkpoint, windows: Windows, reference: int, note: Callable[[str], None]
) -> Arena:
    """Fit on other documents, trace, and weigh: what a table needs."""
    model, config = checkpoint.model(), checkpoint.config
    training = pack(Tokenizer.load(checkpoint.tokenizer_path), documents(args.fit_text.split("+")),
                    context=config.context, max_tokens=args.fit_tokens, exclude=frozenset(windows.hashes))  # fmt: skip
    note("fitting probes")
    probe = fit_probe(model, training, reference, progress=lambda what, share: None)
    note("tracing")
    found = trace(model, windows, max_depth=reference, probe=probe)
    columns = {**found.columns, CANDIDATES: candidate_kl(model, windows, reference)}
    found = dataclasses.replace(found, columns=columns)
    ground = Ground.of(found, Cost.of(config), reference=reference, tolerance=args.tolerance, draws=1000, seed=0)
    return Arena(model, windows, found, probe, ground)
