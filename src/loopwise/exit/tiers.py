"""Tiers: named quality/cost points of one checkpoint, read from its `tiers.json` (written by `loopwise calibrate`).

The file is JSON: `tiers` is a list of objects of which `name` and `policy` are required and the rest, described in
docs/exit.md, is what calibration promises. Everything else in the file says where the promise comes from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loopwise.config import InputError, nearest
from loopwise.exit.policy import Policy

NAMES = ("economy", "balanced", "quality", "full")  # from cheap to deep; a file may hold others


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One entry. `bound` is what `loss_increase` (its estimate) stays below at `confidence`; `drift` what decoding adds
    to replay. Fields that the file leaves out are None."""

    name: str
    policy: Policy
    threshold: float | None = None
    mean_depth: float | None = None
    loss_increase: float | None = None
    bound: float | None = None
    confidence: float | None = None
    layout: str | None = None
    mode: str | None = None
    drift: float | None = None


def parse_tiers(found: Any, where: str) -> dict[str, Tier]:
    """Tiers by name, in the order of the file. What is wrong with the contents raises `InputError`."""
    entries = found.get("tiers") if isinstance(found, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{where}: holds no list 'tiers': write it with loopwise calibrate")
    tiers: dict[str, Tier] = {}
    for number, entry in enumerate(entries):
        tier = _tier(entry, f"{where}: tier {number}")
        if tier.name in tiers:
            raise InputError(f"{where}: tier '{tier.name}' is there twice: remove one")
        tiers[tier.name] = tier
    return tiers


def choose_tier(tiers: Mapping[str, Tier], name: str) -> Tier:
    """One of the tiers; an unknown name raises `InputError` with the nearest valid one."""
    if name not in tiers:
        raise InputError(f"tier '{name}' is unknown: {nearest(name, tiers)}")
    return tiers[name]


def _tier(entry: Any, where: str) -> Tier:
    if not isinstance(entry, Mapping):
        raise InputError(f"{where} is no object: write the file again with loopwise calibrate")
    for field in ("name", "policy"):
        if not isinstance(entry.get(field), str) or not entry[field]:
            raise InputError(f"{where} has no text '{field}': write the file again with loopwise calibrate")
    numbers: dict[str, float | None] = {}
    for field in ("threshold", "mean_depth", "loss_increase", "bound", "confidence", "drift"):
        value = entry.get(field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InputError(f"{where} field '{field}' is {value!r}: use a number")
        numbers[field] = None if value is None else float(value)
    texts = {field: entry.get(field) for field in ("layout", "mode")}
    return Tier(name=entry["name"], policy=Policy.parse(entry["policy"]), **numbers, **texts)  # type: ignore[arg-type]
