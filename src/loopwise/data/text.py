"""Text inputs, as `--text` takes them, as a stream of documents.

| source | documents |
|---|---|
| `FILE.txt` | the whole file; every `LONG` characters it is cut at the next blank line (so a book has held-out parts) |
| `FILE.jsonl`, `FILE.jsonl.gz` | the field `text` of each line |
| `FILE.parquet` | the column `text` |
| a folder | all of these below it, in order of their paths |
| `hub:org/name[:config][:split]` | the column `text`, streamed through `datasets` (split `train` unless named) |
| `factbook`, `factbook:train`, `factbook:all` | held-out profiles of the demo's text, the others, both |
| `puzzles`, `puzzles:LOW-HIGH:COUNT:SEED` | held-out puzzles of `data/puzzles.py`, or others |

Blank documents are skipped; a source without any other is refused. Nothing is held but the current document.
All errors are `InputError`s that name the file, the line where there is one, and the remedy.
"""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from loopwise.config import InputError, nearest
from loopwise.data import factbook
from loopwise.data.puzzles import puzzle_documents
from loopwise.data.split import HOLDOUT, Split, in_split

LONG = 1 << 14  # characters after which a .txt file is cut at a blank line; at any line end, or space, at 4 times that
NAMES = ("factbook", "factbook:train", "factbook:all", "puzzles")
_FORMATS = "a .txt, .jsonl(.gz) or .parquet file, a folder of those, hub:org/name[:config][:split], factbook or puzzles"


def documents(sources: Sequence[str], *, split: Split = "all", holdout: float = HOLDOUT) -> Iterator[str]:
    """Documents of several sources, one source after another; see `iter_documents`."""
    if not sources:
        raise InputError(f"no text given: use {_FORMATS}")
    for source in sources:
        yield from iter_documents(source, split=split, holdout=holdout)


def iter_documents(source: str, *, split: Split = "all", holdout: float = HOLDOUT) -> Iterator[str]:
    """Documents of one source, without blank ones; `train` and `valid` keep those on their side of the hash split.

    Raises `InputError` when the source is missing, unreadable, of unknown kind, or has nothing but blanks.
    """
    empty = True
    for text in _open(source):
        if text and not text.isspace():
            empty = False
            if in_split(text, split, holdout):
                yield text
    if empty:
        raise InputError(f"text '{source}' is empty: give text with at least one document that is not blank")


def _open(source: str) -> Iterator[str]:
    if source in NAMES and source.startswith("factbook"):
        wanted: Split = {"factbook": "valid", "factbook:train": "train"}.get(source, "all")  # type: ignore[assignment]
        return (text for text in factbook.profiles() if in_split(text, wanted))
    if source == "puzzles" or source.startswith("puzzles:"):
        return puzzle_documents(source)
    if source.startswith("hub:"):
        return _hub(source)
    path = Path(source).expanduser()
    try:
        if source and path.is_dir():
            return _folder(path)
        if path.is_file():
            return _reader(path)(path)
    except OSError as error:
        raise InputError(f"text '{source}' cannot be read ({error}): check the path") from None
    if "/" not in source and not path.suffix:
        raise InputError(f"text '{source}' does not exist: {nearest(source, NAMES)}; or give {_FORMATS}")
    raise InputError(f"text '{source}' does not exist: give {_FORMATS}")


def _folder(path: Path) -> Iterator[str]:
    files = sorted(file for file in path.rglob("*") if file.is_file() and _kind(file) and not _hidden(file, path))
    if not files:
        raise InputError(f"text '{path}' holds no .txt, .jsonl, .jsonl.gz or .parquet file: give {_FORMATS}")
    for file in files:
        yield from _reader(file)(file)


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def _kind(path: Path) -> str | None:
    return next((end for end in _READERS if path.name.lower().endswith(end)), None)


def _reader(path: Path) -> Callable[[Path], Iterator[str]]:
    kind = _kind(path)
    if kind is None:
        raise InputError(f"text '{path}' has an unknown ending '{path.suffix}': give {_FORMATS}")
    return _READERS[kind]


def _plain(path: Path) -> Iterator[str]:
    """Whole file, or pieces of it; their concatenation is the file, with newlines as LF."""
    held: list[str] = []
    size = 0
    for _, line in _lines(path, gzip_file=False):
        for part in _cut(line.replace("\r\n", "\n")):
            held.append(part)
            size += len(part)
            if (size >= LONG and part.isspace()) or size >= 4 * LONG:
                yield "".join(held)
                held, size = [], 0
    yield "".join(held)


def _cut(line: str) -> Iterator[str]:
    """A line in parts of at most `LONG` characters, cut after a space where there is one."""
    start = 0
    while len(line) - start > LONG:
        end = line.rfind(" ", start, start + LONG) + 1 or start + LONG
        yield line[start:end]
        start = end
    yield line[start:]


def _jsonl(path: Path) -> Iterator[str]:
    for number, line in _lines(path, gzip_file=path.name.lower().endswith(".gz")):
        if line.isspace():
            continue
        where = f"text '{path}' line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not JSON ({error}): mend or remove the line") from None
        yield _field(record.get("text") if isinstance(record, dict) else None, where)


def _field(text: object, where: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{where} has no string 'text': each record needs a field 'text'")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where} holds half a surrogate pair, which is no text: mend or remove it") from None
    return text


def _lines(path: Path, *, gzip_file: bool) -> Iterator[tuple[int, str]]:
    """Numbered lines, decoded as UTF-8 (a leading byte-order mark is dropped)."""
    number = 0
    try:
        with gzip.open(path) if gzip_file else path.open("rb") as raw:
            stream = io.BufferedReader(raw, 1 << 20) if gzip_file else raw  # type: ignore[arg-type]
            for number, line in enumerate(stream, 1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"text '{path}' line {number or 1} is not UTF-8 ({error.reason}): convert the file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"text '{path}' cannot be read after line {number} ({error}): restore the file") from None


def _parquet(path: Path) -> Iterator[str]:
    try:
        from pyarrow import parquet  # optional: comes with the `hf` extra
    except ImportError:
        raise InputError(f"text '{path}' needs pyarrow: install the 'hf' extra") from None
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            if "text" not in file.schema_arrow.names:
                found = ", ".join(file.schema_arrow.names[:8])
                raise InputError(f"text '{path}' has no column 'text' (it has {found}): rename the column")
            for batch in file.iter_batches(batch_size=1024, columns=["text"]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield _field(value, f"text '{path}' row {row}")
    except InputError:
        raise
    except Exception as error:  # pyarrow raises many kinds on damaged files
        raise InputError(f"text '{path}' is no readable parquet file ({_reason(error)}): restore it") from None


def _hub(source: str) -> Iterator[str]:
    name, config, split = parse_hub(source)
    try:
        import datasets  # optional: the `hf` extra
    except ImportError:
        raise InputError(f"text '{source}' needs the package 'datasets': install the 'hf' extra") from None
    row = 0
    try:
        for record in datasets.load_dataset(name, config, split=split, streaming=True):
            row += 1
            yield _field(record.get("text"), f"text '{source}' row {row}")
    except InputError:
        raise
    except Exception as error:  # offline, not found, forbidden, unknown config or split
        remedy = "check the name and the connection, or give a local file"
        raise InputError(f"text '{source}' cannot be had from the hub ({_reason(error)}): {remedy}") from None


def parse_hub(source: str) -> tuple[str, str | None, str]:
    """Split `hub:org/name[:config][:split]` into name, config and split; one extra part that names a split is one."""
    name, *rest = source.removeprefix("hub:").split(":")
    if not name or len(rest) > 2 or not all(rest) or "[" in source:  # slices cannot be streamed
        raise InputError(f"text '{source}' is no hub id: use hub:org/name[:config][:split]")
    if len(rest) == 2:
        return name, rest[0], rest[1]
    if rest and rest[0] in ("train", "validation", "valid", "test", "dev"):
        return name, None, rest[0]
    return name, rest[0] if rest else None, "train"


def _reason(error: Exception) -> str:
    """First line of an error, cut short."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160]


_READERS: dict[str, Callable[[Path], Iterator[str]]] = {
    ".jsonl.gz": _jsonl,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
    ".txt": _plain,
}
