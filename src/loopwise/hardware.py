"""The machine a result came from: device, threads, versions, commit. Goes into every manifest."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from loopwise.config import InputError


def pick_device(name: str = "auto") -> torch.device:
    """`auto` takes CUDA when there is one. A device that torch cannot use raises `InputError`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device '{name}' is unknown: use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device '{name}' is not available: this torch sees no CUDA device; use cpu")
    return device


@cache
def processor() -> str:
    """The CPU's name, as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def commit() -> str:
    """Commit of the source tree the package runs from, `-dirty` if changed, or `unknown` outside a checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        run = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True)
        return run.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def describe() -> dict[str, Any]:
    """Hardware and versions as a JSON-ready dictionary."""
    packages = ("loopwise", "torch", "numpy", "tokenizers")
    found: dict[str, Any] = {"versions": {"python": platform.python_version()}}
    for name in packages:
        try:
            found["versions"][name] = version(name)
        except PackageNotFoundError:
            found["versions"][name] = "unknown"
    found |= {"processor": processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    found |= {"system": platform.system(), "machine": platform.machine(), "load_1min": round(os.getloadavg()[0], 2)}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found
