"""Ctrl-C and SIGTERM as a request that is honoured between optimizer steps; a second signal acts at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn


class Interrupt:
    """Context manager; `asked` is the signal number received, or 0. Outside the main thread it does nothing."""

    def __init__(self) -> None:
        self.asked = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._release()

    def leave(self, message: str) -> NoReturn:
        """End as the signal wants: KeyboardInterrupt (exit 130), or SystemExit 143 after SIGTERM."""
        if self.asked == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt(message)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        self._release()

    def _release(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}
