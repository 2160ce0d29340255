"""Tests of order: permutations within documents, Holm's correction, rank correlation."""

import numpy as np
import pytest

from loopwise.study.ordering import compare, holm, spearman


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_permutation_finds_a_difference_and_not_a_style():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(20), 20)
    left = np.tile(np.arange(20) % 2 == 0, 20)
    style = group % 4  # whole documents are deeper: no property of the type
    same = compare(style + rng.integers(1, 5, 400), left, ~left, group, 999, np.random.default_rng(1))
    differ = compare(style + rng.integers(1, 5, 400) + 2 * left, left, ~left, group, 999, np.random.default_rng(1))
    assert same["p"] > 0.05 and differ["p"] == pytest.approx(0.001)
    assert differ["difference"] > 1


def test_permutation_is_exact_on_a_case_that_can_be_counted():
    """One document, depths 1 1 1 2, the left one has the 2: of four places one is as extreme on that side."""
    settled, left = np.array([1, 1, 1, 2]), np.array([False, False, False, True])
    found = compare(settled, left, ~left, np.zeros(4, dtype=int), 20_000, np.random.default_rng(0))
    assert found["p"] == pytest.approx(0.25, abs=0.01)


def test_spearman_with_ties():
    assert spearman(np.array([1, 2, 2, 3]), np.array([10, 20, 20, 30])) == pytest.approx(1.0)
    assert spearman(np.array([1, 2, 3]), np.array([5, 5, 5])) == 0.0
