"""Calibration of a small random model: the tiers file, what it refuses, and its arithmetic."""

import numpy as np
import pytest

from loopwise.calibrate.calibrate import Request, calibrate, check, enough
from loopwise.calibrate.sample import Sample
from loopwise.calibrate.sequence import Level, passed, sequence
from loopwise.config import InputError, ModelConfig
from loopwise.exit.policy import Policy
from loopwise.exit.tiers import NAMES, parse_tiers
from loopwise.measure.live import live
from loopwise.measure.replay import replay
from loopwise.measure.trace import trace
from loopwise.measure.windows import Windows
from loopwise.model.recurrent import RecurrentLM
from loopwise.records import sha256

DEPTH = 5


@pytest.fixture(scope="module")
def model() -> RecurrentLM:
    shape = ModelConfig(vocab_size=61, d_model=16, num_heads=2, d_ff=24, prelude_layers=1, core_layers=1,
                        coda_layers=1, context=16, max_depth=DEPTH)  # fmt: skip
    return RecurrentLM(shape).initialise(0).eval().requires_grad_(False)


def sample_of(model: RecurrentLM, documents: int, seed: int = 0, vocab: int = 61) -> Sample:
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, vocab, n + 1).astype(np.int32) for n in rng.integers(4, 9, documents)]
    names = [sha256(x.tobytes()) for x in ids]
    windows = Windows(ids=ids, document=np.arange(documents), hashes=names, context=8)
    found = trace(model, windows, max_depth=DEPTH, signals=["rel_change", "kl"])
    return Sample(windows=windows, found=found, reference=DEPTH)


def request(**changes) -> Request:
    return Request(
        **{**dict(tolerance=0.05, confidence=0.9, signal=Policy.parse("rel_change<0"), mode="replay"), **changes}
    )


@pytest.fixture(scope="module")
def sample(model) -> Sample:
    return sample_of(model, 60)


@pytest.mark.parametrize(("mode", "layout", "risk"), [
    ("replay", "depth_indexed", "loss"), ("live", "depth_indexed", "disagreement"), ("live", "shared", "loss"),
])  # fmt: skip
def test_tiers_keep_to_what_they_say(model, sample, mode, layout, risk):
    asked = request(mode=mode, layout=layout, risk=risk, tolerance=0.2)
    record = calibrate(model, sample, asked, progress=lambda what, share: None)
    tiers = parse_tiers(record, "here")
    assert tuple(tiers) == NAMES
    depths = [t["mean_depth"] for t in record["tiers"]]
    assert depths == sorted(depths) and depths[-1] == DEPTH
    _, tested = sample.split()
    for entry in record["tiers"]:
        policy = Policy.parse(entry["policy"]).bind(DEPTH)
        outcome = (
            replay(tested.found, policy) if mode == "replay" else live(model, tested.windows, policy, layout=layout)
        )
        assert entry["risk"] == pytest.approx(tested.losses(outcome, risk).mean(), abs=1e-6)
        assert entry["mean_depth"] == pytest.approx(outcome.depth.mean())
        assert entry["bound"] is None or entry["risk"] <= entry["bound"] + 1e-6
        assert entry["drift"] == pytest.approx(entry["live_loss_increase"] - entry["replay_loss_increase"])
    assert record["documents"] + record["scouts"] == 60 and record["layout"] == layout


def test_too_few_documents_are_refused_with_the_number_needed(model):
    with pytest.raises(InputError, match=r"has 10 documents and confidence 0.95 needs at least 40"):
        enough(10, request(confidence=0.95))
    enough(40, request(confidence=0.95))
    with pytest.raises(InputError, match="confidence is 1"):
        request(confidence=1.0)
    with pytest.raises(InputError, match="needs mode live"):
        request(layout="shared")


def test_split_is_a_partition_that_follows_hashes(model, sample):
    first, rest = sample.split()
    assert sorted(first.windows.hashes + rest.windows.hashes) == sorted(sample.windows.hashes)
    nll = np.concatenate([first.found.columns["nll"], rest.found.columns["nll"]], axis=1)
    assert np.isclose(nll.sum(), sample.found.columns["nll"].sum())
    again = trace(model, rest.windows, max_depth=DEPTH, signals=[])
    assert np.array_equal(again.index["document"], rest.found.index["document"])
    assert np.allclose(again.columns["nll"], rest.found.columns["nll"], atol=1e-5)


def test_sequence_goes_from_deep_to_shallow(sample):
    policies = sequence(sample, Policy.parse("rel_change<0,min=2"))
    depths = [replay(sample.found, p).depth.mean() for p in policies]
    assert depths == sorted(depths, reverse=True) and min(depths) >= 2 and len(policies) > 3


def test_check_warns_when_the_signal_moves(model, sample):
    record = calibrate(model, sample, request(), progress=lambda what, share: None)
    same = check(model, sample_of(model, 60, seed=1), record)
    assert same["warning"] is None and len(same["tiers"]) == 4
    other = check(model, sample_of(model, 60, seed=1, vocab=2), record)
    assert other["distance"] > same["distance"] and "do not carry over" in other["warning"]


def test_passed_stops_at_the_first_failure(sample):
    policy = Policy.parse("depth=5")
    outcome = replay(sample.found, policy)
    levels = [Level(policy, outcome, np.zeros(1), {0.1: p}) for p in (0.01, 0.04, 0.2, 0.001)]
    assert passed(levels, 0.1, 0.95) is levels[1]
    assert passed(levels[2:], 0.1, 0.95) is None
