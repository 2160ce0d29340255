"""`loopwise report`: draw a run's page and figures from its records alone."""

import argparse
from pathlib import Path
from typing import Any

from loopwise.report.write import write_report

EXAMPLE = "loopwise report runs/tiny --out site/tiny.html"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("run", metavar="RUN", type=Path, help="folder that measure, allocate or demo wrote")
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help="page (.html) or folder for it (default RUN/report.html)"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write page, figures and data files."""
    written = write_report(args.run, args.out)
    return {
        "report": str(written.report),
        "figures_folder": str(written.figures),
        "figures": written.names,
        "missing": written.missing,
        "bytes": written.report.stat().st_size,
    }


def card(result: dict[str, Any]) -> str:
    """For people."""
    lines = [
        f"report   {result['report']} ({result['bytes'] / 1e3:,.0f} kB, nothing is loaded from elsewhere)",
        f"figures  {len(result['figures'])} as SVG and CSV in {result['figures_folder']}",
    ]
    if result["missing"]:
        lines.append(f"absent   {', '.join(result['missing'])}: the page says so where they would stand")
    return "\n".join(lines)
