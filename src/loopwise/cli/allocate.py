"""`loopwise allocate`: exit policies against uniform depth, at equal quality and with every check paid for."""

import argparse
from pathlib import Path
from typing import Any, NamedTuple, get_args

from loopwise.cli.evaluation import (
    Loaded,
    Show,
    configure_text,
    count,
    counter,
    load,
    manifest,
    open_run,
    resources,
    watching,
    write_record,
)
from loopwise.config import InputError
from loopwise.data.text import documents
from loopwise.exit.look import A2
from loopwise.exit.signals import SIGNALS, Probe, supported
from loopwise.measure.allocate import DEFAULT, Mode, Plan, Settings, allocate, deepest, needs, parse_plans
from loopwise.measure.probe import MIN_TOKENS, fit, judge, label, save_probe
from loopwise.measure.stats import DRAWS
from loopwise.measure.trace import trace
from loopwise.measure.windows import Windows, pack, require_length
from loopwise.model.kv_layout import LAYOUTS

EXAMPLE = "loopwise allocate tiny --text factbook --tokens 20k --policies A0,kl,rel_change --mode both"
MODES: dict[str, tuple[Mode, ...]] = {**{mode: (mode,) for mode in get_args(Mode)}, "both": get_args(Mode)}


class Fitted(NamedTuple):
    """The probe in use, if any, and what is known about it."""

    probe: Probe | None
    about: dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    configure_text(parser, tokens="20k")
    parser.add_argument("--policies", default=",".join(DEFAULT), metavar="LIST", help=f"A0, signals to sweep, or policies with a threshold (default {','.join(DEFAULT)})")  # fmt: skip  # noqa: E501
    parser.add_argument("--mode", choices=tuple(MODES), default="replay", help="replay: from a trace; live: while decoding; both")  # fmt: skip  # noqa: E501
    parser.add_argument("--reference-depth", type=int, metavar="D", help="uniform depth to compare with (default: the training mean)")  # fmt: skip  # noqa: E501
    parser.add_argument("--tolerance", type=float, default=0.01, help="loss above the reference that still counts as equal quality, nats (default 0.01)")  # fmt: skip  # noqa: E501
    parser.add_argument("--layout", default="depth_indexed", help="KV layout of live decoding: " + ", ".join(LAYOUTS))
    parser.add_argument("--live-tokens", default="8k", metavar="N", help="tokens to decode live per threshold (default 8k)")  # fmt: skip  # noqa: E501
    parser.add_argument("--probe-text", action="append", metavar="SOURCE", help="text to train the A2 probe on (default: documents of --text that are not evaluated; for factbook its training profiles)")  # fmt: skip  # noqa: E501
    parser.add_argument("--probe-tokens", default="8k", metavar="N", help="tokens to train the probe on (default 8k)")
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"bootstrap draws (default {DRAWS})")
    parser.add_argument("--out", type=Path, metavar="RUN", help="run folder for records: allocate.json, probe")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Compare; with --out also write records."""
    out, plans = open_run(args.out), parse_plans(args.policies)
    live_tokens, probe_tokens = count(args.live_tokens, "live-tokens"), count(args.probe_tokens, "probe-tokens")
    loaded = load(args)
    mean = max(2, min(loaded.checkpoint.config.max_depth, round(loaded.checkpoint.config.mean_depth)))
    settings = Settings(
        reference=mean if args.reference_depth is None else args.reference_depth,
        tolerance=args.tolerance,
        draws=args.draws,
        seed=args.seed,
        layout=args.layout,
        live_tokens=live_tokens,
    )
    depth = deepest(plans, settings.reference, loaded.model)
    require_length(loaded.windows, ", ".join(args.text))
    with watching(args) as show:
        fitted = _probe(args, loaded, plans, settings.reference, probe_tokens, show)
        kept = [p for p in plans if p.signal is None or supported(p.signal, fitted.probe)]
        advance = counter(show, f"tracing to depth {depth}", loaded.windows.num_tokens)
        found = trace(loaded.model, loaded.windows, max_depth=depth, signals=needs(kept), probe=fitted.probe,
                      progress=advance)  # fmt: skip
        table = allocate(loaded.model, loaded.windows, found, kept, settings, modes=MODES[args.mode],
                         probe=fitted.probe, progress=show)  # fmt: skip
        if "probe" in found.columns and settings.reference > 1:
            fitted.about.update(judge(found, settings.reference))
    head = {"checkpoint": loaded.checkpoint.name, "text": args.text, "documents": len(loaded.windows.hashes)}
    skipped = [{"name": p.name, "reason": fitted.about.get("reason", "")} for p in plans if p not in kept]
    record = head | table | {"probe": fitted.about, "skipped": skipped} | resources(loaded)
    if out:
        if fitted.probe is not None and fitted.about.get("source") == "fitted":
            save_probe(out / "probe.safetensors", fitted.probe, about={"weights_sha256": loaded.checkpoint.digest})
        write_record(out, "allocate", record, manifest(args, "allocate", loaded))
        record["out"] = str(out)
    return record


def _probe(
    args: argparse.Namespace, loaded: Loaded, plans: list[Plan], reference: int, tokens: int, show: Show
) -> Fitted:
    """Fitted tensors for the plans: A2's classifier is trained here, on documents that are not evaluated; where there
    are none, and for all other fitted signals, the checkpoint's own serve."""
    stored = loaded.checkpoint.probe()
    wanted = {p.signal for p in plans if p.signal and SIGNALS[p.signal].tensors}
    if not wanted:
        return Fitted(stored, {})
    training = _training_text(args, loaded, tokens) if "probe" in wanted else None
    if training is None:
        if wanted - {"probe"} or (stored is not None and supported("probe", stored)):
            return Fitted(stored, {"source": "checkpoint"})
        reason = f"no probe, and fewer than {MIN_TOKENS} tokens outside the evaluated documents: give --probe-text"
        return Fitted(stored, {"source": None, "reason": reason})
    show("training the A2 probe", 0.0)
    probe = fit(label(loaded.model, training, reference))
    about = {"source": "fitted", "tokens": training.num_tokens, "documents": len(training.hashes),
             "data_sha256": training.digest}  # fmt: skip
    return Fitted((stored or Probe())._replace(**{name: getattr(probe, name) for name in A2}), about)


def _training_text(args: argparse.Namespace, loaded: Loaded, tokens: int) -> Windows | None:
    """Windows of documents that evaluation does not use, or None if they are too few."""
    sources = args.probe_text or ["factbook:train" if s == "factbook" else s for s in args.text]
    try:
        windows = pack(
            loaded.tokenizer,
            documents(sources),
            context=loaded.windows.context,
            max_tokens=tokens,
            exclude=frozenset(loaded.windows.hashes),
        )
    except InputError:
        if args.probe_text:
            raise
        return None
    return windows if windows.num_tokens >= MIN_TOKENS else None


def card(result: dict[str, Any]) -> str:
    """For people."""
    reference, best = result["reference_depth"], result["best_fixed"]
    lines = [
        f"{result['checkpoint']} on {', '.join(result['text'])}: {result['tokens']:,} tokens of {result['documents']} "
        f"documents; loss at uniform depth {reference}: {result['reference_loss']:.4f} nats",
        f"  equal quality: within {result['tolerance']:g} nats of it. Best fixed depth: {best['depth']} "
        f"({best['cost_ratio']:.2f} of the compute)",
        "",
        f"  policy       mode     threshold  depth   depth saved, 95% CI      compute  | against depth {best['depth']}:"
        "  depth saved  compute",
    ]
    for row in result["policies"]:
        lines.append("  " + _row(row))
    for name, key in (("oracle (hindsight)", "oracle"), ("oracle (settled)", "oracle_settled")):
        lines.append(f"  {name:<32}{result[key]['mean_depth']:6.2f}   loss {result[key]['loss']:.4f}")
    if result["probe"].get("pooled"):
        pooled = result["probe"]["pooled"]
        auc = "-" if pooled["auc"] is None else f"{pooled['auc']:.3f}"
        lines.append(f"  A2 probe: AUC {auc}, Brier {pooled['brier']:.4f}, calibration error {pooled['ece']:.4f}, "
                     f"positive {pooled['positive']:.1%}")  # fmt: skip
    lines += [f"  {entry['name']} left out: {entry['reason']}" for entry in result["skipped"]]
    lines.append(f"\n  compute counts every pass, readout and check; 1 is uniform depth {reference} (then depth "
                 f"{best['depth']}). CI over {result['num_groups']} {result['ci_over']}.")  # fmt: skip
    lines.append(f"  {result['wall_s']:.0f} s, {result['peak_memory_bytes'] / 2**20:,.0f} MiB at most"
                 + (f", records in {result['out']}" if "out" in result else ""))  # fmt: skip
    return "\n".join(lines)


def _row(row: dict[str, Any]) -> str:
    name = f"{row['label']} {row['name']}" if row["label"] and row["label"] != row["name"] else row["name"]
    found = row["matched"]
    if found is None:
        return f"{name:<12} {row['mode']:<8} no threshold matches"
    low, high = found["saving_ci"]
    return (
        f"{name:<12} {row['mode']:<8} {found['threshold']:<9.3g} {found['mean_depth']:6.2f}   {found['saving']:6.1%} "
        f"[{low:6.1%}, {high:6.1%}]  {found['cost_ratio']:8.3f}  |{'':17}{found['saving_vs_best_fixed']:10.1%}  "
        f"{found['cost_ratio_vs_best_fixed']:9.3f}"
    )
