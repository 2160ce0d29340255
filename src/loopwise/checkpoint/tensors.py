"""Tensors on disk, one at a time: sharded safetensors read lazily, safetensors written as a stream.

Nothing here holds more than the tensors of one entry, so converting a model needs memory for its largest tensor, not
for the model.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from loopwise.config import InputError
from loopwise.records import read_json

DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "BOOL": torch.bool,
    "U8": torch.uint8,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Facts(NamedTuple):
    """Shape, dtype code (as in safetensors) and file name of a stored tensor."""

    shape: tuple[int, ...]
    dtype: str
    file: str

    @property
    def bytes(self) -> int:
        """Size of the data."""
        return torch.Size(self.shape).numel() * DTYPES[self.dtype].itemsize


@runtime_checkable
class Tensors(Protocol):
    """Named tensors that are read when asked for."""

    @property
    def facts(self) -> Mapping[str, Facts]:
        """What is there."""
        ...

    def read(self, name: str) -> Tensor:
        """The tensor, in its stored dtype."""
        ...


class Folder:
    """The safetensors of a folder: `model.safetensors`, or the shards that the index lists. Damaged or missing files
    raise `InputError` naming the file."""

    def __init__(self, folder: Path, files: list[str] | None = None) -> None:
        self.folder = folder
        self.facts: dict[str, Facts] = {}
        for file in files or self._files():
            for name, entry in _header(folder / file).items():
                if name in self.facts:
                    raise InputError(f"{folder / file}: tensor '{name}' is also in {self.facts[name].file}: remove one")
                self.facts[name] = Facts(tuple(entry["shape"]), entry["dtype"], file)

    @classmethod
    def of_file(cls, folder: Path, file: str) -> "Folder":
        """One named file of a folder."""
        return cls(folder, [file])

    def _files(self) -> list[str]:
        if (self.folder / INDEX).is_file():
            index = read_json(self.folder / INDEX)
            return sorted(set(index["weight_map"].values()))
        if (self.folder / SINGLE).is_file():
            return [SINGLE]
        raise InputError(f"{self.folder}: holds no {SINGLE} and no {INDEX}: give a folder with safetensors weights")

    def read(self, name: str) -> Tensor:
        """One tensor; the file is closed again, so that its pages need not stay in memory."""
        with safe_open(self.folder / self.facts[name].file, framework="pt") as file:
            return file.get_tensor(name)


class Held:
    """Tensors already in memory, for sources that cannot be read piecewise."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.facts = {name: Facts(tuple(t.shape), CODES[t.dtype], SINGLE) for name, t in tensors.items()}

    def read(self, name: str) -> Tensor:
        """The tensor itself."""
        return self.tensors[name]


def _header(path: Path) -> dict[str, dict]:
    """The header of a safetensors file, checked against the file's size."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ValueError("header is longer than the file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        with safe_open(path, framework="pt"):
            pass  # the library checks offsets and the file's end
    except FileNotFoundError:
        raise InputError(f"{path}: no such file: the checkpoint is incomplete, copy it again") from None
    except (OSError, ValueError, struct.error, SafetensorError) as error:
        raise InputError(f"{path}: is truncated or no safetensors file ({error}): copy it again") from None
    return header


def write_stream(path: Path, facts: Mapping[str, Facts], produce: Iterable[tuple[str, Tensor]]) -> None:
    """Write a safetensors file from tensors that come one by one, in the order of `facts`.

    Raises AssertionError if a tensor differs from its announced shape or dtype (a bug, not bad input).
    """
    header, offset = {}, 0
    for name, fact in facts.items():
        header[name] = {"dtype": fact.dtype, "shape": list(fact.shape), "data_offsets": [offset, offset + fact.bytes]}
        offset += fact.bytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        expected = iter(facts.items())
        for name, tensor in produce:
            wanted, fact = next(expected)
            assert (wanted, fact.shape, fact.dtype) == (name, tuple(tensor.shape), CODES[tensor.dtype]), name
            _write(file, tensor)
        assert next(expected, None) is None, "tensors are missing"


def _write(file: BinaryIO, tensor: Tensor, piece: int = 1 << 24) -> None:
    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    for start in range(0, flat.numel(), piece):
        file.write(flat[start : start + piece].numpy().tobytes())


def write_shards(folder: Path, facts: Mapping[str, Facts], read: Callable[[str], Tensor]) -> None:
    """Write tensors to the files that `facts` name, with an index if there are several."""
    files = sorted({fact.file for fact in facts.values()})
    for file in files:
        here = {name: fact for name, fact in facts.items() if fact.file == file}
        write_stream(folder / file, here, ((name, read(name)) for name in here))
    if len(files) > 1:
        total = sum(fact.bytes for fact in facts.values())
        index = {"metadata": {"total_size": total}, "weight_map": {name: fact.file for name, fact in facts.items()}}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
