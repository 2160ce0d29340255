"""Tokenizers: a thin wrapper over `tokenizers` that keeps text and special tokens apart and knows bytes per token.

Ordinary text never yields a special token: `<|endoftext|>` written in a document or a prompt is encoded as characters.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from loopwise.config import InputError
from loopwise.records import sha256, write_bytes

SPECIALS = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>")
# Names under which other families keep the end-of-document token, tried in this order.
EOS_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<|end_text|>", "</s>", "<eos>", "<|im_end|>")
SPARE_ROWS = 1024  # models may pad their embedding: the widest padding of a public family is 905 rows (Phi-2)
MIN_VOCAB = 256 + len(SPECIALS)
_GROUP = 256  # documents handed to the trainer at a time


class Tokenizer:
    """Text to token ids and back. `data` is the content of `tokenizer.json`; `name` is used in messages."""

    def __init__(self, data: bytes, *, name: str = "tokenizer", eos: str | None = None) -> None:
        try:
            content = data.decode("utf-8")
            self._plain = tokenizers.Tokenizer.from_str(content)
            self._marked = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises bare Exception
            raise InputError(f"{name}: is no tokenizer.json ({str(error)[:120]}): copy it again") from None
        for raw in (self._plain, self._marked):
            raw.no_padding()
            raw.no_truncation()
        self._plain.encode_special_tokens = True
        self.name = name
        self.data = data
        self.eos = eos if eos is not None else next((n for n in EOS_NAMES if self.id_of(n) is not None), None)
        if eos is not None and self.id_of(eos) is None:
            raise InputError(f"{name}: has no token '{eos}': name an end-of-document token that it has")

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Read `tokenizer.json`, a folder that holds it, or that of a hub id (`hub:org/name`, or `org/name` where no
        such path exists). A missing or damaged file raises `InputError`."""
        path = _local(str(path))
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            remedy = "give a tokenizer.json, its folder, or hub:org/name"
            raise InputError(f"tokenizer '{file}' does not exist: {remedy}") from None
        except OSError as error:
            raise InputError(f"tokenizer '{file}' cannot be read ({error}): check the path") from None
        return cls(data, name=str(file), eos=_eos_beside(file))

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int = 4096, name: str = "tokenizer") -> "Tokenizer":
        """Train a byte-level BPE with one token per digit; `SPECIALS` come first (end of document is id 0).

        Text that yields fewer merges than asked for gives a smaller vocabulary. Empty text or a `vocab_size` below
        `MIN_VOCAB` (all bytes and specials) raises `InputError`.
        """
        if vocab_size < MIN_VOCAB:
            raise InputError(f"vocab_size is {vocab_size}: use at least {MIN_VOCAB} (256 bytes and the special tokens)")
        raw = tokenizers.Tokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        raw.decoder = decoders.ByteLevel()  # type: ignore[assignment]
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        counted = _Counted(texts)
        raw.train_from_iterator(counted.groups(), trainer)
        if counted.characters == 0:
            raise InputError("no text to train a tokenizer on: give text with at least one document")
        return cls(raw.to_str(pretty=False).encode(), name=name)

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return self._size

    @cached_property
    def _size(self) -> int:
        return max(self._plain.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def digest(self) -> str:
        """sha256 of the file's bytes."""
        return sha256(self.data)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens: they stand for no text."""
        return frozenset(i for i, token in self._plain.get_added_tokens_decoder().items() if token.special)

    @property
    def eos_id(self) -> int:
        """Id of the end-of-document token; a tokenizer without one raises `InputError`."""
        found = None if self.eos is None else self.id_of(self.eos)
        if found is None:
            raise InputError(f"{self.name}: has no end-of-document token: add one of {', '.join(EOS_NAMES)}")
        return found

    def id_of(self, token: str) -> int | None:
        """Id of a token by its name in the vocabulary, or None."""
        return self._plain.token_to_id(token)

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """Token ids of `text`. With `specials`, special tokens written in it are recognised (chat templates)."""
        raw = self._marked if specials else self._plain
        return raw.encode(_sound(text), add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of several texts, on all cores unless TOKENIZERS_PARALLELISM=false."""
        found = self._plain.encode_batch_fast([_sound(text) for text in texts], add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_document(self, text: str) -> list[int]:
        """`encode`, then the end-of-document token."""
        return [*self.encode(text), self.eos_id]

    def decode(self, ids: Sequence[int], *, skip_specials: bool = True) -> str:
        """Text of `ids`. An id outside the vocabulary raises `InputError`."""
        self._check(ids)
        return self._plain.decode(list(ids), skip_special_tokens=skip_specials)

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for: joined over a sequence they are its text in UTF-8 (b"" for special tokens)."""
        self._check((token,))
        return self._bytes[token]

    def token_text(self, token: int) -> str:
        """The token as text for display; specials by their name, bytes that are no UTF-8 alone as U+FFFD."""
        self._check((token,))
        if token in self.special_ids:
            return self._plain.id_to_token(token) or ""
        return self._bytes[token].decode("utf-8", "replace")

    @property
    def strips_first_space(self) -> bool:
        """Whether decoding drops one space at the start of the text (SentencePiece families write it there)."""
        return any(step["type"] == "Strip" and step.get("content") == " " for step in self._decoders)

    def check_vocab(self, vocab_size: int) -> None:
        """Raise `InputError` unless this fits a model of `vocab_size` rows, of which `SPARE_ROWS` may be spare."""
        if not self.size <= vocab_size <= self.size + SPARE_ROWS:
            raise InputError(
                f"{self.name}: has {self.size} tokens but the model's vocab_size is {vocab_size}: "
                "use the tokenizer that the model was trained with"
            )

    def save(self, path: Path) -> Path:
        """Write `tokenizer.json` atomically; returns its path."""
        write_bytes(path, self.data)
        return path

    def _check(self, ids: Sequence[int]) -> None:
        for token in (min(ids, default=0), max(ids, default=0)):
            if not 0 <= token < self.size:
                raise InputError(f"token id {token} is out of range: {self.name} has ids 0 to {self.size - 1}")

    @cached_property
    def _decoders(self) -> list[dict[str, Any]]:
        found: dict[str, Any] = json.loads(self.data).get("decoder") or {"type": "None"}
        return found["decoders"] if found["type"] == "Sequence" else [found]

    @cached_property
    def _bytes(self) -> list[bytes]:
        kinds = {step["type"] for step in self._decoders}
        added = self._plain.get_added_tokens_decoder()
        table = [b""] * self.size
        for text, token in self._plain.get_vocab(with_added_tokens=True).items():
            if token in added:
                table[token] = b"" if added[token].special else text.encode()
            elif "ByteLevel" in kinds:
                table[token] = _from_byte_level(text)
            elif "ByteFallback" in kinds and len(text) == 6 and text.startswith("<0x"):
                table[token] = bytes([int(text[3:5], 16)])
            else:
                table[token] = text.replace("▁", " ").encode()
        return table


def check_ids(ids: Iterable[int], vocab_size: int) -> None:
    """Raise `InputError` naming the first id that a model of `vocab_size` rows does not have."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InputError(f"token id {token} is out of range: the model has ids 0 to {vocab_size - 1}")


class _Counted:
    """Texts in groups for the trainer, counting characters so that empty input can be refused."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self.characters = 0

    def groups(self) -> Iterator[list[str]]:
        group: list[str] = []
        for text in self._texts:
            group.append(_sound(text))
            self.characters += len(text)
            if len(group) == _GROUP:
                yield group
                group = []
        yield group


def _sound(text: str) -> str:
    """`text`, or `InputError` when it holds half a surrogate pair (it has no UTF-8 form)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("text holds half a surrogate pair, which is no text: remove it") from None
    return text


def _local(name: str) -> Path:
    """Where a tokenizer lies: itself if it is a path, else what the hub gave (its tokenizer files, never code)."""
    wanted = name.removeprefix("hub:")
    path = Path(name).expanduser()
    if wanted == name and (path.exists() or name.count("/") != 1 or name[:1] in "./~" or path.parent.is_dir()):
        return path
    if wanted.count("/") != 1:
        raise InputError(f"tokenizer '{name}' is no hub id: use hub:org/name")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(f"tokenizer '{name}' is on the hub, which needs the 'hf' extra: install it") from None
    try:
        return Path(snapshot_download(wanted, allow_patterns=["tokenizer.json", "tokenizer_config.json"]))
    except Exception as error:  # the hub raises many kinds: not found, offline, forbidden
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"tokenizer '{name}' cannot be had from the hub ({reason}): give a local file") from None


def _eos_beside(file: Path) -> str | None:
    """`eos_token` from a `tokenizer_config.json` beside the file, if there is one."""
    try:
        found = json.loads((file.parent / "tokenizer_config.json").read_text("utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    return found.get("content") if isinstance(found, dict) else found


def _byte_level_table() -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 bytes stand for themselves, the rest for U+0100 and up, in order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in own}
    others = [byte for byte in range(256) if byte not in set(own)]
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level_table()


def _from_byte_level(text: str) -> bytes:
    """Bytes of a byte-level token; characters outside the alphabet (foreign extra tokens) keep their UTF-8."""
    if all(character in _BYTE_LEVEL for character in text):
        return bytes(_BYTE_LEVEL[character] for character in text)
    return text.encode()
