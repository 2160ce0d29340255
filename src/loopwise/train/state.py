"""Training states on disk: `states/step-00001000/{model,optimizer}.safetensors` and `trainer.json`.

A state is written to a temporary folder, every file and the folder are fsynced, then it is renamed: a crash, a full
disk or `kill -9` leaves the earlier states as they were. `trainer.json` carries the size and SHA-256 of the other
files, so a damaged state is noticed and the one before it is used. Nothing is pickled, and no random state is kept:
depth, data order and initial weights are pure functions of (seed, step).
"""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

FORMAT = 1


class Saved(NamedTuple):
    """One valid training state: where it lies, its `trainer.json` and its tensors by file stem."""

    folder: Path
    meta: dict[str, Any]
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def write(
    states: Path, meta: dict[str, Any], model: dict[str, Tensor], optimizer: dict[str, Tensor], keep: int
) -> Path:
    """Write one state atomically as `step-N` (N = meta["step"]) and delete all but the `keep` newest.

    Raises OSError (no space, no permission) with the earlier states untouched and the partial one removed.
    """
    states.mkdir(parents=True, exist_ok=True)
    target, temporary = states / f"step-{meta['step']:08d}", states / f".writing-{meta['step']:08d}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        files = {}
        for name, tensors in (("model", model), ("optimizer", optimizer)):
            path = temporary / f"{name}.safetensors"
            _save_tensors(path, tensors)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
            _sync(path)
        document = temporary / "trainer.json"
        document.write_text(json.dumps({"format": FORMAT, **meta, "files": files}, indent=1), "utf-8")
        _sync(document)
        _sync(temporary)
        if target.exists():  # the same step again (saved, then interrupted at once): the old one is as good
            shutil.rmtree(temporary)
        else:
            temporary.rename(target)
        _sync(states)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in sorted(states.glob("step-*"))[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def latest(states: Path) -> Saved | None:
    """The newest valid state, or None. Damaged ones are reported on stderr, set aside and skipped."""
    for leftover in states.glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for folder in sorted(states.glob("step-*"), reverse=True):
        problem, saved = _read(folder)
        if saved:
            return saved
        print(f"loopwise: training state {folder} is damaged ({problem}): trying the one before it", file=sys.stderr)
        _set_aside(folder)
    return None


def exists(states: Path) -> bool:
    """Whether any state, valid or not, lies in `states`."""
    return any(states.glob("step-*"))


def _read(folder: Path) -> tuple[str, Saved | None]:
    try:
        meta = json.loads((folder / "trainer.json").read_text("utf-8"))
        if meta["format"] != FORMAT:
            return f"format {meta['format']}, this version reads {FORMAT}", None
        for name, facts in meta["files"].items():
            path = folder / name
            if path.stat().st_size != facts["bytes"] or _sha256(path) != facts["sha256"]:
                return f"{name} is truncated or changed", None
        return "", Saved(
            folder, meta, load_file(folder / "model.safetensors"), load_file(folder / "optimizer.safetensors")
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        return " ".join(str(error).split()) or type(error).__name__, None


def _set_aside(folder: Path) -> None:
    """Rename so that a later state of the same step can be written; never delete what a person may want to see."""
    aside = folder.with_name(f"damaged-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        folder.rename(aside)
    except OSError:
        pass  # another rank did it, or the folder is read-only: writing will say so


def _save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # the library wraps OSError: give the system's own words back
        raise OSError(0, str(error), str(path)) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
