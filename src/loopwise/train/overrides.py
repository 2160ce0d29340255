"""Change single recipe fields from text: `--model.d_model 256`, `--train.lr 1e-3`, `--depth.mean 4`."""

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from loopwise.config import InputError, nearest
from loopwise.train.config import Recipe

SECTIONS = ("model", "train", "depth", "data")


def override(recipe: Recipe, changes: Mapping[str, str]) -> Recipe:
    """Apply `section.field -> text`; unknown names, unreadable values and bad results raise `InputError`.

    `depth.mean` also sets `model.mean_depth` (the mean that the checkpoint reports), unless that is given itself.
    """
    changes = dict(changes)
    if "depth.mean" in changes:
        changes.setdefault("model.mean_depth", changes["depth.mean"])
    by_section: dict[str, dict[str, Any]] = {}
    for name, text in changes.items():
        section, _, field = name.partition(".")
        if section not in SECTIONS:
            raise InputError(f"recipe section '{section}' in '--{name}' is unknown: {nearest(section, SECTIONS)}")
        fields = {f.name: f.type for f in dataclasses.fields(getattr(recipe, section))}
        if field not in fields:
            raise InputError(f"recipe field '{name}' is unknown: {nearest(field, fields)}")
        by_section.setdefault(section, {})[field] = parse(name, text, fields[field])
    parts = {s: dataclasses.replace(getattr(recipe, s), **values) for s, values in by_section.items()}
    return dataclasses.replace(recipe, **parts)


def parse(name: str, text: str, annotation: Any) -> Any:
    """Read `text` as the annotated type; raises `InputError` naming field, value and type."""
    origin = get_origin(annotation)
    if origin is Literal:
        return text  # the section's own check names the valid choices
    if origin in (Union, types.UnionType):
        if text.lower() in ("none", "null"):
            return None
        return parse(name, text, next(a for a in get_args(annotation) if a is not type(None)))
    if origin is tuple and get_args(annotation)[0] is int:
        return tuple(parse(name, item, int) for item in text.split(","))
    if annotation not in _READERS:
        raise InputError(f"recipe field '{name}' cannot be set on the command line: write a recipe function")
    try:
        return _READERS[annotation](text)
    except (ValueError, KeyError, OverflowError):
        raise InputError(f"recipe field '{name}' is {text!r}: use a value of type {annotation.__name__}") from None


def _int(text: str) -> int:
    """Integers, also as 20e6 or 20M/3k (exact only)."""
    scale = {"k": 10**3, "m": 10**6, "b": 10**9}.get(text[-1:].lower(), 1)
    number = float(text[:-1] if scale > 1 else text) * scale
    if number != int(number):
        raise ValueError(text)
    return int(number)


def _bool(text: str) -> bool:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]


_READERS: dict[Any, Callable[[str], Any]] = {int: _int, float: float, bool: _bool, str: str}
