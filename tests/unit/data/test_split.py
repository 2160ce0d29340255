"""The hash split and the hash of a set of documents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwise.config import InputError
from loopwise.data.split import DocumentHash, check_holdout, documents_sha256, in_split, is_held_out, position

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT, st.floats(0, 1), st.floats(0, 1))
def test_smaller_holdout_selects_a_subset(text: str, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert not is_held_out(text, low) or is_held_out(text, high)
    assert 0 <= position(text) < 1
    assert not is_held_out(text, 0.0)


@given(TEXT, st.floats(0, 1))
def test_train_and_valid_are_complements(text: str, holdout: float) -> None:
    assert in_split(text, "train", holdout) != in_split(text, "valid", holdout)
    assert in_split(text, "all", holdout)


def test_share_is_about_the_holdout() -> None:
    share = sum(is_held_out(f"document {i}", 0.05) for i in range(4000)) / 4000
    assert 0.035 < share < 0.065


def test_split_of_known_text_never_changes() -> None:
    assert position("") == pytest.approx(0.8894159948913373, abs=1e-15)
    assert [is_held_out(str(i)) for i in range(40)].index(True) == 39


@given(st.lists(TEXT), st.lists(TEXT))
def test_data_hash_tells_documents_apart(a: list[str], b: list[str]) -> None:
    assert (documents_sha256(a) == documents_sha256(b)) == (a == b)


def test_document_hash_counts() -> None:
    digest = DocumentHash()
    digest.add("aä")
    digest.add("")
    assert (digest.documents, digest.text_bytes) == (2, 3)
    assert digest.hexdigest() != documents_sha256(["", "aä"])


@pytest.mark.parametrize("holdout", [-0.1, 1.0, float("nan")])
def test_bad_holdout(holdout: float) -> None:
    with pytest.raises(InputError, match="holdout is"):
        check_holdout(holdout)
