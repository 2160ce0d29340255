"""Structured output: token masks from a JSON schema, a regular expression, a list of texts or a grammar.

llguidance (an optional extra) does the work; every choice of a request has a matcher of its own.
"""

import importlib
import json
import logging
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopwise.config import InputError
from loopwise.data.tokenizer import Tokenizer
from loopwise.serve.errors import ApiError, bad
from loopwise.serve.schema import ResponseFormat, StructuredOutputs, Tool

_LOG = logging.getLogger(__name__)
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
PARAM = "response_format"
LONGEST = 120_000  # characters of a schema (OpenAI's limit): compiling larger ones can take minutes


class Grammars:
    """Compiles grammars over one tokenizer. Without llguidance every request for one is refused."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab_size
        self._ll: Any = None
        self._words: Any = None

    def _load(self) -> Any:
        if self._ll is None:
            try:
                self._ll = importlib.import_module("llguidance")
            except ImportError:
                message = "structured output needs the package llguidance on the server: ask its operator"
                raise ApiError(400, message, param=PARAM, code="unsupported_parameter") from None
            text, eos = self._tokenizer.data.decode(), self._tokenizer.eos_id
            try:
                self._words = self._ll.LLTokenizer(text, n_vocab=self._vocab, eos_token=eos)
            except Exception as error:  # the library raises several kinds for tokenizers it cannot read
                raise InputError(f"structured output cannot read this tokenizer ({error}): leave it out") from None
        return self._ll

    def json_schema(self, schema: dict[str, Any] | str) -> str:
        """A grammar of JSON values."""
        try:
            found = self._load().LLMatcher.grammar_from_json_schema(schema, overrides=_COMPACT)
        except ValueError as error:
            raise bad(f"the JSON schema cannot be used: {error}", PARAM, "invalid_grammar") from None
        if len(found) > LONGEST:
            message = f"the JSON schema has {len(found)} characters: use at most {LONGEST}"
            raise bad(message, PARAM, "invalid_grammar")
        return found

    def regex(self, pattern: str) -> str:
        """A grammar of texts that a regular expression matches whole."""
        try:
            return self._load().LLMatcher.grammar_from_regex(pattern)
        except ValueError as error:  # such as half a surrogate pair
            raise bad(f"the output format cannot be used: {error}", PARAM, "invalid_grammar") from None

    def lark(self, text: str) -> str:
        """A grammar in llguidance's dialect of Lark."""
        return self._load().LLMatcher.grammar_from_lark(text)

    def of(self, wanted: ResponseFormat | None, structured: StructuredOutputs | None) -> str | None:
        """What a request asks its output to be; None for plain text."""
        found = [] if wanted is None or wanted.type == "text" else [self._format(wanted)]
        if structured is not None:
            found += self._structured(structured)
        if len(found) > 1:
            raise bad("several output formats are asked for: give one", "structured_outputs")
        return found[0] if found else None

    def _format(self, wanted: ResponseFormat) -> str:
        if wanted.type == "json_object":
            return self.json_schema({"type": "object"})
        if wanted.json_schema is None:
            raise bad("response_format 'json_schema' needs the field json_schema: add it", PARAM)
        return self.json_schema(wanted.json_schema.schema_)

    def _structured(self, wanted: StructuredOutputs) -> list[str]:
        found = [self.json_schema(wanted.json_)] if wanted.json_ is not None else []
        found += [self.regex(wanted.regex)] if wanted.regex is not None else []
        found += [self.regex("|".join(map(re.escape, wanted.choice)))] if wanted.choice is not None else []
        return found + ([self.lark(wanted.grammar)] if wanted.grammar is not None else [])

    def tools(self, tools: Sequence[Tool], *, required: bool) -> str:
        """A call of one of the tools, as `{"name": ..., "arguments": {...}}`; unless `required`, or any other text."""
        self._load()
        calls = [_call(tool) for tool in tools]
        schema = json.dumps({"anyOf": calls, "x-guidance": _COMPACT} if len(calls) > 1 else {**calls[0], "x-guidance": _COMPACT})  # fmt: skip  # noqa: E501
        text = "" if required else " | text\ntext: /[^{](?s:.*)/ | "
        return self.lark(f"start: call{text}\ncall: %json {schema}\n")

    def matcher(self, grammar: str) -> "Matcher":
        """A fresh matcher; a faulty grammar is a 400."""
        found = self._load().LLMatcher(self._words, grammar, log_level=0)
        if found.is_error():
            reason = str(found.get_error()).splitlines()[0][:300]
            raise bad(f"the output format cannot be used: {reason}", PARAM, "invalid_grammar")
        return Matcher(found, self._tokenizer.eos_id, self._vocab)


def _call(tool: Tool) -> dict[str, Any]:
    parameters = dict(tool.function.parameters or {"type": "object", "additionalProperties": True})
    if "properties" in parameters:
        parameters.setdefault("additionalProperties", False)  # JSON schema allows more; nobody means that of a call
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.function.name},
            "arguments": parameters,
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class Matcher:
    """The mask of one choice, as the engine calls it: with all tokens so far."""

    def __init__(self, matcher: Any, eos: int, vocab: int) -> None:
        self._matcher, self._eos, self._vocab, self._seen = matcher, eos, vocab, 0

    def __call__(self, output: list[int]) -> Tensor:
        """Which tokens may follow. Nothing that goes wrong here may reach the engine: the text just ends."""
        fresh, self._seen = output[self._seen :], len(output)
        allowed = torch.zeros(self._vocab, dtype=torch.bool)
        try:
            if fresh and not self._matcher.consume_tokens(fresh):
                _LOG.warning("structured output ends early: %s", self._matcher.get_error())
            elif not self._matcher.is_stopped():
                bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
                unpacked = (bits[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
                mask = unpacked.flatten()[: self._vocab].bool()
                allowed[: len(mask)] = mask
        except Exception:
            _LOG.exception("structured output failed")
        if not bool(allowed.any()):
            allowed[self._eos] = True
        return allowed
