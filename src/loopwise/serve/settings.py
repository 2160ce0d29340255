"""Settings of a server: names, limits and time-outs. Every limit exists so that no client can take the server down."""

from dataclasses import dataclass, field
from pathlib import Path

from loopwise.config import InputError


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What a server allows. Times in seconds.

    `keys` are the API keys (none: everybody may ask); `rate` requests a minute and `per_key` requests at a time bound
    each key (0: no bound). `max_waiting` choices and `max_waiting_tokens` prompt tokens may queue; else 503.
    `body_bytes` bounds a request body and `body_s` the time it may take to arrive; `header_s` the time until a
    request's headers are complete. `stall_s` ends a stream whose reader takes nothing. `drain_s` is how long requests
    may go on after SIGTERM.
    """

    name: str
    keys: tuple[str, ...] = field(default=(), repr=False)
    default_tier: str | None = None
    chat_template: Path | None = None
    chat_stop: tuple[str, ...] = ()
    max_choices: int = 64
    max_waiting: int = 512
    max_waiting_tokens: int = 1 << 20
    body_bytes: int = 4 << 20
    body_s: float = 30.0
    header_s: float = 15.0
    stall_s: float = 60.0
    request_s: float = 600.0
    drain_s: float = 30.0
    rate: int = 0
    per_key: int = 0
    metrics_compat: bool = False

    def __post_init__(self) -> None:
        if not self.name or ":" in self.name:
            raise InputError(f"model name '{self.name}' is empty or holds a colon: choose another with --name")
        for name in ("max_choices", "max_waiting", "max_waiting_tokens", "body_bytes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: use at least 1")
        for name in ("body_s", "header_s", "stall_s", "request_s", "drain_s", "rate", "per_key"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}: use at least 0")
        if any(len(key) < 8 for key in self.keys):
            raise InputError("an API key has fewer than 8 characters: use a longer one")
