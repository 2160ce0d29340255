"""`loopwise info`: what a checkpoint is and what it costs."""

import argparse
from typing import Any

from loopwise.checkpoint.native import open_checkpoint
from loopwise.model.cost import Cost
from loopwise.model.kv_layout import LAYOUTS

EXAMPLE = "loopwise info tiny"
TIER = ("name", "policy", "mean_depth", "loss_increase", "bound", "confidence")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("checkpoint", metavar="CKPT", help="'tiny', a checkpoint folder, or a hub id org/name")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Count parameters, FLOPs, KV bytes and bounds from the configuration."""
    checkpoint = open_checkpoint(args.checkpoint)
    config, cost = checkpoint.config, Cost.of(checkpoint.config)
    depths = sorted({1, 2, 4, 8, 16, 32, round(config.mean_depth), config.max_depth} & set(range(1, 10**6)))
    depths = [d for d in depths if d <= config.max_depth]
    top = min(config.max_depth, round(config.mean_depth))
    return {
        "checkpoint": checkpoint.name,
        "family": config.family,
        "config": config.to_dict(),
        "params": cost.params["total"],
        "params_by_stage": dict(cost.params),
        "flops_per_token": {str(d): cost.flops(d) for d in depths},
        "f0": cost.fixed,
        "fr": cost.per_pass,
        "readout_flops": cost.readout,
        "kv_bytes_per_token": {name: cost.kv_bytes(name, max_depth=config.max_depth) for name in LAYOUTS},
        "kv_bytes_at_mean_depth": {
            name: cost.kv_bytes(name, max_depth=config.max_depth, mean_depth=config.mean_depth) for name in LAYOUTS
        },
        "bound_reference_depth": top,
        "bound_at": {f"{m:g}": cost.bound(m, top) for m in _means(top)},
        "sha256": checkpoint.digest,
        "tiers": [{name: entry.get(name) for name in TIER} for entry in (checkpoint.tiers or {"tiers": []})["tiers"]],
    }


def _means(top: int) -> list[float]:
    """Mean depths to state the bound at: the study's 4.94 of 8, scaled to this model, and quarters."""
    return sorted({round(top * share, 2) for share in (0.25, 0.5, 4.94 / 8, 0.75, 1.0)} - {0.0})


def card(result: dict[str, Any]) -> str:
    """For people."""
    config, stages = result["config"], result["params_by_stage"]
    lines = [
        f"{result['checkpoint']}  ({result['family']}, {result['params'] / 1e6:.2f}M parameters)",
        f"  layers      prelude {config['prelude_layers']}, core {config['core_layers']} (looped), "
        f"coda {config['coda_layers']}; d_model {config['d_model']}, {config['num_heads']} heads",
        "  parameters  " + ", ".join(f"{name} {count:,}" for name, count in stages.items() if name != "total"),
        f"  depth       trained at mean {config['mean_depth']:g}, at most {config['max_depth']}; "
        f"context {config['context']}",
        f"  F0, Fr      {result['f0']:,} and {result['fr']:,} FLOPs per token (outside the core; one core pass)",
        "  FLOPs       " + ", ".join(f"depth {d}: {n:,.0f}" for d, n in result["flops_per_token"].items()),
        "  KV bytes    " + ", ".join(f"{name} {n:,}" for name, n in result["kv_bytes_per_token"].items()),
        f"  bound       speed-up over depth {result['bound_reference_depth']} at a mean depth of "
        + ", ".join(f"{m}: {x:.2f}x" for m, x in result["bound_at"].items()),
    ]
    for tier in result["tiers"]:
        known = tier["mean_depth"] is not None and tier["bound"] is not None
        says = f", mean depth {tier['mean_depth']:.2f}, loses at most {tier['bound']:g}" if known else ""
        lines.append(f"  tier        {tier['name']}: {tier['policy']}{says}")
    return "\n".join(lines)
