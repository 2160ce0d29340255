"""What the planner knows of a request: lengths, blocks and progress. No tensors, no text."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(kw_only=True, eq=False)
class Job:
    """One continuation to produce.

    `positions` is how many positions its KV may need (prompt and all generated tokens but the last). `start` begins the
    hash chain of its prompt, None keeps it out of the prefix cache. The other fields belong to the scheduler: `place`
    (row of the state arrays, -1 while not admitted), `blocks`, `done` prompt tokens computed or found, `cached` of them
    found, `published` blocks offered so far, `admitted_s` the `perf_counter` when it got its place.
    """

    name: str
    prompt: Sequence[int]
    positions: int
    priority: int = 0
    start: bytes | None = None
    arrival: int = -1
    place: int = -1
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    done: int = 0
    cached: int = 0
    published: int = 0
    admitted_s: float = 0.0
    cancelled: bool = False
    over: bool = False
