"""Exit rules: turn a stream of signal values into decisions. Vectorised over rows; the carry is a tensor per row.

`init(rows) -> carry` and `step(value, depth, carry) -> (exit_mask, carry)`. The carry's leading axis is the row, so an
engine can gather and scatter it. The same rule object runs in replay, in the reference decoder and in the engine.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Decision(NamedTuple):
    """Which rows leave now, and the carry for those that stay."""

    leave: Bool[Tensor, "rows"]
    carry: Int[Tensor, "rows"]


@dataclass(frozen=True, kw_only=True)
class Below:
    """Leave once the value was under the threshold at `patience` checks in a row, never before `min_depth`, always at
    `max_depth`. Checks happen at depths first, first + every, ... where first = max(min_depth, signal's first depth).
    The first check compares with `threshold`, the ones after it with `later`, whose last entry serves all the rest.
    With `lag` 1 a decision takes effect one pass late, so that a device need not wait for it."""

    threshold: float
    min_depth: int
    max_depth: int
    patience: int = 1
    every: int = 1
    first_check: int = 1
    later: tuple[float, ...] = ()
    lag: int = 0

    def init(self, rows: int, device: torch.device | str = "cpu") -> Int[Tensor, "rows"]:
        """Carry: how many checks in a row were under the threshold."""
        return torch.zeros(rows, dtype=torch.int32, device=device)

    def checks_at(self, depth: int) -> bool:
        """Whether the signal is read after pass `depth` (the last pass needs no check)."""
        return self.first_check <= depth < self.max_depth and (depth - self.first_check) % self.every == 0

    def due(self, depth: Int[Tensor, "rows"]) -> Bool[Tensor, "rows"]:
        """`checks_at` for a row of depths."""
        return (depth >= self.first_check) & (depth < self.max_depth) & ((depth - self.first_check) % self.every == 0)

    def limit(self, depth: Int[Tensor, "rows"]) -> Float[Tensor, "rows"] | float:
        """The threshold of the check after pass `depth`."""
        if not self.later:
            return self.threshold
        check = (depth - self.first_check).div(self.every, rounding_mode="floor").clamp(0, len(self.later))
        return torch.tensor((self.threshold, *self.later), dtype=torch.float32, device=depth.device)[check]

    def step(
        self, value: Float[Tensor, "rows"] | None, depth: Int[Tensor, "rows"] | int, carry: Int[Tensor, "rows"]
    ) -> Decision:
        """Decide after pass `depth`. `value` is ignored (and may be None) at depths without a check."""
        depth = torch.full_like(carry, depth) if isinstance(depth, int) else depth
        leave, before = depth >= self.max_depth, carry
        if value is not None:
            due = self.due(depth)
            passed = torch.where(value < self.limit(depth), carry + 1, torch.zeros_like(carry))
            carry = torch.where(due, passed, carry)
            leave = leave if self.lag else leave | (due & (carry >= self.patience))
        return Decision(leave | (before >= self.patience) if self.lag else leave, carry)


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A0: leave at `max_depth`."""

    max_depth: int

    def init(self, rows: int, device: torch.device | str = "cpu") -> Int[Tensor, "rows"]:
        """An unused carry."""
        return torch.zeros(rows, dtype=torch.int32, device=device)

    def checks_at(self, depth: int) -> bool:
        """Never reads a signal."""
        return False

    def due(self, depth: Int[Tensor, "rows"]) -> Bool[Tensor, "rows"]:
        """`checks_at` for a row of depths."""
        return torch.zeros_like(depth, dtype=torch.bool)

    def step(self, value: Tensor | None, depth: Int[Tensor, "rows"] | int, carry: Int[Tensor, "rows"]) -> Decision:
        """Decide after pass `depth`."""
        depth = torch.full_like(carry, depth) if isinstance(depth, int) else depth
        return Decision(depth >= self.max_depth, carry)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Play recorded exit depths: the value passed to `step` is each row's recorded depth."""

    max_depth: int

    def init(self, rows: int, device: torch.device | str = "cpu") -> Int[Tensor, "rows"]:
        """An unused carry."""
        return torch.zeros(rows, dtype=torch.int32, device=device)

    def checks_at(self, depth: int) -> bool:
        """The recorded depth is looked at after every pass but the last; it costs nothing."""
        return depth < self.max_depth

    def due(self, depth: Int[Tensor, "rows"]) -> Bool[Tensor, "rows"]:
        """`checks_at` for a row of depths."""
        return depth < self.max_depth

    def step(self, value: Tensor | None, depth: Int[Tensor, "rows"] | int, carry: Int[Tensor, "rows"]) -> Decision:
        """Decide after pass `depth`; `value` holds the recorded depths (None: nothing recorded, go to `max_depth`)."""
        depth = torch.full_like(carry, depth) if isinstance(depth, int) else depth
        if value is None:
            return Decision(depth >= self.max_depth, carry)
        return Decision((depth >= value) | (depth >= self.max_depth), carry)


Rule = Below | Fixed | Recorded
