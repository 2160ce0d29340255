"""Token shards: what is written is what is read; damage and mix-ups are refused with the difference."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwise.config import InputError
from loopwise.data.shards import INDEX, ShardWriter, TokenShards, read_index


def write(folder: Path, documents: list[list[int]], *, vocab_size: int = 100, shard_tokens: int = 7) -> TokenShards:
    with ShardWriter(folder, vocab_size=vocab_size, tokenizer_sha256="t" * 64, shard_tokens=shard_tokens) as writer:
        for ids in documents:
            writer.add(ids)
    return TokenShards(folder, tokenizer_sha256="t" * 64)


@settings(max_examples=15)  # each one syncs files to disk
@given(st.lists(st.lists(st.integers(0, 69_999), max_size=9), max_size=9), st.integers(1, 12), st.data())
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], cut: int, data: st.DataObject
) -> None:
    vocab_size = data.draw(st.sampled_from([70_000, 1 << 17]))
    shards = write(tmp_path_factory.mktemp("set") / "x", documents, vocab_size=vocab_size, shard_tokens=cut)
    stream = [token for ids in documents for token in ids]
    assert len(shards) == len(stream)
    assert shards.index.documents == sum(bool(ids) for ids in documents)
    assert all(shard.tokens <= cut for shard in shards.index.shards)
    start = data.draw(st.integers(0, len(stream)))
    length = data.draw(st.integers(0, len(stream) - start))
    found = shards.read(start, length)
    assert found.dtype == np.int64
    assert found.tolist() == stream[start : start + length]


def test_width_follows_the_vocabulary(tmp_path: Path) -> None:
    assert write(tmp_path / "a", [[65_535]], vocab_size=65_536).index.dtype == "<u2"
    assert write(tmp_path / "b", [[65_536]], vocab_size=65_537).index.dtype == "<u4"
    assert (tmp_path / "a" / "00000.bin").stat().st_size == 2


def test_digest_depends_on_tokens_alone(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", [[1, 2], [3]]), write(tmp_path / "b", [[1], [2, 3]])
    assert a.index.digest == b.index.digest
    assert write(tmp_path / "c", [[1, 2, 4]]).index.digest != a.index.digest


def test_a_new_set_replaces_an_old_one(tmp_path: Path) -> None:
    write(tmp_path / "a", [list(range(50))])
    assert write(tmp_path / "a", [[5]]).read(0, 1).tolist() == [5]
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == ["00000.bin", INDEX]
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_other_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.doc").write_text("precious")
    with pytest.raises(InputError, match="holds other files"):
        write(tmp_path / "a", [[1]])
    assert (tmp_path / "a" / "thesis.doc").read_text() == "precious"


def interrupted(folder: Path) -> None:
    with ShardWriter(folder, vocab_size=100, tokenizer_sha256="u" * 64) as writer:
        writer.add([4])
        raise KeyboardInterrupt


def test_failure_leaves_the_old_set(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1, 2, 3]])
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "a")
    assert TokenShards(tmp_path / "a").read(0, 3).tolist() == [1, 2, 3]
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="no space left on the disk: free some"):
        write(tmp_path / "a", [[1, 2, 3]])
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write(tmp_path / "file" / "a", [[1]])


@pytest.mark.parametrize("token", [-1, 100])
def test_ids_out_of_range_are_refused(tmp_path: Path, token: int) -> None:
    with pytest.raises(InputError, match=f"token id {token} is out of range"):
        write(tmp_path / "a", [[1, token]])
    assert list(tmp_path.iterdir()) == []


def test_reading_outside_is_refused(tmp_path: Path) -> None:
    shards = write(tmp_path / "a", [[1, 2, 3]])
    for start, length in ((-1, 1), (0, 4), (3, 1), (2, -1)):
        with pytest.raises(InputError, match="are outside"):
            shards.read(start, length)


def test_truncated_shard(tmp_path: Path) -> None:
    write(tmp_path / "a", [list(range(20))])
    os.truncate(tmp_path / "a" / "00001.bin", 10)
    with pytest.raises(InputError, match=r"00001\.bin: has 10 bytes, the index says 14"):
        TokenShards(tmp_path / "a", verify=False)


def test_swapped_shards(tmp_path: Path) -> None:
    write(tmp_path / "a", [list(range(20))])
    first, second = tmp_path / "a" / "00000.bin", tmp_path / "a" / "00001.bin"
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    with pytest.raises(InputError, match=r"00000\.bin: sha256 is \w{12}, the index says \w{12}"):
        TokenShards(tmp_path / "a")
    TokenShards(tmp_path / "a", verify=False)


def test_missing_shard(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1]])
    (tmp_path / "a" / "00000.bin").unlink()
    with pytest.raises(InputError, match=r"00000\.bin: no such file"):
        TokenShards(tmp_path / "a")


def test_other_tokenizer(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1]])
    with pytest.raises(InputError, match="were written with tokenizer tttttttttttt, not uuuuuuuuuuuu"):
        TokenShards(tmp_path / "a", tokenizer_sha256="u" * 64)


def test_damaged_ids_are_refused_when_hashes_are_not_checked(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1, 2]])
    (tmp_path / "a" / "00000.bin").write_bytes(np.array([1, 500], "<u2").tobytes())
    with pytest.raises(InputError, match="token id 500 is out of range"):
        TokenShards(tmp_path / "a", verify=False).read(0, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 9),
        ("dtype", "<f4"),
        ("tokens", 5),
        ("shards", [{"file": "x"}]),
        ("shards", 3),
        ("extra", 1),
        ("tokens", None),
    ],
)
def test_damaged_index(tmp_path: Path, key: str, value: object) -> None:
    write(tmp_path / "a", [[1]])
    path = tmp_path / "a" / INDEX
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {key: value}))
    with pytest.raises(InputError, match="is no index of shards"):
        read_index(tmp_path / "a")


def test_missing_index(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="do not exist: write them with `loopwise prepare`"):
        TokenShards(tmp_path / "a")
    with pytest.raises(InputError, match="no such file"):
        TokenShards(tmp_path)
    (tmp_path / INDEX).write_text("[]")
    with pytest.raises(InputError, match="is no index of shards"):
        TokenShards(tmp_path)
