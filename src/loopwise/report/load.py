"""Read a run folder into a `Run`. Absent records leave their part out; damaged ones raise `InputError`.

| file | written by | part |
|---|---|---|
| `manifest.json` | every command, one entry each | where it comes from |
| `measure.json` | `loopwise measure`, `loopwise demo` | loss, change, convergence, types, difficulty |
| `allocate.json` | `loopwise allocate`, `loopwise demo` | policies, oracle, best fixed depth |
| `lens.json`, `lens.npz` | `loopwise measure`, `loopwise demo` | passages for the depth lens |
| `sample.json` | `loopwise demo` | generated text |
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from loopwise.config import InputError
from loopwise.records import read_arrays, read_json
from loopwise.report.lens import NAMES, PASSAGE_TOKENS, Lens, Passage
from loopwise.report.parse import allocation, measurement
from loopwise.report.run import Run, Sample

Json = Mapping[str, Any]
Part = TypeVar("Part")
RECORDS = ("measure.json", "allocate.json", "lens.json", "sample.json")


def load_run(folder: Path) -> Run:
    """Everything a run folder holds; a folder without any record raises `InputError`."""
    if not folder.is_dir():
        raise InputError(f"run '{folder}' does not exist: give a folder that loopwise measure, allocate or demo wrote")
    if not any((folder / name).is_file() for name in RECORDS):
        raise InputError(f"run '{folder}' holds no record: run loopwise measure, allocate or demo with --out {folder}")
    weights = part(folder / "manifest.json", lambda found: {e.get("weights_sha256") for e in found["runs"].values()})
    titles = part(folder / "measure.json", _title) or part(folder / "allocate.json", _title)
    return Run(
        title=titles or folder.resolve().name,
        about=part(folder / "manifest.json", lambda found: about(found["runs"])) or [],
        measure=part(folder / "measure.json", measurement),
        allocation=part(folder / "allocate.json", allocation),
        lens=part(folder / "lens.json", lambda found: lens(found, folder / "lens.npz")),
        sample=part(folder / "sample.json", sample),
        warning=_MIXED if weights and len(weights - {None}) > 1 else None,
    )


_MIXED = "The records of this run come from different weights: run measure and allocate again on one checkpoint."


def _title(found: Json) -> str | None:
    text = _texts(found.get("text"))
    return f"{found['checkpoint']} on {text}" if text and found.get("checkpoint") else None


def _texts(found: Any) -> str:
    names = [found] if isinstance(found, str) else list(found or ())
    return ", ".join(Path(name).name if "/" in name and not name.startswith("hub:") else name for name in names)


def about(runs: Json) -> list[tuple[str, str]]:
    """Where a run comes from, as (name, value); the first five stand in the page's header.

    Commands that ran on other commits, machines or text are named beside the value.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for command, entry in runs.items():
        for name, value in _facts(entry):
            found.setdefault(name, {}).setdefault(value, []).append(command)
    pairs = []
    for name, values in found.items():
        several = len(values) > 1
        shown = [f"{value} ({', '.join(commands)})" if several else value for value, commands in values.items()]
        pairs.append((name, "; ".join(shown)))
    return pairs


def _facts(entry: Json) -> list[tuple[str, str]]:
    hardware, arguments = entry.get("hardware") or {}, (entry.get("config") or {}).get("arguments") or {}
    cores = f", {hardware['cores']} cores" if hardware.get("cores") else ""
    values = [
        ("model", entry.get("checkpoint")),
        ("text", _texts(arguments.get("text"))),
        ("commit", entry.get("commit")),
        ("hardware", hardware.get("gpu") or f"{hardware.get('processor', '')}{cores}".strip(", ")),
        ("date", str(entry.get("created", ""))[:16].replace("T", " ") + " UTC" if entry.get("created") else None),
        ("seed", entry.get("seed")),
        ("wall time", f"{entry['wall_s']:.0f} s" if "wall_s" in entry else None),
        ("weights sha256", entry.get("weights_sha256")),
        ("text sha256", entry.get("data_sha256")),
        ("versions", ", ".join(f"{name} {v}" for name, v in (hardware.get("versions") or {}).items())),
    ]
    return [(name, str(value)) for name, value in values if value not in (None, "")]


def lens(words: Json, arrays: Path) -> Lens:
    """Passages with their curves."""
    found = read_arrays(arrays)
    nll = found.pop("nll", None)
    shape = (len(words["pieces"]), words["max_depth"])
    for name, values in (*found.items(), *([("nll", nll)] if nll is not None else [])):
        if values.shape != shape:
            raise ValueError(f"{arrays.name} '{name}' has shape {list(values.shape)}, not {list(shape)}")
    kept = np.concatenate(
        [np.arange(p["start"], min(p["stop"], p["start"] + PASSAGE_TOKENS)) for p in words["passages"]]
    )
    place = {int(row): i for i, row in enumerate(kept)}
    guess = words.get("guess") or ()
    names = [name for name in NAMES if name in found]
    return Lens(
        pieces=[words["pieces"][i] for i in kept],
        types=[words["types"][i] for i in kept],
        passages=[_passage(p, place[p["start"]]) for p in words["passages"]],
        signals={name: found[name][kept].astype(np.float64) for name in names},
        nll=None if nll is None else nll[kept].astype(np.float64),
        guess=[guess[i] for i in kept] if guess else (),
        guess_pieces=words.get("guess_pieces") or (),
        starts={name: float(value) for name, value in words["starts"].items()},
    )


def _passage(found: Json, start: int) -> Passage:
    length = min(found["stop"] - found["start"], PASSAGE_TOKENS)
    return Passage(title=found["title"], start=start, stop=start + length)


def sample(found: Json) -> Sample:
    """Generated text with exit depths."""
    pieces, depths = found["pieces"], found["depths"]
    if len(pieces) != len(depths):
        raise ValueError(f"{len(pieces)} pieces for {len(depths)} depths")
    return Sample(
        policy=found["policy"],
        prompt=found["prompt"],
        pieces=pieces,
        depths=depths,
        max_depth=found["max_depth"],
        readouts=found.get("readouts"),
    )


def part(path: Path, build: Callable[[Any], Part]) -> Part | None:
    """Read one record if it is there; a record that lacks what it should hold raises `InputError`."""
    if not path.is_file():
        return None
    found = read_json(path)
    try:
        return build(found)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(
            f"{path}: is no such record ({type(error).__name__}: {error}): run the command again"
        ) from None
