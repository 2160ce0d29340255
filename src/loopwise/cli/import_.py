"""`loopwise import`: bring a foreign checkpoint in, optionally turned into a looped model, optionally verified."""

import argparse
from pathlib import Path
from typing import Any

from loopwise.checkpoint.dry_run import estimate, plan_on_paper
from loopwise.checkpoint.foreign import Opened, from_foreign, open_foreign
from loopwise.checkpoint.golden.cases import by_dtype, golden_folder, verify
from loopwise.checkpoint.native import open_checkpoint
from loopwise.checkpoint.retrofit import parse, retrofit
from loopwise.config import InputError

EXAMPLE = "loopwise import tomg-group-umd/huginn-0125 --out runs/huginn"
TOLERANCE = 2e-4


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("source", metavar="SRC", help="folder, hub id org/name, .gguf file, or package:NAME")
    parser.add_argument("--out", type=Path, help="folder to write (required unless --dry-run)")
    parser.add_argument("--verify", type=Path, metavar="GOLDEN_DIR", help="compare with stored official outputs")
    parser.add_argument("--retrofit", metavar="P-C-K", help="make a plain transformer a looped one: layers per stage")
    parser.add_argument("--dry-run", action="store_true", help="print memory, disk and time; read no weights")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Import, or plan it."""
    if args.dry_run:
        return _dry(args)
    if args.out is None:
        raise InputError("argument '--out' is missing: name the folder to write")
    opened = _looped(open_foreign(args.source), args.retrofit)
    plan = opened.plan
    out = from_foreign(plan, args.out, companions=opened.companions)
    result = {
        "family": plan.config.family if args.retrofit else plan.name,
        "params": plan.params,
        "unmapped": plan.unmapped,
        "carried": plan.carried,
        "out": str(out),
        "dtypes": sorted({fact.dtype for fact in plan.tensors.facts.values()}),
    }
    if args.verify:
        folder = golden_folder(args.verify, plan.name, Path(args.source))
        model = open_checkpoint(str(out)).model()
        parity = verify(model, plan.name, folder)
        result |= {"golden": str(folder), "parity": parity, "parity_ok": max(parity.values()) <= TOLERANCE}
        result["parity_by_dtype"] = by_dtype(open_checkpoint(str(out)), plan.name, folder)
    return result


def _looped(opened: Opened, shape: str | None) -> Opened:
    if shape is None:
        return opened
    return opened._replace(plan=retrofit(opened.plan, parse(shape, opened.plan.config.core_layers)))


def _dry(args: argparse.Namespace) -> dict[str, Any]:
    plan = plan_on_paper(args.source)
    if args.retrofit:
        plan = retrofit(plan, parse(args.retrofit, plan.config.core_layers))
    known = bool(plan.tensors.facts)
    return {
        "family": plan.config.family if args.retrofit else plan.name,
        "params": plan.params,
        "unmapped": plan.unmapped,
        "missing": plan.missing if known else [],
        "config": plan.config.to_dict(),
        "plan": estimate(plan),
        "weights_present": known,
    }


def card(result: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{result['family']}, {result['params']:,} parameters"]
    if "plan" in result:
        plan = result["plan"]
        lines += [
            f"  read        {plan['source_bytes'] / 1e9:.2f} GB",
            f"  disk        {plan['disk_bytes'] / 1e9:.2f} GB to write",
            f"  memory      {plan['peak_memory_bytes'] / 1e9:.2f} GB at most while importing "
            f"(tensors stream), {plan['run_memory_bytes_fp32'] / 1e9:.2f} GB to run in fp32",
            f"  time        about {plan['seconds']:.0f} s at {plan['assumed_bytes_per_s'] / 1e6:.0f} MB/s each way",
        ]
        lines += [f"  unmapped    {', '.join(result['unmapped'])}"] if result["unmapped"] else []
        lines += [f"  missing     {', '.join(result['missing'][:5])}"] if result["missing"] else []
        return "\n".join(lines)
    lines.append(f"  written     {result['out']} (stored as {', '.join(result['dtypes'])})")
    if result["carried"]:
        lines.append(f"  carried     {', '.join(result['carried'])} (used by no computation; kept for export)")
    if "parity" in result:
        worst = max(result["parity"], key=result["parity"].__getitem__)
        verdict = "within" if result["parity_ok"] else "ABOVE"
        lines.append(
            f"  verified    {len(result['parity'])} cases of {result['golden']}: largest error "
            f"{result['parity'][worst]:.1e} ({worst}), {verdict} {TOLERANCE:g}"
        )
        lines += [f"    {name:<9} largest logit error {error:.1e}" for name, error in result["parity_by_dtype"].items()]
    return "\n".join(lines)
