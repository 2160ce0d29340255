"""Text of one continuation as it grows: whole characters only, and stop strings found across token boundaries."""

from loopwise.sampling import SamplingParams


class Text:
    """`push` text as it becomes complete; `take` returns what is certain. `stopped` is the stop string that was found.

    A stop string counts from the moment `eligible` allows it (after `min_tokens`), wherever in the text it is; the text
    then ends at its first occurrence, the earliest one winning.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._stops, self._include = params.stop, params.include_stop
        self._longest = max(map(len, self._stops), default=0)
        self.full = ""
        self.stopped: str | None = None
        self._sent = 0
        self._searched = 0

    def push(self, piece: str, *, eligible: bool = True) -> None:
        """Add text; look for stop strings if `eligible`."""
        self.full += piece
        if not self._stops or not eligible:
            return
        found = [(at, stop) for stop in self._stops if (at := self.full.find(stop, self._searched)) >= 0]
        self._searched = max(0, len(self.full) - self._longest + 1)
        if found:
            at, self.stopped = min(found)
            self.full = self.full[: at + len(self.stopped)] if self._include else self.full[:at]

    def take(self, *, final: bool) -> str:
        """Text that became certain: all of it at the end, else all but what may begin a stop string."""
        end = len(self.full)
        if self._stops and not final:
            end -= self._held()
        piece = self.full[self._sent : end]
        self._sent = max(self._sent, end)
        return piece

    def _held(self) -> int:
        """Length of the longest end of the text that is a proper beginning of a stop string."""
        for length in range(min(self._longest - 1, len(self.full)), 0, -1):
            tail = self.full[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0
