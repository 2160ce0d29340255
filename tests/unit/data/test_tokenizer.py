"""Tokenizers: text survives, specials stay apart, bytes per token join to the text."""

import json
import os
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from loopwise.config import InputError
from loopwise.data.detokenizer import Detokenizer
from loopwise.data.tokenizer import SPECIALS, Tokenizer, check_ids

SHARED = Path(os.environ.get("LOOPWISE_SHARED", Path(__file__).parents[3] / "../shared"))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def byte_fallback() -> Tokenizer:
    """A SentencePiece-style tokenizer: `▁` for spaces, a prefix space, unknown characters as bytes."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in ("▁", "a", "b", "▁a", "▁ab"):
        vocab[piece] = len(vocab)
    merges = [("▁", "a"), ("▁a", "b")]
    raw = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # type: ignore[assignment]
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence(steps)  # type: ignore[assignment]
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    raw.add_tokens(["plus"])
    return Tokenizer(raw.to_str().encode())


FALLBACK = byte_fallback()


def test_training_is_repeatable_and_specials_come_first(texts: list[str], tokenizer: Tokenizer) -> None:
    assert Tokenizer.train(texts, vocab_size=320).digest == tokenizer.digest
    assert [tokenizer.id_of(token) for token in SPECIALS] == [0, 1, 2, 3]
    assert tokenizer.eos_id == 0
    assert tokenizer.size == 320


@given(TEXT)
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.encode_document(text) == [*ids, 0]
    assert tokenizer.encode_batch([text, text]) == [ids, ids]


@given(st.text("0123456789 a", max_size=20))
def test_digits_are_single(tokenizer: Tokenizer, text: str) -> None:
    pieces = [tokenizer.token_text(i) for i in tokenizer.encode(text)]
    assert all(len(piece) == 1 for piece in pieces if any(c.isdigit() for c in piece))


@given(st.lists(st.sampled_from([*SPECIALS, "<|", " x", "\n"]), max_size=8).map("".join))
def test_text_never_yields_specials(tokenizer: Tokenizer, text: str) -> None:
    assert not tokenizer.special_ids & set(tokenizer.encode(text))
    marked = tokenizer.encode(text, specials=True)
    assert len([i for i in marked if i in tokenizer.special_ids]) == sum(text.count(token) for token in SPECIALS)
    assert tokenizer.decode(marked, skip_specials=False) == text


@given(TEXT)
def test_detokenizer_gives_the_text(tokenizer: Tokenizer, text: str) -> None:
    out = Detokenizer(tokenizer)
    pieces = [out.push(i) for i in tokenizer.encode_document(text)]
    assert "".join(pieces) + out.finish() == text
    assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in text)


@given(st.lists(st.integers(4, 259), max_size=12))
def test_detokenizer_equals_decode_on_any_bytes(tokenizer: Tokenizer, ids: list[int]) -> None:
    out = Detokenizer(tokenizer)
    data = b"".join(map(tokenizer.token_bytes, ids))
    assert "".join(map(out.push, ids)) + out.finish() == data.decode("utf-8", "replace")


@given(st.text("ab é日", max_size=12))
def test_byte_fallback_family(text: str) -> None:
    ids = FALLBACK.encode(text)
    out = Detokenizer(FALLBACK)
    assert "".join(map(out.push, ids)) + out.finish() == text == FALLBACK.decode(ids)


def test_byte_fallback_tokens() -> None:
    assert FALLBACK.strips_first_space
    assert FALLBACK.eos_id == FALLBACK.id_of("</s>") == 2
    assert FALLBACK.token_bytes(3 + 0xE9) == b"\xe9"
    assert FALLBACK.token_text(3 + 0xE9) == "\ufffd"
    assert FALLBACK.token_text(2) == "</s>"
    assert FALLBACK.token_bytes(2) == b""
    assert FALLBACK.token_text(FALLBACK.size - 1) == "plus"


def test_save_and_load(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert Tokenizer.load(path).digest == tokenizer.digest


@pytest.mark.parametrize("value", ["<|user|>", {"content": "<|user|>"}])
def test_end_token_from_the_config_beside_it(tmp_path: Path, tokenizer: Tokenizer, value: object) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": value}))
    assert Tokenizer.load(tmp_path).eos_id == 2


def test_damaged_or_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        Tokenizer.load(tmp_path)
    for content in (b"", b"{}", b"\xff", b'{"version": "1.0", "model": 3}'):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(InputError, match=r"is no tokenizer\.json"):
            Tokenizer.load(tmp_path)


def test_bad_requests(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="vocab_size is 100: use at least 260"):
        Tokenizer.train(["a"], vocab_size=100)
    with pytest.raises(InputError, match="no text to train"):
        Tokenizer.train([])
    with pytest.raises(InputError, match="half a surrogate pair"):
        tokenizer.encode("\ud800")
    with pytest.raises(InputError, match="has no token '<nope>'"):
        Tokenizer(tokenizer.data, eos="<nope>")
    for call in (tokenizer.token_bytes, tokenizer.token_text, lambda i: tokenizer.decode([0, i])):
        for token in (-1, 320):
            with pytest.raises(InputError, match=f"token id {token} is out of range"):
                call(token)


def test_no_end_token() -> None:
    raw = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    bare = Tokenizer(raw.to_str().encode())
    assert bare.encode("aa") == [0, 0]
    with pytest.raises(InputError, match="has no end-of-document token"):
        bare.encode_document("a")


def test_vocabulary_must_fit_the_model(tokenizer: Tokenizer) -> None:
    tokenizer.check_vocab(320)
    tokenizer.check_vocab(384)
    for size in (319, 4096):
        with pytest.raises(InputError, match=f"has 320 tokens but the model's vocab_size is {size}"):
            tokenizer.check_vocab(size)


def test_ids_must_fit_the_model() -> None:
    check_ids([0, 9], 10)
    with pytest.raises(InputError, match="token id 10 is out of range: the model has ids 0 to 9"):
        check_ids([0, 10], 10)


def test_padding_and_truncation_of_a_file_are_ignored(tokenizer: Tokenizer) -> None:
    raw = tokenizers.Tokenizer.from_str(tokenizer.data.decode())
    raw.enable_truncation(2)
    raw.enable_padding(length=9)
    assert Tokenizer(raw.to_str().encode()).encode("the river runs") == tokenizer.encode("the river runs")


def test_smollm2() -> None:
    path = SHARED / "data/tokenizers/smollm2.tokenizer.json"
    if not path.is_file():
        pytest.skip("the SmolLM2 tokenizer of the shared data is absent")
    found, text = Tokenizer.load(path), "Hello, wörld! 2024 <|im_end|> 日本\n\n  x"
    ids = found.encode(text)
    assert found.size == 49152
    assert found.eos_id == found.id_of("<|endoftext|>") == 0
    assert b"".join(map(found.token_bytes, ids)).decode() == text == found.decode(ids)


def test_a_hub_id_gives_the_tokenizer_of_that_repository(tokenizer: Tokenizer, tmp_path: Path, monkeypatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the 'hf' extra")
    tokenizer.save(tmp_path / "tokenizer.json")
    asked: list[str] = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append(name)
        assert all(pattern.endswith(".json") for pattern in allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    assert Tokenizer.load("hub:org/name").digest == tokenizer.digest
    assert Tokenizer.load("org/name").digest == tokenizer.digest
    assert Tokenizer.load(str(tmp_path)).digest == tokenizer.digest
    assert asked == ["org/name", "org/name"]
    monkeypatch.setattr(hub, "snapshot_download", lambda *given, **how: 1 / 0)
    with pytest.raises(InputError, match="cannot be had from the hub"):
        Tokenizer.load("hub:org/name")
    for name in ("hub:name", "hub:a/b/c", "hub:"):
        with pytest.raises(InputError, match="no hub id"):
            Tokenizer.load(name)
