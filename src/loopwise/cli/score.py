"""`loopwise score`: negative log-likelihood and bits per byte of a text, under a policy."""

import argparse
import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np

from loopwise.cli.evaluation import Loaded, configure_text, counter, load, resources, watching
from loopwise.config import InputError
from loopwise.exit.policy import Policy
from loopwise.exit.signals import require
from loopwise.measure.allocate import Mode
from loopwise.measure.live import live
from loopwise.measure.replay import Outcome, replay, token_flops
from loopwise.measure.stats import draw_weights, mean_intervals
from loopwise.measure.trace import fixed_depth_nll, trace
from loopwise.measure.windows import groups
from loopwise.model.cost import Cost
from loopwise.model.kv_layout import LAYOUTS

EXAMPLE = "loopwise score tiny --text book.txt --policy 'rel_change<0.05,max=8' --mode live"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    configure_text(parser, tokens="all")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--policy", help="exit policy (default: uniform depth at the training mean)")
    how.add_argument("--tier", help="a tier of the checkpoint's tiers.json")
    parser.add_argument("--mode", choices=get_args(Mode), default="replay", help="replay: context keeps full depth; live: decode")  # fmt: skip  # noqa: E501
    parser.add_argument("--layout", default="depth_indexed", help="KV layout of live decoding: " + ", ".join(LAYOUTS))


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Score the text."""
    policy = Policy.parse(args.policy) if args.policy else None
    if args.mode == "replay" and args.layout != "depth_indexed":
        raise InputError(f"layout '{args.layout}' needs --mode live: replay has no cache")
    loaded = load(args)
    config = loaded.checkpoint.config
    mean = max(1, min(config.max_depth, round(config.mean_depth)))
    if args.tier:
        policy = loaded.checkpoint.tier(args.tier).policy
    bound = (policy or Policy.parse(f"depth={mean}")).bind(config.max_depth)
    with watching(args) as show:
        advance = counter(show, f"scoring under {bound}", loaded.windows.num_tokens)
        found = _outcome(args, loaded, bound, advance)
    index = loaded.windows.index
    group, kind = groups(index)
    weights = draw_weights(int(group.max()) + 1, seed=args.seed)
    loss = mean_intervals(found.nll[None], group, weights)[0]
    size = _bytes(loaded)
    flops = token_flops(found.depth, bound, Cost.of(config), index["position"])
    return {
        "checkpoint": loaded.checkpoint.name,
        "text": args.text,
        "policy": str(bound),
        "mode": args.mode,
        "layout": args.layout,
        "loss": loss.value,
        "loss_ci": loss.ends,
        "ci_over": kind,
        "perplexity": math.exp(min(loss.value, 700.0)),
        "bits_per_byte": float(found.nll.sum(dtype=np.float64) / math.log(2) / size) if size else None,
        "tokens": len(found.nll),
        "bytes": size,
        "documents": len(loaded.windows.hashes),
        "mean_depth": float(found.depth.mean()),
        "readouts": float(found.readouts.mean()),
        "flops_per_token": float(flops.mean()),
        **resources(loaded),
    }


def _outcome(args: argparse.Namespace, loaded: Loaded, policy: Policy, advance: Callable[[int], None]) -> Outcome:
    probe = loaded.checkpoint.probe()
    require(policy, policy.reads, probe)
    if args.mode == "live":
        return live(loaded.model, loaded.windows, policy, layout=args.layout, probe=probe, progress=advance)
    depth = policy.max_depth or 1
    if policy.signal is None and policy.recorded is None:
        nll = fixed_depth_nll(loaded.model, loaded.windows, depth, progress=advance)
        same = [np.full(len(nll), value) for value in (depth, 1, 0, -1)]
        return Outcome(nll, *same)
    signals = [policy.signal] if policy.signal else []
    found = trace(loaded.model, loaded.windows, max_depth=depth, signals=signals, probe=probe, progress=advance)
    return replay(found, policy)


def _bytes(loaded: Loaded) -> int:
    """Bytes of the text that the predicted tokens stand for; the token that ends a document stands for none."""
    ids, counts = np.unique(loaded.windows.index["target"], return_counts=True)
    return sum(len(loaded.tokenizer.token_bytes(int(i))) * int(n) for i, n in zip(ids, counts, strict=True))


def card(result: dict[str, Any]) -> str:
    """For people."""
    low, high = result["loss_ci"]
    bits = "-" if result["bits_per_byte"] is None else f"{result['bits_per_byte']:.4f}"
    return "\n".join((
        f"{result['checkpoint']} on {', '.join(result['text'])}, policy {result['policy']} ({result['mode']})",
        f"  loss           {result['loss']:.4f} nats per token [{low:.4f}, {high:.4f}]",
        f"  bits per byte  {bits}",
        f"  mean depth     {result['mean_depth']:.3f}, {result['readouts']:.2f} readouts per token, "
        f"{result['flops_per_token']:,.0f} FLOPs per token",
        f"  text           {result['tokens']:,} tokens, {result['bytes']:,} bytes, {result['documents']} documents",
    ))  # fmt: skip
