"""What a resumed run must share with the run it continues: recipe, data and tokenizer."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from loopwise.config import InputError, ModelConfig
from loopwise.train.config import PRACTICAL, Recipe


def check_same(meta: Mapping[str, Any], recipe: Recipe, fingerprint: Mapping[str, Any]) -> None:
    """Raise `InputError` naming up to three differences; fields that only say how to run may differ."""
    saved = {
        f"{section}.{key}": value
        for section in ("model", "train", "depth", "data")
        for key, value in meta["recipe"].get(section, {}).items()
    }
    for field in dataclasses.fields(ModelConfig):  # a field added since then had its default
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        if default is not dataclasses.MISSING:
            saved.setdefault(f"model.{field.name}", default)
    now = recipe.binding()
    before = {name: saved.get(name, _default(recipe, name)) for name in now}  # a field may be newer than the state
    changed = differences(before | {k: v for k, v in saved.items() if k not in PRACTICAL}, now)
    if changed:
        raise InputError(
            f"cannot resume step {meta['step']}: the recipe changed: {changed}: "
            "restore it, or start anew in another folder"
        )
    changed = differences(meta["fingerprint"], fingerprint)
    if changed:
        raise InputError(
            f"cannot resume step {meta['step']}: the data changed: {changed}: "
            "restore it, or start anew in another folder"
        )


def _default(recipe: Recipe, name: str) -> Any:
    """What a field meant before it existed: its default."""
    section, _, field = name.partition(".")
    found = {f.name: f.default for f in dataclasses.fields(getattr(recipe, section))}[field]
    return list(found) if isinstance(found, tuple) else found


def differences(before: Mapping[str, Any], now: Mapping[str, Any], most: int = 3) -> str:
    """`name was A, is B` for the first differing entries; empty if there are none."""
    names = [n for n in sorted(before.keys() | now.keys()) if before.get(n) != now.get(n)]
    told = [f"{n} was {before.get(n)!r}, is {now.get(n)!r}" for n in names[:most]]
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return "; ".join(told + more)
