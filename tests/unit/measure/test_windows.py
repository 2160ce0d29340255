"""Windows: every token predicted once, budgets spread over documents, documents told apart."""

import numpy as np
import pytest

from loopwise.config import InputError
from loopwise.measure.windows import Batch, groups, pack, require_length


def test_every_token_and_the_end_is_predicted_once(tokenizer, stories):
    found = pack(tokenizer, stories, context=10)
    targets = found.index["target"]
    for d, text in enumerate(stories):
        mine = targets[found.index["document"] == d].tolist()
        assert mine == tokenizer.encode_document(text)
    assert found.lengths.max() == 10
    assert found.num_tokens == len(targets) == found.lengths.sum()


def test_the_input_is_the_token_before_and_windows_start_at_position_zero(tokenizer, stories):
    index = pack(tokenizer, stories, context=10).index
    inside = index["position"][1:] > 0
    assert (index["token"][1:][inside] == index["target"][:-1][inside]).all()
    first = np.flatnonzero(np.diff(index["window"], prepend=-1))
    assert (index["position"][first] == 0).all()
    assert index["token"][0] == tokenizer.eos_id


def test_without_lead_the_first_token_is_not_predicted(tokenizer, stories):
    found = pack(tokenizer, stories[:1], context=500, lead=False)
    assert found.index["target"].tolist() == tokenizer.encode_document(stories[0])[1:]


def test_a_budget_is_met_exactly_and_covers_all_documents(tokenizer, stories):
    found = pack(tokenizer, stories, context=8, max_tokens=100)
    assert found.num_tokens == 100
    assert len(found.hashes) == len(stories)
    assert (np.diff(found.document) >= 0).all()


def test_excluded_documents_are_left_out(tokenizer, stories):
    whole = pack(tokenizer, stories, context=10)
    rest = pack(tokenizer, stories, context=10, exclude=frozenset(whole.hashes[:5]))
    assert rest.hashes == whole.hashes[5:]
    with pytest.raises(InputError, match="no document"):
        pack(tokenizer, stories, context=10, exclude=frozenset(whole.hashes))


def test_batches_cover_all_windows_longest_first(tokenizer, stories):
    found = pack(tokenizer, stories, context=10)
    rows, seen = [], []
    for batch in found.batches(40):
        assert batch.tokens.numel() <= 40
        assert batch.tokens.shape == batch.targets.shape == batch.valid.shape
        rows += batch.rows.tolist()
        seen += found.lengths[batch.windows].tolist()
        flat = batch.targets[batch.valid].numpy()
        assert (flat == found.index["target"][batch.rows]).all()
    assert sorted(rows) == list(range(found.num_tokens))
    assert seen == sorted(seen, reverse=True)
    assert Batch(found, np.array([0]), "cpu").tokens.shape[0] == 1


def test_the_digest_follows_tokens_and_boundaries(tokenizer, stories):
    first = pack(tokenizer, stories, context=10)
    assert first.digest == pack(tokenizer, stories, context=10).digest
    assert first.digest != pack(tokenizer, stories, context=11).digest
    assert first.digest != pack(tokenizer, stories[::-1], context=10).digest


def test_few_documents_are_resampled_by_window(tokenizer, stories):
    many, few = (pack(tokenizer, texts, context=10) for texts in (stories, stories[:3]))
    group, kind = groups(many.index)
    assert kind == "documents"
    assert group.max() + 1 == len(stories)
    group, kind = groups(few.index)
    assert kind == "windows"
    assert group.max() + 1 == len(few.ids)


def test_text_shorter_than_a_window_is_refused_by_name(tokenizer):
    found = pack(tokenizer, ["One fox."], context=64)
    with pytest.raises(InputError, match=r"text 'a.txt' has \d+ tokens, fewer than the context of 64: give more"):
        require_length(found, "a.txt")
