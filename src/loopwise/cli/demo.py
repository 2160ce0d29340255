"""`loopwise demo`: measure, allocate and generate with one checkpoint, in about three minutes, and draw the report.

Without --text, half of the tokens are held-out factbook pages and half puzzles of known difficulty. Needs no network.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from loopwise import hardware
from loopwise.checkpoint.native import Checkpoint, open_checkpoint
from loopwise.cli.demo_card import card_text
from loopwise.cli.evaluation import (
    Loaded,
    Show,
    count,
    counter,
    manifest,
    open_run,
    resources,
    watching,
    write_record,
)
from loopwise.config import InputError
from loopwise.data.text import documents
from loopwise.data.tokenizer import Tokenizer
from loopwise.exit.policy import Policy
from loopwise.exit.signals import Probe
from loopwise.generate import Decoder, generate
from loopwise.measure.allocate import Settings, allocate, needs, parse_plans
from loopwise.measure.convergence import EPSILON, LATENT_EPSILON
from loopwise.measure.difficulty import Answers, by_difficulty, make_answers
from loopwise.measure.lens import make_lens
from loopwise.measure.probe import MIN_TOKENS, fit, judge, label
from loopwise.measure.stats import DRAWS
from loopwise.measure.summary import summarise
from loopwise.measure.trace import Trace, trace
from loopwise.measure.windows import Windows, pack, require_length
from loopwise.records import read_json, write_json
from loopwise.report.write import write_report
from loopwise.sampling import SamplingParams

EXAMPLE = "loopwise demo --out runs/demo"
SIGNALS = ("kl", "kl_prev", "entropy", "rel_change", "cosine", "accel")
POLICIES = "A0,kl,rel_change,accel,probe"
PUZZLE_TOKENS = 124  # predictions per puzzle, about
LIVE_SHARE = 4  # one token in so many is decoded live, at every threshold tried
PROBE_TOKENS = 4096
NEW_TOKENS = 96


class Ready(NamedTuple):
    """A loaded checkpoint with its text, the labelled answers in it (if any), and the texts that train the probe."""

    loaded: Loaded
    answers: Answers | None
    training: list[str]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("checkpoint", nargs="?", default="tiny", metavar="CKPT", help="checkpoint (default tiny)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/demo"), metavar="DIR", help="run folder, default runs/demo"
    )
    parser.add_argument("--text", action="append", metavar="FILE", help="your own text instead (repeatable)")
    parser.add_argument("--tokens", default="8k", metavar="N", help="tokens to measure (default 8k)")
    parser.add_argument("--prompt", help="text to continue (default: the beginning of the first document)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")
    parser.add_argument("--seed", type=int, default=0, help="seed of bootstrap and sampling (default 0)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, allocate, generate, write records and page."""
    out = open_run(args.out)
    assert out is not None
    ready = prepare(args)
    loaded = ready.loaded
    args.text = args.text or ["factbook", "puzzles"]
    require_length(loaded.windows, ", ".join(args.text))
    with watching(args) as show:
        measured = _measure(args, ready, show, out)
        allocated = _allocate(args, ready, show)
        made = _generate(args, ready, allocated, show)
        show("drawing", 0.0)
        about = manifest(args, "demo", loaded)
        write_record(out, "measure", measured, about)
        write_record(out, "allocate", allocated, about)
        write_json(out / "sample.json", made)
        written = write_report(out)
    return {
        "report": str(written.report),
        "out": str(out),
        "checkpoint": loaded.checkpoint.name,
        "text": args.text,
        "loss_by_depth": measured["loss_by_depth"],
        "policies": allocated["policies"],
        "measure": measured,
        "allocate": {name: value for name, value in allocated.items() if name != "policies"},
        "sample": made,
        **resources(loaded),
    }


def prepare(args: argparse.Namespace) -> Ready:
    """Open the checkpoint and choose the text."""
    started, budget = time.perf_counter(), count(args.tokens, "tokens")
    if args.threads is not None:
        if args.threads < 1:
            raise InputError(f"threads is {args.threads}: use at least 1")
        torch.set_num_threads(args.threads)
    checkpoint = open_checkpoint(args.checkpoint)
    tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    tokenizer.check_vocab(checkpoint.config.vocab_size)
    context, answers, training = _context(checkpoint), None, args.text
    pages = pack(tokenizer, documents(args.text or ["factbook"]), context=context,
                 max_tokens=budget if args.text else max(1, budget // 2))  # fmt: skip
    windows = pages
    if not args.text:
        puzzles = make_answers(tokenizer, max(8, budget // 2 // PUZZLE_TOKENS), context=context)
        windows = join(pages, puzzles.windows)
        answers = puzzles._replace(windows=windows, rows=puzzles.rows + pages.num_tokens)
        training = ["factbook:train", "puzzles:1-8:64:7"]
    model = checkpoint.model()
    return Ready(Loaded(checkpoint, tokenizer, model, windows, started), answers, training)


def _context(checkpoint: Checkpoint) -> int:
    """Window length: what the checkpoint was trained on, if its manifest says so, else what it allows."""
    path, allowed = checkpoint.folder / "manifest.json", checkpoint.config.context
    if not path.is_file():
        return allowed
    trained = (read_json(path).get("config") or {}).get("train") or {}
    return min(allowed, int(trained.get("context") or allowed))


def join(first: Windows, second: Windows) -> Windows:
    """Windows of two texts, one after the other."""
    return Windows(
        ids=first.ids + second.ids,
        document=np.concatenate([first.document, second.document + len(first.hashes)]),
        hashes=first.hashes + second.hashes,
        context=first.context,
    )


def _measure(args: argparse.Namespace, ready: Ready, show: Show, out: Path) -> dict[str, Any]:
    checkpoint, tokenizer, model, windows, _ = ready.loaded
    config, depth = checkpoint.config, min(32, checkpoint.config.max_depth)
    found = trace(model, windows, max_depth=depth, signals=SIGNALS,
                  progress=counter(show, f"1/4 tracing to depth {depth}", windows.num_tokens))  # fmt: skip
    record = {"checkpoint": checkpoint.name, "text": args.text, "context": windows.context} | summarise(
        found, tokenizer, vocab_size=config.vocab_size, mean_depth=config.mean_depth, seed=args.seed
    )
    if ready.answers:
        record["difficulty"] = by_difficulty(found, ready.answers, epsilon=EPSILON, draws=DRAWS, seed=args.seed)
    out.mkdir(parents=True, exist_ok=True)
    starts = {"kl": EPSILON, "rel_change": LATENT_EPSILON}
    make_lens(excerpt(found), tokenizer, vocab_size=config.vocab_size, starts=starts, passages=5).save(out)
    return record


def excerpt(found: Trace, pages: int = 3, others: int = 2) -> Trace:
    """A few documents for the lens: the longest (pages) and the last (puzzles, where there are any), in order."""
    document = found.index["document"]
    sizes = np.bincount(document)
    longest = np.argsort(-sizes, kind="stable")[:pages]
    chosen = sorted({*longest.tolist(), *range(max(0, len(sizes) - others), len(sizes))})
    part = found.rows(np.isin(document, chosen))
    part.index["document"] = np.searchsorted(chosen, part.index["document"]).astype(np.int32)
    return part


def _allocate(args: argparse.Namespace, ready: Ready, show: Show) -> dict[str, Any]:
    checkpoint, _, model, windows, _ = ready.loaded
    reference = max(2, min(checkpoint.config.max_depth, round(checkpoint.config.mean_depth)))
    settings = Settings(reference=reference, seed=args.seed, live_tokens=max(1024, windows.num_tokens // LIVE_SHARE))
    show("2/4 training the A2 probe", 0.0)
    probe = _probe(ready, reference)
    plans = [plan for plan in parse_plans(POLICIES) if probe is not None or plan.signal != "probe"]
    found = trace(model, windows, max_depth=reference, signals=needs(plans), probe=probe,
                  progress=counter(show, f"2/4 tracing to depth {reference}", windows.num_tokens))  # fmt: skip
    table = allocate(model, windows, found, plans, settings, modes=("replay", "live"), probe=probe,
                     progress=lambda what, share: show(f"3/4 {what}", share))  # fmt: skip
    head = {"checkpoint": checkpoint.name, "text": args.text, "documents": len(windows.hashes)}
    return head | table | {"probe": judge(found, reference) if probe is not None else {}}


def _probe(ready: Ready, reference: int) -> Probe | None:
    """A2's classifier, trained on documents that are not evaluated; None where there are too few of them."""
    _, tokenizer, model, windows, _ = ready.loaded
    used, half = frozenset(windows.hashes), PROBE_TOKENS // max(1, len(ready.training))
    parts = []
    for source in ready.training:
        try:
            parts.append(pack(tokenizer, documents([source]), context=windows.context, max_tokens=half, exclude=used))
        except InputError:
            continue
    if sum(part.num_tokens for part in parts) < MIN_TOKENS:
        return None
    training = parts[0] if len(parts) == 1 else join(*parts[:2])
    return fit(label(model, training, reference))


def _generate(args: argparse.Namespace, ready: Ready, allocated: dict[str, Any], show: Show) -> dict[str, Any]:
    """Continue a prompt live, under the free signal at the threshold that matched the reference."""
    checkpoint, tokenizer, model, windows, _ = ready.loaded
    chosen = next((r["matched"]["policy"] for r in allocated["policies"]
                   if r["signal"] == "rel_change" and r["mode"] == "live" and r["matched"]), None)  # fmt: skip
    policy = Policy.parse(chosen or f"depth={allocated['reference_depth']}")
    prompt = tokenizer.encode(args.prompt) if args.prompt else [int(i) for i in windows.ids[0][1:33]]
    limit = min(NEW_TOKENS, max(1, windows.context - len(prompt)))
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=args.seed, max_tokens=limit)
    decoder = Decoder(model, policy, length=len(prompt) + limit)
    advance = counter(show, "4/4 generating", limit)
    made = generate(decoder, prompt, params, eos=tokenizer.eos_id, on_token=lambda token: advance(1))
    return {
        "policy": str(policy),
        "prompt": args.prompt or tokenizer.decode(prompt),
        "pieces": [tokenizer.token_text(t.id) for t in made.tokens],
        "depths": [t.depth for t in made.tokens],
        "readouts": sum(t.readouts for t in made.tokens),
        "max_depth": policy.bind(checkpoint.config.max_depth).max_depth,
        "temperature": params.temperature,
        "hardware": hardware.processor(),
    }


def card(result: dict[str, Any]) -> str:
    """For people."""
    return card_text(result)
