"""Token shards: a folder with numbered `.bin` files of uint16 or uint32 (little-endian) and one `index.json`.

The files are one token stream cut at `shard_tokens`; documents end with the tokenizer's end-of-document token. The
index holds sizes, sha256 per file, the tokenizer's digest, the vocabulary size, and where the text came from.
A folder appears complete or not at all: everything is written beside it and renamed at the end.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from loopwise.config import InputError
from loopwise.records import file_sha256, read_json, sha256, sync_folder, write_json

INDEX = "index.json"
FORMAT = 1
SHARD_TOKENS = 1 << 27


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of the stream."""

    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """Contents of `index.json`. `source` says where the text came from, free form."""

    dtype: str
    vocab_size: int
    tokens: int
    documents: int
    tokenizer_sha256: str
    source: Mapping[str, Any]
    shards: tuple[Shard, ...]

    @property
    def digest(self) -> str:
        """Hash of the token stream and its meaning: shard hashes in order, dtype, and tokenizer."""
        parts = [self.dtype, self.tokenizer_sha256, *(shard.sha256 for shard in self.shards)]
        return sha256("\n".join(parts).encode())


class ShardWriter:
    """Writes documents as shards with one shard in flight; use as a context manager.

    Leaving the block normally completes the folder (replacing an older set of shards there); leaving it by an
    exception removes what was written. A full disk or a folder that cannot be written raises `InputError`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        vocab_size: int,
        tokenizer_sha256: str,
        source: Mapping[str, Any] | None = None,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        self.folder = folder
        self.vocab_size = vocab_size
        self.dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self.tokens = 0
        self.documents = 0
        self._tokenizer_sha256 = tokenizer_sha256
        self._source = dict(source or {})
        self._shard_tokens = shard_tokens
        self._shards: list[Shard] = []
        self._temporary = folder.with_name(f".{folder.name}.writing")
        self._file: BinaryIO | None = None

    def __enter__(self) -> "ShardWriter":
        if self.folder.exists() and not _replaceable(self.folder):
            raise InputError(f"folder '{self.folder}' holds other files: choose an empty or new folder")
        try:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary.mkdir(parents=True)
        except OSError as error:
            raise unwritable(self.folder, error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._complete()
        except OSError as problem:
            raise unwritable(self.folder, problem) from None
        finally:
            if self._file is not None:
                self._file.close()
            shutil.rmtree(self._temporary, ignore_errors=True)

    def add(self, ids: Sequence[int] | np.ndarray) -> None:
        """Append one document's tokens. An id outside the vocabulary raises `InputError`."""
        values = np.asarray(ids, dtype=np.int64)
        if values.size == 0:
            return
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise InputError(f"token id {wrong} is out of range: the vocabulary has ids 0 to {self.vocab_size - 1}")
        try:
            self._write(values.astype(self.dtype))
        except OSError as error:
            raise unwritable(self.folder, error) from None
        self.documents += 1

    def _write(self, values: np.ndarray) -> None:
        while values.size:
            file = self._file or self._open()
            part = values[: self._shard_tokens - self._filled]
            data = part.tobytes()
            file.write(data)
            self._hash.update(data)
            self._filled += part.size
            self.tokens += part.size
            values = values[part.size :]
            if self._filled == self._shard_tokens:
                self._close()

    def _open(self) -> BinaryIO:
        self._name = f"{len(self._shards):05d}.bin"
        self._file = (self._temporary / self._name).open("wb")
        self._hash = hashlib.sha256()
        self._filled = 0
        return self._file

    def _close(self) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        self._shards.append(Shard(file=self._name, tokens=self._filled, sha256=self._hash.hexdigest()))

    def _complete(self) -> None:
        if self._file is not None:
            self._close()
        self.index = ShardIndex(
            dtype=self.dtype.str,
            vocab_size=self.vocab_size,
            tokens=self.tokens,
            documents=self.documents,
            tokenizer_sha256=self._tokenizer_sha256,
            source=self._source,
            shards=tuple(self._shards),
        )
        write_json(self._temporary / INDEX, {"format": FORMAT, **asdict(self.index)})
        sync_folder(self._temporary)
        retired = self.folder.with_name(f".{self.folder.name}.retired")
        shutil.rmtree(retired, ignore_errors=True)
        if self.folder.exists():
            self.folder.rename(retired)
        self._temporary.rename(self.folder)
        shutil.rmtree(retired, ignore_errors=True)
        sync_folder(self.folder.parent)


class TokenShards:
    """A set of shards, read through memory maps. Sizes are always checked; hashes too unless `verify` is false."""

    def __init__(self, folder: Path, *, tokenizer_sha256: str | None = None, verify: bool = True) -> None:
        self.folder = folder
        self.index = read_index(folder)
        if tokenizer_sha256 is not None and tokenizer_sha256 != self.index.tokenizer_sha256:
            raise InputError(
                f"shards '{folder}' were written with tokenizer {self.index.tokenizer_sha256[:12]}, "
                f"not {tokenizer_sha256[:12]}: prepare the text again with this tokenizer"
            )
        self._maps = [_map(folder, shard, np.dtype(self.index.dtype), verify=verify) for shard in self.index.shards]
        self._ends = np.cumsum([shard.tokens for shard in self.index.shards], dtype=np.int64)

    def __len__(self) -> int:
        return self.index.tokens

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        return self.index.vocab_size

    def read(self, start: int, length: int) -> np.ndarray:
        """Tokens [start, start + length) as int64; the range must lie within the stream."""
        if not 0 <= start <= start + length <= len(self):
            raise InputError(f"tokens {start} to {start + length} are outside '{self.folder}' (0 to {len(self)})")
        found = np.empty(length, dtype=np.int64)
        shard, done = int(np.searchsorted(self._ends, start, side="right")), 0
        while done < length:
            begin = int(self._ends[shard - 1]) if shard else 0
            part = self._maps[shard][start + done - begin : start + length - begin]
            found[done : done + part.size] = part
            done, shard = done + part.size, shard + 1
        if length and int(found.max()) >= self.vocab_size:
            raise InputError(
                f"shards '{self.folder}': token id {int(found.max())} is out of range (vocabulary {self.vocab_size}): "
                "prepare the text again"
            )
        return found


def read_index(folder: Path) -> ShardIndex:
    """Read and check `index.json`; a missing, damaged or inconsistent one raises `InputError`."""
    if not folder.is_dir():
        raise InputError(f"shards '{folder}' do not exist: write them with `loopwise prepare`")
    path = folder / INDEX
    values = read_json(path)
    try:
        if values.pop("format") != FORMAT:
            raise ValueError("unknown format")
        shards = tuple(Shard(**shard) for shard in values.pop("shards"))
        index = ShardIndex(**values, shards=shards)
        if index.dtype not in ("<u2", "<u4") or index.tokens != sum(shard.tokens for shard in shards):
            raise ValueError("dtype or token count is wrong")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is no index of shards ({error}): prepare the text again") from None
    return index


def unwritable(folder: Path, error: OSError) -> InputError:
    """The error to raise when writing below `folder` failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(f"folder '{folder}': no space left on the disk: free some or choose another folder")
    return InputError(f"folder '{folder}' cannot be written ({error.strerror or error}): choose another folder")


def _replaceable(folder: Path) -> bool:
    """Whether a folder holds nothing but shards, so that a new set may take its place."""
    return folder.is_dir() and all(file.name == INDEX or file.suffix == ".bin" for file in folder.iterdir())


def _map(folder: Path, shard: Shard, dtype: np.dtype, *, verify: bool) -> np.ndarray:
    path = folder / shard.file
    try:
        size = path.stat().st_size
        expected = shard.tokens * dtype.itemsize
        if size != expected:
            raise InputError(f"{path}: has {size} bytes, the index says {expected}: prepare the text again")
        if verify and (found := file_sha256(path)) != shard.sha256:
            raise InputError(
                f"{path}: sha256 is {found[:12]}, the index says {shard.sha256[:12]}: prepare the text again"
            )
        return np.memmap(path, dtype=dtype, mode="r")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file: prepare the text again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): prepare the text again") from None
