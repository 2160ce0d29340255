"""Print the tables of docs/exit.md from the records of `loopwise bench exit` and `loopwise bench signal`.

Command: `python benchmarks/exit_tables.py benchmarks/results/exit/*.json`. Nothing is computed anew.
"""

import sys
from pathlib import Path
from typing import Any

from loopwise.records import read_json

SHOWN = ("core pass", "readout", "kl", "rel_change", "cosine", "accel", "extrap", "fisher", "sketch", "distil", "probe")


def comparison(found: dict[str, Any], mode: str) -> list[str]:
    """One text and one mode, from the fewest passes to the most."""
    rows = [r for r in found["rows"] if r["mode"] == mode and r["matched"]]
    if not rows:
        return []
    lines = [
        f"**{found['checkpoint']}, {found['text']}, {mode}**: {rows[0]['tokens']:,} tokens; best fixed depth "
        f"{found['best_fixed']}; reference {found['reference_depth']}",
        "",
        "| policy | passes | saved, 95% CI | against best fixed | net FLOPs | of A1's saving, 95% CI | same / within 1 "
        "| time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda r: r["matched"]["mean_depth"]):
        m, near, timed = row["matched"], row.get("with_a1"), row.get("time")
        low, high = m["saving_ci"]
        ends = row.get("of_a1_ci")
        of = f"{row['of_a1']:.0%} [{ends[0]:.0%}, {ends[1]:.0%}]" if ends else "-"
        lines.append(
            f"| `{row['name']}` | {m['mean_depth']:.2f} | {m['saving']:.1%} [{low:.0%}, {high:.0%}] | "
            f"{m['saving_vs_best_fixed']:+.0%} | {_or(m.get('cost_ratio'), '.3f')} | {of} | "
            + (f"{near['equal']:.0%} / {near['within_one']:.0%}" if near else "-")
            + f" | {_or(timed and timed['ratio'], '.2f')} |"
        )
    return [*lines, ""]


def _or(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def checks(found: dict[str, Any]) -> list[str]:
    """Share of a core pass that one check takes, by shape and batch."""
    lines = []
    for shape in dict.fromkeys(row["shape"] for row in found["rows"]):
        here = [row for row in found["rows"] if row["shape"] == shape]
        batches = sorted({row["batch"] for row in here})
        lines += [
            f"| {shape} | FLOPs | " + " | ".join(f"batch {b}" for b in batches) + " |",
            "|---" * (2 + len(batches)) + "|",
        ]
        for arm in SHOWN:
            rows = {row["batch"]: row for row in here if row["arm"] == arm}
            times = " | ".join(f"{rows[b]['value']:,.0f} us ({rows[b]['time_of_core_pass']:.2%})" for b in batches)
            lines.append(f"| `{arm}` | {rows[batches[0]]['flops_of_core_pass']:.4%} | {times} |")
        lines.append("")
    return lines


def net(rows: list[dict[str, Any]]) -> list[str]:
    """The study's shape and depths."""
    lines = ["| signal | check / core pass | speed-up | of the saving that is possible |", "|---|---|---|---|"]
    for row in rows:
        share, kept = row["check_of_core_pass"], row["saving_of_bound"]
        lines.append(f"| `{row['signal']}` | {share:.4%} | {row['speedup']:.3f}x | {kept:.1%} |")
    return [*lines, ""]


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        found = read_json(path)
        print(f"\n## {path.name}\n")
        for table in found.get("tables", []):
            for mode in ("replay", "live"):
                print("\n".join(comparison(table, mode)))
        if "net" in found:
            print("\n".join(net(found["net"])))
        elif any("shape" in row for row in found.get("rows", [])):
            print("\n".join(checks(found)))


if __name__ == "__main__":
    main()
