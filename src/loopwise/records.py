"""Records: results on disk. A run folder holds `manifest.json`, one JSON file per result table, and columnar arrays.

Everything is written to a temporary name, synced and renamed, so a reader never sees half a record. torch-free.
"""

import datetime
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loopwise.config import InputError

SCHEMA = 1


def write_bytes(path: Path, data: bytes) -> None:
    """Write atomically: temporary file in the same folder, fsync, rename, fsync of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically. NaN and infinity are refused: a record must be readable anywhere."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON; a missing or damaged file raises `InputError`."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file: run the command that writes it first") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error}): restore it or run again") from None


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a compressed `.npz` of plain numeric arrays atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as file:
        np.savez_compressed(file, **dict(arrays))  # type: ignore[arg-type]
        file.seek(0)
        write_bytes(path, file.read())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read a `.npz`; never unpickles. A missing or damaged file raises `InputError`."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file: run the command that writes it first") from None
    except Exception as error:  # numpy raises many kinds on damaged archives
        raise InputError(f"{path}: cannot be read as npz ({error}): run the command that writes it again") from None


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest(
    *, command: str, config: Mapping[str, Any], data_sha256: str, seed: int, hardware: Mapping[str, Any], commit: str
) -> dict[str, Any]:
    """What makes a figure checkable: command, commit, config, seed, data hash, hardware, time (UTC)."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        "schema": SCHEMA,
        "command": command,
        "commit": commit,
        "config": dict(config),
        "seed": seed,
        "data_sha256": data_sha256,
        "hardware": dict(hardware),
        "created": now,
    }
