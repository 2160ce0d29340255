"""Preparing text: tokenizer, shards on both sides of the split, counts, hashes; faults leave nothing half-written."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwise.config import InputError
from loopwise.data import prepare as module
from loopwise.data.prepare import prepare, settle
from loopwise.data.shards import TokenShards, read_index
from loopwise.data.split import documents_sha256, is_held_out
from loopwise.data.text import iter_documents
from loopwise.data.tokenizer import Tokenizer
from loopwise.records import read_json


def write_jsonl(path: Path, texts: list[str]) -> str:
    path.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts), "utf-8")
    return str(path)


def documents_of(folder: Path, tokenizer: Tokenizer) -> list[str]:
    shards = TokenShards(folder, tokenizer_sha256=tokenizer.digest)
    text = tokenizer.decode(shards.read(0, len(shards)).tolist(), skip_specials=False)
    return text.split("<|endoftext|>")[:-1]


def test_prepare_trains_and_splits(tmp_path: Path, texts: list[str]) -> None:
    source, done = write_jsonl(tmp_path / "a.jsonl", texts), []
    result = prepare([source], tmp_path / "out", vocab_size=300, holdout=0.2, progress=done.append)
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert documents_of(tmp_path / "out/train", tokenizer) == [t for t in texts if not is_held_out(t, 0.2)]
    assert documents_of(tmp_path / "out/valid", tokenizer) == [t for t in texts if is_held_out(t, 0.2)]
    assert result.documents == len(texts)
    assert result.tokens == sum(len(tokenizer.encode_document(t)) for t in texts)
    assert result.sha256 == documents_sha256(texts)
    assert result.vocab_size == tokenizer.size == 300
    assert done[-1] == result.text_bytes == sum(len(t.encode()) for t in texts)
    record = read_json(tmp_path / "out/prepare.json")
    assert record["sha256"] == result.sha256
    assert record["texts"] == [source]


def test_the_tokenizer_never_sees_held_out_text(tmp_path: Path, texts: list[str]) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    prepare([source], tmp_path / "out", vocab_size=300, holdout=0.3)
    expected = Tokenizer.train([t for t in texts if not is_held_out(t, 0.3)], vocab_size=300)
    assert Tokenizer.load(tmp_path / "out").digest == expected.digest


def test_a_given_tokenizer_is_used(tmp_path: Path, text_file: Path, tokenizer: Tokenizer) -> None:
    path = tokenizer.save(tmp_path / "given.json")
    for number, given in enumerate((tokenizer, path, str(path))):
        result = prepare([str(text_file)], tmp_path / str(number), tokenizer=given, holdout=0)
        assert result.tokenizer_sha256 == tokenizer.digest
        assert (tmp_path / str(number) / "tokenizer.json").read_bytes() == tokenizer.data


def test_batches_do_not_change_the_shards(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    digests = []
    for size in (1, 500, 1 << 22):
        monkeypatch.setattr(module, "BATCH_BYTES", size)
        prepare([source], tmp_path / "out", vocab_size=300, shard_tokens=1000)
        digests.append(read_index(tmp_path / "out/train").digest)
    assert len(set(digests)) == 1
    assert len(read_index(tmp_path / "out/train").shards) > 1


def test_few_documents_still_have_a_held_out_one(tmp_path: Path) -> None:
    texts = [t for t in (f"document {number}" for number in range(9)) if not is_held_out(t)][:6]
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    settled = settle([source], 0.05)
    assert sum(is_held_out(t, settled) for t in texts) == 1
    assert settle([source], 0.0) == 0.0
    assert prepare([source], tmp_path / "out", vocab_size=300).valid_documents == 1
    assert settle([source], max(0.9, settled)) == max(0.9, settled)


def test_holdout_zero_trains_on_all(tmp_path: Path) -> None:
    result = prepare(
        [write_jsonl(tmp_path / "a.jsonl", ["one single document"])], tmp_path / "out", vocab_size=270, holdout=0
    )
    assert (result.documents, result.valid_documents) == (1, 0)
    assert len(TokenShards(tmp_path / "out/valid")) == 0


def test_nothing_left_to_train_on(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one single document"])
    with pytest.raises(InputError, match=r"text of 1 document leaves none to train on .* holdout 0"):
        prepare([source], tmp_path / "out", vocab_size=270)
    assert not (tmp_path / "out").exists()


def test_faults_in_the_text_leave_nothing(tmp_path: Path, texts: list[str], tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [*texts] * 6)
    path.write_text(path.read_text() + "broken\n")
    with pytest.raises(InputError, match="line 361 is not JSON"):
        prepare([str(path)], tmp_path / "out", tokenizer=tokenizer)
    assert [file for file in (tmp_path / "out").rglob("*") if file.is_file()] == []


def test_full_disk_leaves_nothing(
    tmp_path: Path, text_file: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="no space left on the disk"):
        prepare([str(text_file)], tmp_path / "out", tokenizer=tokenizer, holdout=0)
    assert [file for file in (tmp_path / "out").rglob("*") if file.is_file()] == []


def test_unwritable_folder(tmp_path: Path, text_file: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        prepare([str(text_file)], text_file, tokenizer=tokenizer, holdout=0)


def test_bad_requests(tmp_path: Path, text_file: Path) -> None:
    with pytest.raises(InputError, match="holdout is 2"):
        prepare([str(text_file)], tmp_path / "out", holdout=2)
    with pytest.raises(InputError, match=r"'factbook:all' needs at least 0\.05"):
        prepare(["factbook:all"], tmp_path / "out", holdout=0.01)
    with pytest.raises(InputError, match="does not exist"):
        prepare([str(text_file)], tmp_path / "out", tokenizer=tmp_path / "none.json", holdout=0)
    with pytest.raises(InputError, match="vocab_size is 10"):
        prepare([str(text_file)], tmp_path / "out", vocab_size=10, holdout=0)


def test_text_is_streamed(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more text is held than one batch."""
    taken: list[int] = []

    def many(*_: object, **__: object) -> Iterator[str]:
        for number in range(2000):
            taken.append(number)
            yield f"document {number}"

    def progress(done: int) -> None:
        assert len(taken) * len("document 0") - done < 250

    monkeypatch.setattr(module, "BATCH_BYTES", 200)
    monkeypatch.setattr(module, "settle", lambda _, holdout: holdout)
    monkeypatch.setattr(module, "documents", many)
    assert prepare(["x"], tmp_path / "out", tokenizer=tokenizer, progress=progress).documents == 2000


def test_plain_text_file_end_to_end(tmp_path: Path, text_file: Path) -> None:
    result = prepare([str(text_file)], tmp_path / "out", vocab_size=300, holdout=0)
    assert result.sha256 == documents_sha256(iter_documents(str(text_file)))
