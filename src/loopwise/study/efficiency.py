"""Section 6: what the saved passes are worth: the FLOP bound, the engine's realised ratios, and energy."""

import time
from pathlib import Path
from typing import Any

from loopwise.config import InputError
from loopwise.exit.policy import Policy
from loopwise.measure.live import live
from loopwise.model.cost import Cost
from loopwise.records import read_json
from loopwise.study.book import matched
from loopwise.study.subject import Subject

VERSION = 1
COUNTERS = Path("/sys/class/powercap")
Json = dict[str, Any]


def bounds(subject: Subject, allocation: Json) -> Json:
    """(F0 + r Fr) / (F0 + d Fr) at the depth where A1 and the free signal match, checks free and checks paid for,
    against the training mean and against the best fixed depth."""
    config = subject.checkpoint.config
    cost, keys = Cost.of(config), allocation["mean_keys"]
    reference, best = subject.reference, allocation["best_fixed"]["depth"]
    rows = []
    for signal in ("kl", "rel_change", "accel", "distil", "probe"):
        for mode in ("replay", "live"):
            found = matched(allocation, signal, mode)
            if found:
                rows.append({
                    "signal": signal, "mode": mode, "mean_depth": found["mean_depth"],
                    "bound": cost.bound(found["mean_depth"], reference, keys=keys),
                    "with_checks": 1 / found["cost_ratio"],
                    "bound_best_fixed": cost.bound(found["mean_depth"], best, keys=keys),
                    "with_checks_best_fixed": 1 / found["cost_ratio_vs_best_fixed"],
                })  # fmt: skip
    return {"rows": rows, "reference": reference, "best_fixed": best}


def engine(folder: Path | None) -> Json:
    """Realised ratios of the engine from the records of `loopwise bench`: speed-up of depth-wise continuous batching
    over full depth, beside its FLOP bound. Raises `InputError` if there is no such record."""
    files = sorted(folder.glob("engine/*.json")) if folder else []
    rows = []
    for path in files:
        found = read_json(path)
        values = {row["name"]: row["value"] for row in found.get("rows", [])}
        for name, bound in values.items():
            part, _, what = name.rpartition(": ")
            share = found.get("ratios", {}).get(f"{part}: share of the bound")
            if what == "FLOP bound" and share is not None:
                rows.append({"name": f"{path.stem}, {part}", "value": share * bound, "bound": bound, "share": share,
                             "mean_depth": values.get(f"{part}: mean depth")})  # fmt: skip
    if not rows:
        raise InputError(
            "No record of the engine's benchmarks was found (benchmarks/results/engine): run 'make bench'."
        )
    return {"ratios": rows, "files": [path.name for path in files]}


def counters() -> list[Path]:
    """Readable energy counters of the processor (RAPL), packages only."""
    found = []
    for path in sorted(COUNTERS.glob("intel-rapl:[0-9]/energy_uj")):
        try:
            int(path.read_text())
            found.append(path)
        except (OSError, ValueError):
            continue
    return found


def energy(subject: Subject, allocation: Json) -> Json:
    """Joules per token at uniform depth and under the free signal, if the machine says; raises `InputError` if not."""
    paths = counters()
    if not paths:
        raise InputError("This machine exposes no energy counter (RAPL), so no energy is estimated.")
    free = matched(allocation, "rel_change", "live") or matched(allocation, "rel_change", "replay")
    policies = {"uniform": Policy.parse(f"depth={subject.reference}")} | (
        {"rel_change": Policy.parse(free["policy"])} if free else {}
    )
    part = subject.windows.take(list(range(min(8, len(subject.windows.ids)))))  # type: ignore[arg-type]
    rows = {}
    for name, policy in policies.items():
        before, begun = sum(int(p.read_text()) for p in paths), time.perf_counter()
        live(subject.model, part, policy)
        joules = (sum(int(p.read_text()) for p in paths) - before) / 1e6
        rows[name] = {"joules_per_token": joules / part.num_tokens, "seconds": time.perf_counter() - begun}
    return {"rows": rows, "tokens": part.num_tokens}
