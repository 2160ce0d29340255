"""What a person sees while training (a rich bar on stderr) and what stays (metrics as JSON lines)."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@runtime_checkable
class Tracker(Protocol):
    """Where metrics go. `log` gets plain numbers or lists of numbers by name."""

    def log(self, step: int, values: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One JSON object per line in `path`. Opening for a resumed run drops the lines after `resumed_step`."""

    def __init__(self, path: Path, resumed_step: int = 0) -> None:
        kept = [line for line in _lines(path) if _step(line) <= resumed_step] if resumed_step else []
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(line + "\n" for line in kept), "utf-8")
        os.replace(temporary, path)
        self.file = path.open("a", encoding="utf-8")

    def log(self, step: int, values: dict[str, Any]) -> None:
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class Bar:
    """Loss, tokens/s, depth and ETA on stderr; silent when stderr is no terminal or `quiet`."""

    def __init__(self, total: int, done: int, quiet: bool) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        shown = not quiet and sys.stderr.isatty()
        self.quiet = quiet
        self.progress = Progress(*columns, console=Console(stderr=True), disable=not shown)
        self.task = self.progress.add_task("training", total=total, completed=done)
        self.progress.start()

    def show(self, step: int, total: int, loss: float, depth: float, tokens_per_s: float) -> None:
        text = f"loss {loss:.4f} · {tokens_per_s:,.0f} tokens/s · depth {depth:.3g}"
        self.progress.update(self.task, completed=step, total=total, description=text)

    def say(self, text: str) -> None:
        """A line above the bar (also shown when the bar is not, unless quiet)."""
        if not self.quiet:
            self.progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self.progress.stop()


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return float("inf")  # cut off by a crash
