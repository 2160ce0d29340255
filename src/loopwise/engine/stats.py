"""Counters of an engine."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Stats:
    """Launches, rows and time by stage; tokens, exit depths and prefix hits. Times in seconds."""

    launches: dict[str, int] = field(default_factory=lambda: {"prefill": 0, "core": 0, "turn": 0})
    rows: dict[str, int] = field(default_factory=lambda: {"prefill": 0, "core": 0, "turn": 0})
    seconds: dict[str, float] = field(default_factory=lambda: {"prefill": 0.0, "core": 0.0, "turn": 0.0})
    wall_s: float = 0.0
    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    passes_saved: int = 0
    surplus_passes: int = 0  # done on rows that had already left, or ended, when the host did not know it yet
    exit_depths: dict[int, int] = field(default_factory=dict)

    def count(self, stage: str, rows: int, seconds: float) -> None:
        """One launch."""
        self.launches[stage] += 1
        self.rows[stage] += rows
        self.seconds[stage] += seconds

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, with means."""
        launched = sum(self.seconds.values())
        per_launch = {k: self.rows[k] / n if (n := self.launches[k]) else 0.0 for k in self.rows}
        return {
            "ticks": sum(self.launches.values()),
            "launches": dict(self.launches),
            "rows": dict(self.rows),
            "rows_per_launch": per_launch,
            "seconds": dict(self.seconds),
            "wall_s": self.wall_s,
            "host_share": 1 - launched / self.wall_s if self.wall_s else 0.0,
            "requests": self.requests,
            "finished": self.finished,
            "cancelled": self.cancelled,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "core_passes": self.rows["core"] - self.surplus_passes,
            "surplus_passes": self.surplus_passes,
            "passes_saved": self.passes_saved,
            "exit_depths": {str(k): v for k, v in sorted(self.exit_depths.items())},
        }
