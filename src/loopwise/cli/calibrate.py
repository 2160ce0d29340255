"""`loopwise calibrate`: tiers whose loss of quality is bounded at a stated confidence."""

import argparse
from pathlib import Path
from typing import Any, get_args

from loopwise import records
from loopwise.calibrate.calibrate import Request, calibrate, check, enough
from loopwise.calibrate.fit import fit_probe
from loopwise.calibrate.sample import Risk, Sample
from loopwise.cli.evaluation import Loaded, Show, configure_text, count, counter, load, manifest, resources, watching
from loopwise.config import InputError
from loopwise.data.text import documents
from loopwise.exit.policy import Policy
from loopwise.exit.signals import Probe, require
from loopwise.measure.allocate import Mode
from loopwise.measure.probe import save_probe
from loopwise.measure.trace import check_depth, trace
from loopwise.measure.windows import Windows, pack
from loopwise.model.kv_layout import LAYOUTS

EXAMPLE = "loopwise calibrate tiny --text factbook --text puzzles --tolerance 0.02 --out tiers.json"
SIGNAL = "rel_change"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    configure_text(parser, tokens="30k")
    parser.add_argument("--tolerance", type=float, default=0.01, help="the most that may be lost against the reference depth, nats per token or share (default 0.01); economy may lose all of it, balanced half, quality a quarter")  # fmt: skip  # noqa: E501
    parser.add_argument("--confidence", type=float, default=0.95, help="of each tier's promise (default 0.95)")
    parser.add_argument("--risk", choices=get_args(Risk), default="loss", help="what is lost: nats per token, or first choices that differ")  # fmt: skip  # noqa: E501
    parser.add_argument("--signal", default=SIGNAL, metavar="S", help=f"signal to find thresholds for, with options: 'kl,min=2' (default {SIGNAL})")  # fmt: skip  # noqa: E501
    parser.add_argument("--reference-depth", type=int, metavar="D", help="uniform depth to compare with (default: the training mean)")  # fmt: skip  # noqa: E501
    parser.add_argument("--mode", choices=get_args(Mode), default="live", help="what is promised: decoding (live), or replay of a trace (quicker)")  # fmt: skip  # noqa: E501
    parser.add_argument("--layout", default="depth_indexed", help="KV layout that will serve: " + ", ".join(LAYOUTS))
    parser.add_argument("--fit-text", action="append", default=[], metavar="SOURCE", help="first fit the tensors that fitted signals read on this text, which is then not calibrated on; written to probe.safetensors beside --out (repeatable)")  # fmt: skip  # noqa: E501
    parser.add_argument("--fit-tokens", default="8k", metavar="N", help="tokens to fit on (default 8k)")
    parser.add_argument("--check-text", action="append", default=[], metavar="SOURCE", help="another text to try the tiers on (repeatable)")  # fmt: skip  # noqa: E501
    parser.add_argument("--check-tokens", default="10k", metavar="N", help="tokens of each (default 10k)")
    parser.add_argument("--out", type=Path, default=Path("tiers.json"), metavar="FILE", help="file or checkpoint folder to write to (default tiers.json)")  # fmt: skip  # noqa: E501


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Calibrate and write the tiers."""
    signal = _signal(args.signal)
    request = Request(
        tolerance=args.tolerance,
        confidence=args.confidence,
        signal=signal,
        risk=args.risk,
        mode=args.mode,
        layout=args.layout,
    )
    loaded, budget = load(args), count(args.check_tokens, "check-tokens")
    mean = max(2, min(loaded.checkpoint.config.max_depth, round(loaded.checkpoint.config.mean_depth)))
    reference = mean if args.reference_depth is None else args.reference_depth
    check_depth("reference-depth", max(2, reference), loaded.model)
    enough(len(loaded.windows.hashes), request)
    with watching(args) as show:
        probe = _probe(args, loaded, reference, show)
        require(signal, signal.reads, probe)
        sample = _sample(loaded, loaded.windows, reference, signal, probe, show)
        record = calibrate(loaded.model, sample, request, probe=probe, progress=show)
        record["checks"] = {}
        for source in args.check_text:
            windows = pack(loaded.tokenizer, documents([source]), context=loaded.windows.context, max_tokens=budget)
            other = _sample(loaded, windows, reference, signal, probe, show)
            record["checks"][_label(source)] = check(loaded.model, other, record, probe=probe)
    record |= {
        "checkpoint": loaded.checkpoint.name,
        "weights_sha256": loaded.checkpoint.digest,
        "text": [_label(source) for source in args.text],
        "manifest": manifest(_without_folders(args), "calibrate", loaded),
    }
    path = args.out / "tiers.json" if args.out.is_dir() else args.out
    records.write_json(path, record)
    return record | {"out": str(path)} | resources(loaded)


def _probe(args: argparse.Namespace, loaded: Loaded, reference: int, show: Show) -> Probe | None:
    """The checkpoint's fitted tensors, or new ones, which are written beside the tiers."""
    if not args.fit_text:
        return loaded.checkpoint.probe()
    texts, budget = documents(args.fit_text), count(args.fit_tokens, "fit-tokens")
    apart = frozenset(loaded.windows.hashes)
    windows = pack(loaded.tokenizer, texts, context=loaded.windows.context, max_tokens=budget, exclude=apart)
    probe = fit_probe(loaded.model, windows, reference, progress=show)
    folder = args.out if args.out.is_dir() else args.out.parent
    about = {"weights_sha256": loaded.checkpoint.digest, "data_sha256": windows.digest}
    save_probe(folder / "probe.safetensors", probe, about=about)
    return probe


def _sample(
    loaded: Loaded, windows: Windows, reference: int, signal: Policy, probe: Probe | None, show: Show
) -> Sample:
    advance = counter(show, f"tracing to depth {reference}", windows.num_tokens)
    found = trace(loaded.model, windows, max_depth=reference, signals=[signal.signal or ""], probe=probe,
                  progress=advance)  # fmt: skip
    return Sample(windows=windows, found=found, reference=reference)


def _label(source: str) -> str:
    """A text's name without its folders: a tiers file travels."""
    return Path(source).name if "/" in source and not source.startswith("hub:") else source


def _without_folders(args: argparse.Namespace) -> argparse.Namespace:
    texts = {name: [_label(source) for source in getattr(args, name)] for name in ("text", "check_text", "fit_text")}
    return argparse.Namespace(**{**vars(args), **texts})


def _signal(text: str) -> Policy:
    """A policy without a threshold: `kl` or `kl,min=2`."""
    name, comma, options = text.partition(",")
    if "<" in text or "=" in name:
        raise InputError(
            f"signal '{text}': give it without a threshold, which is what calibration finds: e.g. {SIGNAL}"
        )
    if name == "argmax":
        raise InputError("signal 'argmax' has no threshold to find: choose another, e.g. kl")
    return Policy.parse(f"{name}<0{comma}{options}")


def card(result: dict[str, Any]) -> str:
    """For people."""
    unit = "nats per token" if result["risk"] == "loss" else "of first choices"
    lines = [
        f"{result['checkpoint']} on {', '.join(result['text'])}: {result['documents']} documents tested, "
        f"{result['scouts']} scouts, {result['tokens']:,} tokens; {result['mode']}, {result['layout']} KV",
        f"  lost against uniform depth {result['reference_depth']} ({unit}), each bound at confidence "
        f"{result['confidence']:g}",
        "",
        "  tier      policy                         depth   compute   lost       bound      drift      clipped",
    ]
    for tier in result["tiers"]:
        bound = "none" if tier["bound"] is None else f"{tier['bound']:.5f}"
        lines.append(
            f"  {tier['name']:<9} {tier['policy']:<30} {tier['mean_depth']:5.2f}   {tier['cost_ratio']:7.3f}   "
            f"{tier['risk']:<9.5f}  {bound:<9}  {tier['drift']:<+9.5f}  {tier['clipped_documents']}"
        )
    for source, found in result["checks"].items():
        lines += ["", f"  on {source}: {found['documents']} documents, {found['tokens']:,} tokens"]
        for tier in found["tiers"]:
            says = "within its bound" if tier["within"] else "ABOVE its bound"
            lines.append(f"    {tier['name']:<9} depth {tier['mean_depth']:.2f}, lost {tier['risk']:.5f}: {says}")
        if found["warning"]:
            lines.append(f"    warning: {found['warning']}")
    lines.append(f"\n  written to {result['out']} ({result['wall_s']:.0f} s)")
    return "\n".join(lines)
