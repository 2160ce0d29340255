"""`loopwise measure`: trace every token of a text to max depth, and say where loss and tokens settle."""

import argparse
from pathlib import Path
from typing import Any

from loopwise.cli.evaluation import (
    Loaded,
    Show,
    configure_text,
    counter,
    load,
    manifest,
    open_run,
    resources,
    watching,
    write_record,
)
from loopwise.config import InputError
from loopwise.measure.convergence import EPSILON, LATENT_EPSILON
from loopwise.measure.difficulty import by_difficulty, make_answers
from loopwise.measure.lens import make_lens
from loopwise.measure.stats import DRAWS
from loopwise.measure.summary import summarise
from loopwise.measure.trace import check_depth, save_trace, trace
from loopwise.measure.windows import require_length

EXAMPLE = "loopwise measure tiny --text factbook --tokens 20k --out runs/measure"
SIGNALS = ("kl", "kl_prev", "entropy", "margin", "rel_change", "cosine", "accel")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    configure_text(parser, tokens="20k")
    parser.add_argument("--max-depth", type=int, metavar="D", help="deepest pass (default: 32, or the model's)")
    parser.add_argument("--eps", type=float, default=EPSILON, help=f"output has converged below this KL, nats (default {EPSILON:g})")  # fmt: skip  # noqa: E501
    parser.add_argument("--latent-eps", type=float, default=LATENT_EPSILON, help=f"state has converged below this relative change (default {LATENT_EPSILON:g})")  # fmt: skip  # noqa: E501
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"bootstrap draws (default {DRAWS})")
    parser.add_argument("--puzzles", type=int, default=0, metavar="N", help="also measure N puzzles of known difficulty (default 0)")  # fmt: skip  # noqa: E501
    parser.add_argument("--out", type=Path, metavar="RUN", help="run folder for records: measure.json, trace.npz, lens")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure; with --out also write records."""
    out = open_run(args.out)
    for name in ("eps", "latent_eps"):
        if not 0 < getattr(args, name) < float("inf"):
            raise InputError(f"{name.replace('_', '-')} is {getattr(args, name)}: use a positive number, e.g. 1e-3")
    if args.draws < 2 or args.puzzles < 0:
        raise InputError(f"draws is {args.draws} and puzzles {args.puzzles}: use at least 2 draws and 0 puzzles")
    loaded = load(args)
    config = loaded.checkpoint.config
    depth = min(32, config.max_depth) if args.max_depth is None else args.max_depth
    check_depth("max-depth", depth, loaded.model)
    if depth < 2:
        raise InputError(f"max-depth is {depth}: use at least 2, convergence compares passes")
    require_length(loaded.windows, ", ".join(args.text))
    with watching(args) as show:
        record = _measure(args, loaded, depth, show, out)
    record |= {"tokens_per_s": round(record["tokens"] / resources(loaded)["wall_s"], 1), **resources(loaded)}
    if out:
        write_record(out, "measure", record, manifest(args, "measure", loaded))
        record["out"] = str(out)
    return record


def _measure(args: argparse.Namespace, loaded: Loaded, depth: int, show: Show, out: Path | None) -> dict[str, Any]:
    checkpoint, tokenizer, model, windows, _ = loaded
    vocab = checkpoint.config.vocab_size
    advance = counter(show, f"tracing to depth {depth}", windows.num_tokens)
    found = trace(model, windows, max_depth=depth, signals=SIGNALS, progress=advance)
    show("summarising", 0.0)
    record = {"checkpoint": checkpoint.name, "text": args.text, "context": windows.context} | summarise(
        found,
        tokenizer,
        vocab_size=vocab,
        mean_depth=checkpoint.config.mean_depth,
        epsilon=args.eps,
        latent_epsilon=args.latent_eps,
        draws=args.draws,
        seed=args.seed,
    )
    if args.puzzles:
        record["difficulty"] = _difficulty(args, loaded, depth, show)
    if out:
        show("writing records", 0.0)
        out.mkdir(parents=True, exist_ok=True)
        save_trace(out / "trace.npz", found, vocab_size=vocab)
        starts = {"kl": args.eps, "rel_change": args.latent_eps}
        make_lens(found, tokenizer, vocab_size=vocab, starts=starts).save(out)
    return record


def _difficulty(args: argparse.Namespace, loaded: Loaded, depth: int, show: Show) -> list[dict[str, Any]]:
    answers = make_answers(loaded.tokenizer, args.puzzles, context=loaded.windows.context)
    advance = counter(show, "tracing puzzles", answers.windows.num_tokens)
    found = trace(loaded.model, answers.windows, max_depth=depth, signals=("kl",), progress=advance)
    return by_difficulty(found, answers, epsilon=args.eps, draws=args.draws, seed=args.seed)


def card(result: dict[str, Any]) -> str:
    """For people."""
    loss, ends = result["loss_by_depth"], result["loss_ci_by_depth"]
    shown = [d for d in map(str, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)) if d in loss]
    settled, latent, still = result["convergence"], result["latent_convergence"], result["saturation"]
    mean = str(round(result["mean_depth"]))
    lines = [
        f"{result['checkpoint']} on {', '.join(result['text'])}: {result['tokens']:,} tokens of "
        f"{result['documents']} documents, depths 1 to {result['max_depth']}",
        "",
        "  depth   loss, 95% CI (nats)          KL to the pass before   state change",
    ]
    for d in shown:
        kl, change = (result.get(f"{n}_by_depth", {}).get(d) for n in ("kl", "state_change"))
        tail = "" if kl is None or change is None else f"    {kl:9.2e}               {change:9.2e}"
        lines.append(f"  {d:>5}   {loss[d]:.4f}  [{ends[d][0]:.4f}, {ends[d][1]:.4f}]{tail}")
    lines += [
        "",
        f"  best depth {still['best_depth']}; useful depth {still['useful_depth']} (first within "
        f"{still['useful_within']:g} nats of it); depth {still['reference_depth']} to {result['max_depth']}: "
        f"{still['change_to_last']:+.4f} nats",
        f"  the median token's output settles at depth {settled['median']:g} (KL below {settled['threshold']:g}), "
        f"its state at {latent['median']:g} (change below {latent['threshold']:g})",
    ]
    if mean in settled["share_after"]:
        lines.append(f"  still moving after the training mean {mean}: {settled['share_after'][mean]:.1%}")
    lines += ["", "  predicted token     share   median   mean depth, 95% CI"]
    for name, row in sorted(result["by_type"].items(), key=lambda item: item[1]["mean"]):
        low, high = row["mean_ci"]
        lines.append(
            f"  {name:<17} {row['share']:7.1%} {row['median']:8g}   {row['mean']:.2f}  [{low:.2f}, {high:.2f}]"
        )
    for row in result.get("difficulty", []):
        right = row["accuracy_by_depth"]
        lines.append(f"  {row['kind']}, {row['k']} steps: right at depth " + ", ".join(
            f"{d}: {right[d]:.0%}" for d in shown) + f"; settles at {row['depth']:.1f}")  # fmt: skip
    lines.append(f"\n  {result['wall_s']:.0f} s, {result['peak_memory_bytes'] / 2**20:,.0f} MiB at most"
                 + (f", records in {result['out']}" if "out" in result else ""))  # fmt: skip
    return "\n".join(lines)
