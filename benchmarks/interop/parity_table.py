"""Import every golden folder, compare every stored case, export it back, and write the table of docs/interop.md.

    python benchmarks/interop/parity_table.py GOLDEN --out benchmarks/results/interop --docs docs/interop.md

Writes `parity.json` (every case of every folder, errors by dtype, peak memory of an import in a process of its own,
the manifest) and replaces what stands between the two marks in the document.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from loopwise import hardware, records
from loopwise.checkpoint.foreign import from_foreign, open_foreign, to_foreign
from loopwise.checkpoint.golden.cases import by_dtype, verify
from loopwise.checkpoint.native import open_checkpoint

DTYPES = ("float32", "bfloat16", "float16")
MARKS = ("<!-- parity table -->", "<!-- end of parity table -->")


def folder_parity(golden: Path, source: Path, out: Path) -> dict[str, Any]:
    """Import `source`, compare with the cases of `golden`, export and compare bits."""
    opened = open_foreign(str(source))
    checkpoint = open_checkpoint(str(from_foreign(opened.plan, out / "native", companions=opened.companions)))
    family = opened.plan.name
    cases = verify(checkpoint.model(), family, golden)
    back = load_file(to_foreign(checkpoint, out / "back") / "model.safetensors")
    stored = load_file(source / "model.safetensors")
    same = back.keys() == stored.keys() and all(
        torch.equal(back[n].view(torch.uint8), t.view(torch.uint8)) for n, t in stored.items()
    )
    return {
        "family": family,
        "by_dtype": by_dtype(checkpoint, family, golden),
        "cases": cases,
        "carried": opened.plan.carried,
        "exported_bit_for_bit": same,
    }


def table(rows: dict[str, dict[str, Any]]) -> list[str]:
    """One line per family: the worst of its folders."""
    lines = [
        "| family | cases | largest error, fp32 | fp32 logits | bf16 | fp16 | wrong tokens and steps | export |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family in dict.fromkeys(row["family"] for row in rows.values()):
        own = [row for row in rows.values() if row["family"] == family]
        cases = [(name, error) for row in own for name, error in row["cases"].items()]
        whole = [error for name, error in cases if name.endswith((".tokens", ".steps")) or "exit_step" in name]
        worst = max(error for _, error in cases)
        dtypes = [max(row["by_dtype"].get(d, 0.0) for row in own) for d in DTYPES]
        counts = " and ".join(str(len(row["cases"])) for row in own)
        exact = "bit for bit" if all(row["exported_bit_for_bit"] for row in own) else "DIFFERS"
        cells = [family, counts, f"{worst:.1e}", *(f"{error:.1e}" for error in dtypes)]
        wrong = f"{sum(error > 0 for error in whole)} of {len(whole)}"
        lines.append(f"| {' | '.join([*cells, wrong, exact])} |")
    return lines


PEAK = """
import resource, sys
from pathlib import Path
from loopwise.checkpoint.foreign import from_foreign, open_foreign
opened = open_foreign(sys.argv[1])
from_foreign(opened.plan, Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_memory(source: Path) -> dict[str, Any]:
    """Peak memory of an import in its own process, libraries included, against the size of the weights."""
    size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    with tempfile.TemporaryDirectory() as out:
        run = [sys.executable, "-c", PEAK, str(source), f"{out}/native"]
        peak = int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    scale = 1 if sys.platform == "darwin" else 1024
    return {
        "weights_bytes": size,
        "peak_bytes": peak * scale,
        "ratio_whole_process": peak * scale / size,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("golden", type=Path)
    parser.add_argument("--large", type=Path, help="a folder with a larger foreign checkpoint, for the peak memory")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--docs", type=Path)
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for golden in sorted(path.parent for path in args.golden.glob("*/expected.safetensors")):
        for source in (golden, golden / "source"):
            if (source / "config.json").is_file():
                with tempfile.TemporaryDirectory() as out:
                    name = source.relative_to(args.golden).as_posix()
                    rows[name] = folder_parity(golden, source, Path(out))
                    print(name, f"{max(rows[name]['cases'].values()):.1e}", file=sys.stderr)
    about = records.manifest(
        command="python benchmarks/interop/parity_table.py",
        config={"folders": sorted(rows)},
        data_sha256=records.sha256("".join(
            records.file_sha256(file) for file in sorted(args.golden.glob("*/*.safetensors"))
        ).encode()),
        seed=0,
        hardware=hardware.describe(),
        commit=hardware.commit(),
    )  # fmt: skip
    memory = {"peak_memory": peak_memory(args.large)} if args.large else {}
    records.write_json(args.out / "parity.json", {"folders": rows, **memory, "manifest": about})
    lines = table(rows)
    print("\n".join(lines))
    if memory:
        print(json.dumps(memory))
    if args.docs:
        before, rest = args.docs.read_text("utf-8").split(MARKS[0])
        text = before + "\n".join([MARKS[0], *lines, MARKS[1]]) + rest.split(MARKS[1])[1]
        args.docs.write_text(text, "utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
