"""Write training states in the background: a step waits for the copy into memory, not for the disk."""

import sys
import threading
from pathlib import Path
from typing import Any

from torch import Tensor

from loopwise.train import state


class Saver:
    """One write at a time. A periodic write that fails (full disk, no permission) is told on stderr and training goes
    on with the last good state; `wait(strict=True)` raises it."""

    def __init__(self, states: Path, keep: int) -> None:
        self.states, self.keep = states, keep
        self.thread: threading.Thread | None = None
        self.failure: OSError | None = None

    def submit(self, meta: dict[str, Any], model: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
        """Copy the tensors and begin to write; waits for the write before, if that is still under way."""
        self.wait()
        copies = [{n: t.detach().to("cpu", copy=True) for n, t in tensors.items()} for tensors in (model, optimizer)]
        self.thread = threading.Thread(target=self._write, args=(meta, *copies), name="loopwise-saver")
        self.thread.start()

    def wait(self, strict: bool = False) -> None:
        """Wait for the write under way. Raises OSError if it failed and `strict`."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if strict and self.failure is not None:
            raise self.failure

    def _write(self, meta: dict[str, Any], model: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
        try:
            state.write(self.states, meta, model, optimizer, self.keep)
            self.failure = None
        except OSError as error:
            self.failure = error
            print(
                f"loopwise: training state of step {meta['step']} was not written ({error}); going on", file=sys.stderr
            )
