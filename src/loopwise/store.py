"""Records of a long job, cached by the content they depend on: a stage runs again only if something it reads changed.

A record holds `key`, the hash of everything that decides its result (stage and its version, digests of weights and
text, budgets), beside the result; a run that was cut off goes on where it stopped.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loopwise import hardware, records

Json = dict[str, Any]


def key_of(parts: Mapping[str, Any]) -> str:
    """Hash of a JSON-ready description."""
    return records.sha256(json.dumps(parts, sort_keys=True, default=str).encode())[:16]


class Store:
    """The folder of a job. `records/` is kept and small, `cache/` may be deleted (it ignores itself in git)."""

    def __init__(self, out: Path, *, command: str, seed: int) -> None:
        self.out, self.command, self.seed = out, command, seed
        self.cache = out / "cache"
        self.reused: list[str] = []
        self.made: list[str] = []

    def scratch(self) -> Path:
        """The cache folder, made on demand."""
        if not self.cache.is_dir():
            records.write_bytes(self.cache / ".gitignore", b"*\n")
        return self.cache

    def path(self, name: str) -> Path:
        """Where the record of a stage lies; `name` may have folders."""
        return self.out / "records" / f"{name}.json"

    def get(self, name: str, parts: Mapping[str, Any], compute: Callable[[], Json]) -> Json:
        """The result of a stage: as recorded if the key is the same, else computed and recorded."""
        key, path = key_of({"stage": name, **parts}), self.path(name)
        if path.is_file():
            found = records.read_json(path)
            if found.get("key") == key:
                self.reused.append(name)
                return found["result"]
        begun = time.perf_counter()
        result = compute()
        wall = round(time.perf_counter() - begun, 2)
        about = records.manifest(
            command=self.command, config={k: v for k, v in parts.items() if k != "text"}, seed=self.seed,
            data_sha256=str(parts.get("text", "")), hardware=hardware.describe(), commit=hardware.commit(),
        )  # fmt: skip
        records.write_json(path, {"key": key, "manifest": about | {"wall_s": wall}, "result": rounded(result)})
        self.made.append(name)
        return records.read_json(path)["result"]


def rounded(value: Any, digits: int = 6) -> Any:
    """Floats to six significant digits: records stay small and no reader loses anything."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {str(k): rounded(v, digits) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v, digits) for v in value]
    return value
