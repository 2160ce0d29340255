"""The promise kept: 200 calibrations on documents drawn anew from one recorded trace of `tiny`."""

import numpy as np
import pytest

from loopwise.calibrate.bound import cap_of, p_values
from loopwise.calibrate.sample import Sample
from loopwise.calibrate.sequence import sequence
from loopwise.checkpoint.native import open_checkpoint
from loopwise.data.text import documents
from loopwise.data.tokenizer import Tokenizer
from loopwise.exit.policy import Policy
from loopwise.measure.replay import replay
from loopwise.measure.trace import trace
from loopwise.measure.windows import pack

DRAWS, DOCUMENTS, CONFIDENCE = 200, 60, 0.9


@pytest.fixture(scope="module")
def losses() -> tuple[np.ndarray, np.ndarray]:
    """What every document of the population loses at each policy of a sequence that scouts chose, and mean depths."""
    checkpoint = open_checkpoint("tiny")
    windows = pack(Tokenizer.load(checkpoint.tokenizer_path), documents(["puzzles:4-10:60"]), context=128)
    found = trace(checkpoint.model(), windows, max_depth=8, signals=["rel_change"])
    scouted, population = Sample(windows=windows, found=found, reference=8).split()
    outcomes = [replay(population.found, p) for p in sequence(scouted, Policy.parse("rel_change<0"))]
    return np.stack([population.losses(o, "loss") for o in outcomes], axis=1), np.array(
        [o.depth.mean() for o in outcomes]
    )


@pytest.mark.parametrize("tolerance", [0.01, 0.03, 0.1])
def test_bound_is_violated_at_most_at_the_stated_rate(losses, tolerance):
    """The population is the trace itself, so the true risk of each policy is known. Both the risk that is promised
    (clipped) and the plain mean are held to the stated rate."""
    table, depths = losses
    rng = np.random.default_rng(0)
    true = {"promised": np.minimum(table, cap_of(tolerance)).mean(0), "plain": table.mean(0)}
    assert true["plain"].max() > tolerance, "the sequence must reach policies that break the promise"
    broken, saved = dict.fromkeys(true, 0), []
    for _ in range(DRAWS):
        drawn = table[rng.integers(0, len(table), DOCUMENTS)]
        good = p_values(drawn, tolerance, cap=cap_of(tolerance), confidence=CONFIDENCE) <= 1 - CONFIDENCE
        chosen = int(np.argmin(good)) - 1 if not good.all() else len(good) - 1
        for name, risk in true.items():
            broken[name] += chosen >= 0 and risk[chosen] > tolerance
        saved.append(8 - depths[chosen] if chosen >= 0 else 0.0)
    rate = 1 - CONFIDENCE
    for name, count in broken.items():
        assert count / DRAWS <= rate + 2 * np.sqrt(rate * CONFIDENCE / DRAWS), name
    if tolerance >= 0.03:
        assert np.mean(saved) > 1, "a promise that saves nothing would be empty"
