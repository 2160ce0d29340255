"""`loopwise study`: the whole study on any checkpoints and corpora, each figure beside the published one."""

import argparse
import time
from pathlib import Path
from typing import Any

from loopwise.cli.evaluation import count, watching
from loopwise.config import InputError
from loopwise.store import Store
from loopwise.study.run import folder_of, provenance, study
from loopwise.study.settings import SECTIONS, Settings, quick, with_changes
from loopwise.study.subject import corpora
from loopwise.study.write import write

EXAMPLE = "loopwise study tiny --text factbook=factbook --text puzzles=puzzles --out runs/study --quick"
BUDGETS = ("tokens", "live_tokens", "train_tokens")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("checkpoints", nargs="+", metavar="CKPT", help="'tiny', a checkpoint folder, or a hub id")
    parser.add_argument("--text", action="append", required=True, metavar="NAME=SOURCE", help="a named corpus: file, folder, hub:..., factbook or puzzles (repeatable)")  # fmt: skip  # noqa: E501
    parser.add_argument("--out", type=Path, default=Path("runs/study"), metavar="DIR", help="folder for records and report (default runs/study)")  # fmt: skip  # noqa: E501
    parser.add_argument("--sections", metavar="LIST", help=f"only these, of {','.join(SECTIONS)}; others say so")
    parser.add_argument("--quick", action="store_true", help="small budgets, nothing trained but linear exits: minutes")
    parser.add_argument("--tokens", metavar="N", help="tokens to trace per corpus (default 6k; quick 2k)")
    parser.add_argument("--live-tokens", metavar="N", help="tokens to decode live per threshold (default 1.5k)")
    parser.add_argument("--train-tokens", metavar="N", help="tokens that each small model trained here sees, 0 for none (default 160k; quick 0)")  # fmt: skip  # noqa: E501
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds of each small model trained here (default 2)")
    parser.add_argument("--benchmarks", type=Path, metavar="DIR", help="records of sweeps and of the engine (default: benchmarks/results where it exists)")  # fmt: skip  # noqa: E501
    parser.add_argument("--seed", type=int, default=0, help="seed of bootstrap, permutations and samples (default 0)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure what is not recorded yet, then write the report."""
    started, settings, texts = time.perf_counter(), _settings(args), corpora(args.text)
    names = [Path(name).name for name in args.checkpoints]
    if len(set(names)) < len(names):
        raise InputError(f"checkpoints have the same name ({', '.join(names)}): records would overwrite each other")
    store = Store(folder_of(args.out), command=_command(args), seed=args.seed)
    with watching(args) as show:
        book = study(args.checkpoints, texts, settings, store, show, benchmarks=_benchmarks(args))
        show("drawing", 0.0)
        written = write(args.out, book, provenance(store, settings, book))
    return {
        "report": str(written.report),
        "out": str(args.out),
        "tables": written.tables,
        "verdicts": [v.to_dict() for v in written.verdicts],
        "missing": dict(book.missing),
        "records": {"made": len(store.made), "reused": len(store.reused)},
        "wall_s": round(time.perf_counter() - started, 1),
    }


def _benchmarks(args: argparse.Namespace) -> Path | None:
    if args.benchmarks and not args.benchmarks.is_dir():
        raise InputError(f"--benchmarks '{args.benchmarks}' is no folder: give the folder of benchmark records")
    found = args.benchmarks or Path("benchmarks/results")
    return found if found.is_dir() else None


def _settings(args: argparse.Namespace) -> Settings:
    base = quick(args.seed) if args.quick else Settings(seed=args.seed)
    given = {name: getattr(args, name) for name in BUDGETS}
    budgets = {
        name: 0 if value == "0" else count(value, name.replace("_", "-")) for name, value in given.items() if value
    }
    sections = tuple(args.sections.split(",")) if args.sections else None
    return with_changes(base, seeds=args.seeds, sections=sections, **budgets)


def _command(args: argparse.Namespace) -> str:
    """The command as a reader could repeat it, without folders of this machine."""
    texts = [f"--text {c.name}={','.join(Path(s).name for s in c.sources)}" for c in corpora(args.text)]
    names = [Path(name).name for name in args.checkpoints]
    more = ["--quick"] if args.quick else []
    for name in ("tokens", "live_tokens", "train_tokens", "seeds", "sections"):
        value = getattr(args, name)
        more += [] if value is None else [f"--{name.replace('_', '-')} {value}"]
    return " ".join(["loopwise study", *names, *texts, *more])


def card(result: dict[str, Any]) -> str:
    """For people."""
    lines = ["  quantity                              verdict   why"]
    for row in result["verdicts"]:
        lines.append(f"  {row['quantity']:<37} {row['verdict']:<9} {row['sentence']}")
    lines += [f"  not here: {text}" for text in result["missing"].values()]
    made, reused = result["records"]["made"], result["records"]["reused"]
    lines.append(f"\n  {made} records made, {reused} reused, {result['wall_s']:.0f} s; report: {result['report']}")
    return "\n".join(lines)
