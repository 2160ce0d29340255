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
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
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
    """The safetensors of a folder: `model.safetensors`, the only such file, or the shards that the index lists. Damaged
    or missing files, an index that contradicts them and folders with pickled weights only raise `InputError`."""

    def __init__(self, folder: Path, files: list[str] | None = None) -> None:
        self.folder = folder
        self.facts: dict[str, Facts] = {}
        index = {} if files else self._index()
        for file in files or sorted(set(index.values())) or [self._single()]:
            for name, entry in _header(folder / file).items():
                if name in self.facts:
                    raise InputError(f"{folder / file}: tensor '{name}' is also in {self.facts[name].file}: remove one")
                if entry["dtype"] not in DTYPES:
                    raise InputError(
                        f"{folder / file}: tensor '{name}' has dtype {entry['dtype']}: store weights as float32, bf16 "
                        "or fp16"
                    )
                self.facts[name] = Facts(tuple(entry["shape"]), entry["dtype"], file)
        self._check(index)

    @classmethod
    def of_file(cls, folder: Path, file: str) -> "Folder":
        """One named file of a folder."""
        return cls(folder, [file])

    def _index(self) -> dict[str, str]:
        """Which file holds which tensor, if there is an index."""
        path = self.folder / INDEX
        if not path.is_file():
            return {}
        index = read_json(path)
        found = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
            raise InputError(f"{path}: has no weight_map from tensors to files: copy the index again")
        for file in found.values():
            if Path(file).name != file or not file.endswith(".safetensors"):
                raise InputError(f"{path}: names the file '{file}': only safetensors beside the index are read")
        return found

    def _check(self, index: Mapping[str, str]) -> None:
        """Tensors must lie where the index says, and every tensor of a shard must be in the index."""
        wrong = [n for n in sorted(index.keys() | self.facts.keys()) if index and self._place(n) != index.get(n)]
        if wrong:
            where = f"puts tensor '{wrong[0]}' in {index.get(wrong[0])}, it is in {self._place(wrong[0])}"
            raise InputError(f"{self.folder / INDEX}: {where} ({len(wrong)} such): copy index and shards again")

    def _place(self, name: str) -> str | None:
        return self.facts[name].file if name in self.facts else None

    def _single(self) -> str:
        """The one weights file of a folder without an index."""
        found = sorted(path.name for path in self.folder.glob("*.safetensors"))
        if SINGLE in found or len(found) == 1:
            return SINGLE if SINGLE in found else found[0]
        if found:
            raise InputError(f"{self.folder}: holds {len(found)} safetensors files but no {INDEX}: add the index")
        pickles = sorted(path.name for kind in PICKLES for path in self.folder.glob(kind))
        if pickles:
            raise InputError(
                f"{self.folder}: holds only pickled weights ({pickles[0]}), which can run code when they are loaded: "
                "convert them to safetensors where you trust them"
            )
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
        if not isinstance(header, dict):
            raise ValueError("header is no object")
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


class Renamed:
    """Tensors of another source under other names: `names` maps ours to theirs, and what it lacks is not there."""

    def __init__(self, tensors: Tensors, names: Mapping[str, str]) -> None:
        if isinstance(tensors, Renamed):
            tensors, names = tensors.inside, {name: tensors.names[of] for name, of in names.items()}
        self.inside, self.names = tensors, names
        self.facts = {name: tensors.facts[of] for name, of in names.items()}

    def read(self, name: str) -> Tensor:
        """The tensor that has this name here."""
        return self.inside.read(self.names[name])
