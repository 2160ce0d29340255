"""Exit policies: a signal and a rule, written as a string such as `kl<1e-3,min=2,max=8` or `depth=8`."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwise.config import InputError, nearest
from loopwise.exit.rules import Below, Fixed, Recorded, Rule
from loopwise.exit.signals import SIGNALS, Signal

_THRESHOLD = re.compile(r"^([a-z_0-9]+)<([^,]+)$")
MOST_PASSES = 4096  # more than any model takes; numbers of any size would reach tensors that cannot hold them
_OPTIONS = ("min", "max", "patience", "every", "lag")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When a token stops looping.

    `signal` None is A0 (`depth=N`) or, with `recorded` set, `replay:FILE`. `min_depth` and `max_depth` bound every
    row. `max_depth` None means the checkpoint's; `bind(max_depth)` settles it. `later` are thresholds of the checks
    after the first (`rel_change<0.2/0.1/0.05`), `lag` 1 delays every decision by a pass.
    """

    signal: str | None = None
    threshold: float = 0.0
    min_depth: int = 1
    max_depth: int | None = None
    patience: int = 1
    every: int = 1
    recorded: tuple[int, ...] | None = None
    later: tuple[float, ...] = ()
    lag: int = 0

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """Read a policy string; a wrong one raises `InputError` that names the part and the nearest valid name."""
        head, *options = [part.strip() for part in text.strip().split(",")]
        if head.startswith("replay:"):
            return cls(recorded=_read_depths(Path(text.strip()[len("replay:") :])))
        if head.startswith("depth="):
            if options:
                raise InputError(f"policy '{text}': depth=N takes no options: remove '{options[0]}'")
            depth = _integer(text, "depth", head[len("depth=") :])
            return cls(min_depth=depth, max_depth=depth)
        match = _THRESHOLD.match(head)
        if not match:
            raise InputError(f"policy '{text}': '{head}' is not SIGNAL<THRESHOLD, depth=N or replay:FILE: e.g. kl<1e-3")
        if match[1] not in SIGNALS:
            raise InputError(f"policy '{text}': unknown signal '{match[1]}': {nearest(match[1], SIGNALS)}")
        values = {_option(text, option) for option in options}
        first, *later = (_threshold(text, value) for value in match[2].split("/"))
        return cls(signal=match[1], threshold=first, later=tuple(later), **_bounds(text, dict(values)))

    def __str__(self) -> str:
        if self.recorded is not None:
            return "replay"
        if self.signal is None:
            return f"depth={self.max_depth}"
        parts = [f"{self.signal}<" + "/".join(f"{t:g}" for t in (self.threshold, *self.later))]
        parts += [f"min={self.min_depth}"] if self.min_depth > 1 else []
        parts += [f"max={self.max_depth}"] if self.max_depth is not None else []
        parts += [f"patience={self.patience}"] if self.patience > 1 else []
        parts += [f"every={self.every}"] if self.every > 1 else []
        parts += [f"lag={self.lag}"] if self.lag else []
        return ",".join(parts)

    def bind(self, max_depth: int) -> "Policy":
        """Settle `max_depth` for a model that allows at most `max_depth` passes; deeper requests are refused."""
        wanted = max_depth if self.max_depth is None else self.max_depth
        if not 1 <= wanted <= max_depth:
            raise InputError(f"policy '{self}': max depth {wanted} is out of range: use 1 to {max_depth}")
        if self.min_depth > wanted:
            raise InputError(f"policy '{self}': min={self.min_depth} is above max={wanted}: lower it")
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Policy(**{**values, "max_depth": wanted})

    @property
    def reads(self) -> Signal | None:
        """The signal this policy reads, or None."""
        return SIGNALS[self.signal] if self.signal else None

    def rule(self) -> Rule:
        """The rule object of a bound policy."""
        assert self.max_depth is not None, "bind the policy first"
        if self.recorded is not None:
            return Recorded(max_depth=self.max_depth)
        if self.signal is None:
            return Fixed(max_depth=self.max_depth)
        return Below(
            threshold=self.threshold,
            min_depth=self.min_depth,
            max_depth=self.max_depth,
            patience=self.patience,
            every=self.every,
            first_check=max(self.min_depth, SIGNALS[self.signal].first_depth),
            later=self.later,
            lag=self.lag,
        )


def _option(text: str, option: str) -> tuple[str, int]:
    name, equals, value = option.partition("=")
    if name not in _OPTIONS or not equals:
        raise InputError(f"policy '{text}': unknown option '{option}': {nearest(name, _OPTIONS)}")
    return name, _integer(text, name, value)


def _bounds(text: str, values: dict[str, int]) -> dict[str, Any]:
    if values.get("max", values.get("min", 1)) < values.get("min", 1):
        raise InputError(f"policy '{text}': min={values['min']} is above max={values['max']}: lower it")
    if values.get("lag", 1) > 1:
        raise InputError(f"policy '{text}': lag is '{values['lag']}': use 1, or leave it out")
    names = {"min": "min_depth", "max": "max_depth"}
    return {names.get(name, name): value for name, value in values.items()}


def _integer(text: str, name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not value.strip("0"):
        raise InputError(f"policy '{text}': {name} is '{value}': use an integer of at least 1")
    if len(value) > 18 or int(value) > MOST_PASSES:
        raise InputError(f"policy '{text}': {name} is '{value[:20]}': out of range, use at most {MOST_PASSES}")
    return int(value)


def _threshold(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise InputError(f"policy '{text}': threshold is '{value}': use a finite number of at least 0, e.g. 1e-3")
    return number


def _read_depths(path: Path) -> tuple[int, ...]:
    """Depths of a `replay:` file: a JSON list, or an object with `depths` (as `loopwise generate --json` prints)."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"policy 'replay:{path}': cannot be read as JSON ({error}): give a list of depths") from None
    depths = found.get("depths") if isinstance(found, dict) else found
    if not isinstance(depths, list) or not depths or not all(type(d) is int and d >= 1 for d in depths):
        raise InputError(f"policy 'replay:{path}': holds no list of depths: use a JSON list of integers of at least 1")
    return tuple(depths)
