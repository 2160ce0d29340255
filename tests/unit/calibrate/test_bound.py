"""The betting test: valid whatever the distribution, and powerful enough to be of use."""

import numpy as np
import pytest

from loopwise.calibrate.bound import CAP, cap_of, documents_needed, p_values, share_above
from loopwise.calibrate.sample import documents_for, scouts


@pytest.mark.parametrize("rare", [0.1, 0.2, 0.5])
def test_null_is_rejected_no_more_often_than_promised(rare):
    """Documents lose nothing, or all that counts with such a probability that the mean is exactly the tolerance."""
    rng, draws = np.random.default_rng(0), 4000
    losses = np.where(rng.random((60, draws)) < rare, 1 / rare, 0.0)
    rejected = (p_values(losses, 1.0, cap=CAP, confidence=0.9) <= 0.1).mean()
    assert rejected <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / draws)


def test_harmless_policies_pass_and_harmful_ones_do_not():
    rng = np.random.default_rng(1)
    losses = rng.normal([0.0, 0.3, 1.5], 1.0, size=(200, 3))
    assert (p_values(losses, 1.0, cap=CAP, confidence=0.95) <= 0.05).tolist() == [True, True, False]


def test_clipping_is_at_the_cap():
    losses = np.zeros(100)
    losses[50] = 1e6
    assert p_values(losses, 1.0, cap=CAP, confidence=0.95) <= 0.05
    assert cap_of(0.02) == pytest.approx(0.2) and cap_of(0.2, most=1.0) == 1.0


def test_documents_needed_is_the_edge():
    for confidence in (0.7, 0.95):
        count = documents_needed(confidence)
        passes = [
            p_values(np.zeros(n), 1.0, cap=CAP, confidence=confidence) <= 1 - confidence for n in (count - 1, count)
        ]
        assert passes == [False, True]
        total = documents_for(count)
        assert total - scouts(total) >= count > total - 1 - scouts(total - 1)


def test_share_above_covers():
    assert share_above(0, 58, 0.95) == pytest.approx(0.0503, abs=1e-3)  # the rule of three
    assert share_above(5, 5, 0.95) == 1.0
