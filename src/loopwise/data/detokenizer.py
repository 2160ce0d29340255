"""Token ids to text as they come, one at a time."""

from loopwise.data.tokenizer import Tokenizer


class Detokenizer:
    """Ids to text, one at a time: returns only whole characters, and keeps the bytes of an unfinished one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._held = b""
        self._strip = tokenizer.strips_first_space

    def push(self, token: int) -> str:
        """Text that became complete with this token (may be empty)."""
        return self._take(self._tokenizer.token_bytes(token), final=False)

    def finish(self) -> str:
        """What is left at the end; an unfinished character becomes U+FFFD."""
        return self._take(b"", final=True)

    def _take(self, data: bytes, *, final: bool) -> str:
        data = self._held + data
        if self._strip and data:
            self._strip, data = False, data.removeprefix(b" ")
        cut = len(data) if final else len(data) - _unfinished(data)
        self._held = data[cut:]
        return data[:cut].decode("utf-8", "replace")


def _unfinished(data: bytes) -> int:
    """Number of bytes at the end that begin a UTF-8 character but do not complete it."""
    for back in range(1, min(3, len(data)) + 1):
        lead = data[-back]
        if lead >= 0xC0:
            needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return back if needed > back and lead < 0xF8 else 0
        if lead < 0x80:
            return 0
    return 0
