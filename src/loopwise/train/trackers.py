"""Optional trackers behind the `Tracker` protocol: TensorBoard, Weights & Biases, trackio. JSON lines always are."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loopwise.config import InputError, nearest
from loopwise.train.progress import Tracker


class TensorBoard:
    """Event files in `out/tensorboard`."""

    def __init__(self, out: Path, name: str, config: Mapping[str, Any]) -> None:
        module = _optional("tensorboard", "torch.utils.tensorboard")
        self.writer = module.SummaryWriter(str(out / "tensorboard"))

    def log(self, step: int, values: dict[str, Any]) -> None:
        for name, value in flatten(values).items():
            self.writer.add_scalar(name, value, step)
        if "sample" in values:
            self.writer.add_text("sample", values["sample"], step)

    def close(self) -> None:
        self.writer.close()


class WandbLike:
    """A package with wandb's `init`, `log` and `finish`: wandb itself, or trackio."""

    def __init__(self, package: str, out: Path, name: str, config: Mapping[str, Any]) -> None:
        self.module = _optional(package, package)
        self.module.init(project="loopwise", name=f"{name}-{out.name}", config=dict(config))

    def log(self, step: int, values: dict[str, Any]) -> None:
        self.module.log(flatten(values), step=step)

    def close(self) -> None:
        self.module.finish()


TRACKERS: dict[str, Callable[[Path, str, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": lambda out, name, config: WandbLike("wandb", out, name, config),
    "trackio": lambda out, name, config: WandbLike("trackio", out, name, config),
}


def tracker(kind: str, out: Path, name: str, config: Mapping[str, Any]) -> Tracker:
    """Start a tracker; an unknown kind or a missing package raises `InputError`."""
    if kind not in TRACKERS:
        raise InputError(f"tracker '{kind}' is unknown: {nearest(kind, TRACKERS)}")
    return TRACKERS[kind](out, name, config)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers only, nested names joined with '/'."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[prefix + name] = value
    return found


def _optional(package: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"tracker '{package}' needs the package '{package}': pip install {package}") from None
