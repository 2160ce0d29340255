"""What `loopwise demo` prints at the end: the findings on one screen, beside the study's."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from loopwise.report.palette import depth_shade

DEPTHS = ("1", "2", "4", "8", "16", "32")


def card_text(result: dict[str, Any]) -> str:
    """The card as text, with colours where the terminal has them."""
    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(Group(_losses(result), _findings(result), _policies(result), _sample(result), _foot(result)))
    return captured.get().rstrip()


def _losses(result: dict[str, Any]) -> Table:
    measured, loss = result["measure"], result["loss_by_depth"]
    title = f"{result['checkpoint']} on {' and '.join(result['text'])}: {measured['tokens']:,} held-out tokens"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    shown = [d for d in DEPTHS if d in loss]
    table.add_column("depth", no_wrap=True)
    for d in shown:
        table.add_column(d, justify="right")
    table.add_row("loss (nats)", *(f"{loss[d]:.4f}" for d in shown))
    kl = measured.get("kl_by_depth", {})
    table.add_row("KL to pass before", *(f"{kl[d]:.1e}" if d in kl else "" for d in shown))
    return table


def _findings(result: dict[str, Any]) -> Table:
    measured, allocated = result["measure"], result["allocate"]
    settled, mean = measured["convergence"], round(measured["mean_depth"])
    still = settled["share_after"].get(str(mean))
    best = allocated["best_fixed"]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("", "here", "the study"):
        table.add_column(name, no_wrap=True)
    table.add_row("median convergence depth", f"{settled['median']:g}", "6")
    table.add_row(f"still moving at training mean {mean}", "–" if still is None else f"{still:.1%}", "about 10%")
    saved = _saved(result, "kl", "live")
    table.add_row("A1: passes saved, live", saved[0], "38% (replay)")
    table.add_row("A1: compute saved with checks", saved[1], "0% of wall clock")
    table.add_row("best fixed depth", f"{best['depth']}", "not reported")
    free = _saved(result, "rel_change", "live")
    table.add_row("free signal: passes, compute saved", f"{free[0]}, {free[1]}", "not tried")
    return table


def _saved(result: dict[str, Any], signal: str, mode: str) -> tuple[str, str]:
    row = next((r for r in result["policies"] if r["signal"] == signal and r["mode"] == mode), None)
    if row is None or row["matched"] is None:
        return "none", "none"
    m = row["matched"]
    low, high = m["saving_ci"]
    return f"{m['saving']:.0%} [{low:.0%}, {high:.0%}]", f"{1 - m['cost_ratio']:.0%}"


def _policies(result: dict[str, Any]) -> Table:
    allocated = result["allocate"]
    best, reference = allocated["best_fixed"]["depth"], allocated["reference_depth"]
    title = f"Within {allocated['tolerance']:g} nats of depth {reference} (compute 1 = depth {reference})"
    table = Table(title=title, title_justify="left", title_style="", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("policy", "mode", "passes", "compute", f"compute, best fixed {best} = 1"):
        table.add_column(name, justify="left" if name in ("policy", "mode") else "right")
    for row in result["policies"]:
        m, name = row["matched"], f"{row['label'] or ''} {row['signal'] or 'uniform'}".strip()
        cells = (
            ["–"] * 3
            if m is None
            else [f"{m[k]:.2f}" for k in ("mean_depth", "cost_ratio", "cost_ratio_vs_best_fixed")]
        )
        table.add_row(name, row["mode"], *cells)
    return table


def _sample(result: dict[str, Any]) -> Text:
    made = result["sample"]
    deep = max(*made["depths"], 2)
    text = Text(made["prompt"], style="dim")
    for piece, depth in zip(made["pieces"], made["depths"], strict=True):
        shade = depth_shade(depth, deep, dark=False)
        text.append(piece, style=f"{shade.text} on {shade.back}")
    mean = sum(made["depths"]) / len(made["depths"])
    text.append(
        f"\n{len(made['depths'])} tokens under {made['policy']}, mean depth {mean:.2f} (pale: early, dark: deep)",
        style="dim",
    )
    return text


def _foot(result: dict[str, Any]) -> Text:
    peak = result["peak_memory_bytes"] / 2**20
    return Text(f"\n{result['wall_s']:.0f} s, {peak:,.0f} MiB at most. Report: {result['report']}", style="bold")
