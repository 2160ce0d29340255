"""Text inputs: every kind is read, every fault is one InputError that names the place and the remedy."""

import gzip
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwise.config import InputError
from loopwise.data import text as module
from loopwise.data.text import documents, iter_documents, parse_hub

TEXTS = ["First story.", "Zweite Geschichte: äöü", "Third\nstory\n"]


def jsonl(texts: list[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def write_parquet(path: Path, texts: Sequence[str | None], column: str = "text") -> None:
    pyarrow.parquet.write_table(pyarrow.table({column: pyarrow.array(texts, pyarrow.string())}), path)


def write_all(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "a.jsonl").write_text(jsonl(TEXTS), "utf-8")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(jsonl(TEXTS[::-1]).encode()))
    write_parquet(folder / "deep" / "c.parquet", list(TEXTS))
    (folder / "deep" / "d.txt").write_text("\ufeffplain text\r\nof two lines\n", "utf-8")
    (folder / "notes.md").write_text("not read")
    (folder / ".hidden.txt").write_text("not read")


def test_folder_reads_every_kind_in_order(tmp_path: Path) -> None:
    write_all(tmp_path)
    assert list(iter_documents(str(tmp_path))) == [*TEXTS, *TEXTS[::-1], *TEXTS, "plain text\nof two lines\n"]


def test_sources_follow_each_other(tmp_path: Path) -> None:
    write_all(tmp_path)
    both = documents([str(tmp_path / "deep" / "d.txt"), str(tmp_path / "a.jsonl")])
    assert list(both) == ["plain text\nof two lines\n", *TEXTS]


def test_splits_partition_the_documents(tmp_path: Path, texts: list[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl(texts), "utf-8")
    train, valid = (list(iter_documents(str(path), split=split, holdout=0.3)) for split in ("train", "valid"))
    assert train
    assert valid
    assert sorted(train + valid) == sorted(texts)


def test_blank_documents_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl(["", " \n", "kept"]) + "\n", "utf-8")
    assert list(iter_documents(str(path))) == ["kept"]


def test_long_text_is_cut_at_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    chapter = "A line of the book.\n" * 500 + "\n"
    path.write_text(chapter * 9, "utf-8")
    pieces = list(iter_documents(str(path)))
    assert "".join(pieces) == chapter * 9
    assert len(pieces) > 3
    assert all(piece.endswith("\n\n") for piece in pieces)


@given(st.text(st.sampled_from("ab \né"), max_size=400))
def test_pieces_of_plain_text_join_to_the_file(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    path = tmp_path_factory.getbasetemp() / "pieces.txt"
    path.write_bytes(content.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONG", 8)
        pieces = list(module._plain(path))
    assert "".join(pieces) == content
    assert all(len(piece) < 5 * 8 for piece in pieces)


def spoil_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(jsonl(TEXTS * 50).encode())[:-30])


FAULTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "empty txt": ("a.txt", lambda p: p.write_text(""), "is empty"),
    "blank txt": ("a.txt", lambda p: p.write_text(" \n\n"), "is empty"),
    "empty jsonl": ("a.jsonl", lambda p: p.write_text(""), "is empty"),
    "latin-1": ("a.txt", lambda p: p.write_bytes(b"fine\ncaf\xe9\n"), "line 2 is not UTF-8"),
    "no json": ("a.jsonl", lambda p: p.write_text('{"text": "x"}\nhello\n'), "line 2 is not JSON"),
    "huge number": ("a.jsonl", lambda p: p.write_text('{"text": "x", "n": ' + "1" * 5000 + "}"), "line 1 is not JSON"),
    "no field": ("a.jsonl", lambda p: p.write_text('{"body": "x"}\n'), "line 1 has no string 'text'"),
    "number": ("a.jsonl", lambda p: p.write_text('{"text": 3}\n'), "line 1 has no string 'text'"),
    "list": ("a.jsonl", lambda p: p.write_text('["x"]\n'), "line 1 has no string 'text'"),
    "surrogate": ("a.jsonl", lambda p: p.write_text('{"text": "\\ud800"}\n'), "half a surrogate pair"),
    "no gzip": ("a.jsonl.gz", lambda p: p.write_text('{"text": "x"}\n'), "cannot be read after line 0"),
    "cut gzip": ("a.jsonl.gz", spoil_gzip, "cannot be read after line"),
    "no parquet": ("a.parquet", lambda p: p.write_bytes(b"PAR1 but not really PAR1"), "no readable parquet"),
    "column": ("a.parquet", lambda p: write_parquet(p, ["x"], "content"), "no column 'text' (it has content)"),
    "null": ("a.parquet", lambda p: write_parquet(p, ["x", None]), "row 2 has no string 'text'"),
    "ending": ("a.pdf", lambda p: p.write_bytes(b"%PDF"), "unknown ending '.pdf'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_files_are_refused(tmp_path: Path, fault: str) -> None:
    name, write, message = FAULTS[fault]
    write(tmp_path / name)
    with pytest.raises(InputError) as caught:
        list(iter_documents(str(tmp_path / name)))
    assert message in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ": " in str(caught.value), "a remedy follows the colon"


def test_truncated_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, list(TEXTS) * 100)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="no readable parquet"):
        list(iter_documents(str(path)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("factbok", "did you mean 'factbook'"),
        ("nowhere/text.jsonl", "'nowhere/text.jsonl' does not exist"),
        ("", "does not exist"),
        ("hub:", "no hub id"),
        ("hub:a/b:c:d:e", "no hub id"),
        ("hub:a/b::train", "no hub id"),
        ("hub:a/b:train[:1%]", "no hub id"),
    ],
)
def test_unknown_sources_are_refused(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        list(iter_documents(source))


def test_folder_without_text_and_no_source_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no \.txt"):
        list(iter_documents(str(tmp_path)))
    with pytest.raises(InputError, match="no text given"):
        list(documents([]))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hub:org/name", ("org/name", None, "train")),
        ("hub:org/name:sample-10BT", ("org/name", "sample-10BT", "train")),
        ("hub:org/name:validation", ("org/name", None, "validation")),
        ("hub:org/name:conf:test", ("org/name", "conf", "test")),
    ],
)
def test_hub_ids(source: str, expected: tuple[str, str | None, str]) -> None:
    assert parse_hub(source) == expected


def fake_hub(monkeypatch: pytest.MonkeyPatch, load: Callable[..., object]) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))  # type: ignore[arg-type]


def test_hub_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def load(name: str, config: str | None, *, split: str, streaming: bool) -> object:
        calls.append((name, config, split, streaming))
        return ({"text": text} for text in TEXTS)

    fake_hub(monkeypatch, load)
    assert list(iter_documents("hub:org/name:conf")) == TEXTS
    assert calls == [("org/name", "conf", "train", True)]


def test_hub_offline_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> object:
        raise ConnectionError("Couldn't reach the hub\nlong trace")

    fake_hub(monkeypatch, load)
    with pytest.raises(InputError, match=r"cannot be had from the hub \(Couldn't reach the hub\): check"):
        list(iter_documents("hub:org/name"))


def test_hub_record_without_text(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, lambda *_, **__: [{"text": "x"}, {"body": "y"}])
    with pytest.raises(InputError, match="row 2 has no string 'text'"):
        list(iter_documents("hub:org/name"))


@pytest.mark.parametrize(("module_name", "source"), [("datasets", "hub:a/b"), ("pyarrow", "a.parquet")])
def test_missing_extras_are_named(
    module_name: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_parquet(tmp_path / "a.parquet", ["x"])
    monkeypatch.setitem(sys.modules, module_name, None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="install the 'hf' extra"):
        list(iter_documents(source))
