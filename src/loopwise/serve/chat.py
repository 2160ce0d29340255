"""Chat templates: from messages to prompt tokens.

A template is the checkpoint's (`chat_template.jinja`, or `chat_template` in `tokenizer_config.json`), a file of the
operator's, or, for a base model that has neither, plain text: the messages one after another, as something to continue.
Templates run in jinja's immutable sandbox. Text of messages never yields special tokens, whatever it says.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from loopwise.config import InputError
from loopwise.data.tokenizer import Tokenizer
from loopwise.serve.errors import bad
from loopwise.serve.schema import Message, Tool

PLAIN = "{% set blank = '\n\n' %}{% for m in messages %}{% if m.content %}{{ m.content }}{% if not loop.last or add_generation_prompt %}{{ blank }}{% endif %}{% endif %}{% endfor %}"  # fmt: skip  # noqa: E501
PLAIN_STOP = ("\n\n",)  # a base model has no end of a turn: its answer is a paragraph
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
_MARK = "\ue000{}\ue001"


class ChatTemplate:
    """`source` is jinja; `specials` the token names it may use. `stop` ends answers besides the request's own."""

    def __init__(self, source: str, tokenizer: Tokenizer, *, specials: Mapping[str, str], stop: Sequence[str] = ()):
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])  # fmt: skip  # noqa: E501
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise InputError(f"chat template is no valid jinja ({error}): correct it") from None
        self._tokenizer, self._specials, self.stop = tokenizer, dict(specials), tuple(stop)
        names = sorted((tokenizer.token_text(i) for i in tokenizer.special_ids), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, filter(None, names)))) if names else None

    @classmethod
    def of(cls, folder: Path, tokenizer: Tokenizer, file: Path | None = None, stop: Sequence[str] = ()):
        """The template of a checkpoint's folder; `file` replaces it. Unreadable files raise `InputError`."""
        settings = _settings(folder / "tokenizer_config.json")
        specials = {name: _named(settings.get(name)) for name in NAMES if settings.get(name)}
        specials.setdefault("eos_token", tokenizer.eos or "")
        beside = folder / "chat_template.jinja"
        if file is not None or beside.is_file():
            return cls(_read(file or beside), tokenizer, specials=specials, stop=stop)
        own = settings.get("chat_template")
        if isinstance(own, list):  # several under names
            own = next((entry["template"] for entry in own if entry.get("name") == "default"), None)
        if isinstance(own, str):
            return cls(own, tokenizer, specials=specials, stop=stop)
        return cls(PLAIN, tokenizer, specials=specials, stop=(*PLAIN_STOP, *stop))

    def tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Prompt tokens; a template that refuses the messages is a 400."""
        found: list[str] = []
        plain = [_plain(message, lambda text: self._guard(text, found)) for message in messages]
        values = {"tools": [tool.model_dump(exclude_none=True) for tool in tools] if tools else None, "documents": None}
        values |= {**self._specials, **(extra or {}), "messages": plain}
        values["add_generation_prompt"] = add_generation_prompt and not continue_final
        try:
            text = self._template.render(**values)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise bad(f"the chat template refuses these messages: {error}", "messages", "invalid_messages") from None
        if continue_final:
            text = _cut(text, plain[-1]["content"])
        return self._encode(text, found)

    def _guard(self, text: str, found: list[str]) -> str:
        """`text` with what would be special tokens put aside in `found`."""
        if self._special is None or not self._special.search(text):
            return text

        def aside(match: re.Match[str]) -> str:
            found.append(match[0])
            return _MARK.format(len(found) - 1)

        return self._special.sub(aside, text)

    def _encode(self, text: str, found: list[str]) -> list[int]:
        if not found:
            return self._tokenizer.encode(text, specials=True)
        ids: list[int] = []
        for number, piece in enumerate(re.split("\ue000([0-9]+)\ue001", text)):
            if number % 2 and int(piece) < len(found):
                ids += self._tokenizer.encode(found[int(piece)])
            elif piece:
                ids += self._tokenizer.encode(piece, specials=True)
        return ids


def _plain(message: Message, guard: Any) -> dict[str, Any]:
    """A message as templates expect it: content is one text; `developer` is the new name of `system`."""
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text or "" for part in content)
    made = message.model_dump(exclude_none=True, include={"role", "name", "tool_call_id"})
    made["role"] = "system" if message.role == "developer" else message.role
    made["content"] = guard(content or "")
    if message.tool_calls:
        made["tool_calls"] = [
            {"type": "function", "function": {"name": c.function.name, "arguments": guard(c.function.arguments)}}
            for c in message.tool_calls
        ]
    return made


def _cut(text: str, last: str) -> str:
    """`text` up to the end of the last message, so that it is continued."""
    last = last.strip()
    at = text.rfind(last) if last else -1
    if at < 0:
        raise bad("continue_final_message needs a last message with text that the template shows", "messages")
    return text[: at + len(last)]


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _named(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _settings(path: Path) -> dict[str, Any]:
    """`tokenizer_config.json`, or nothing."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"chat template '{path}' cannot be read ({error}): give a jinja file") from None
