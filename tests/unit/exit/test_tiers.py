"""`tiers.json`: what is read, and what is refused in one line."""

import pytest

from loopwise.checkpoint.native import open_checkpoint
from loopwise.config import InputError
from loopwise.exit.tiers import NAMES, choose_tier, parse_tiers

GOOD = {"name": "economy", "policy": "rel_change<0.3,max=8", "mean_depth": 3.5, "bound": 0.01, "layout": "shared"}


def test_reads_what_is_there_and_leaves_the_rest_none():
    tiers = parse_tiers({"tiers": [GOOD, {"name": "full", "policy": "depth=8"}]}, "f")
    assert list(tiers) == ["economy", "full"]
    assert tiers["economy"].policy.threshold == 0.3 and tiers["economy"].layout == "shared"
    assert tiers["full"].bound is None and tiers["economy"].drift is None


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([], "holds no list 'tiers'"),
        ({"tiers": []}, "holds no list 'tiers'"),
        ({"tiers": [1]}, "tier 0 is no object"),
        ({"tiers": [{"name": "a"}]}, "no text 'policy'"),
        ({"tiers": [GOOD, GOOD]}, "is there twice"),
        ({"tiers": [GOOD | {"bound": "x"}]}, "field 'bound' is 'x'"),
        ({"tiers": [GOOD | {"policy": "lk<1"}]}, "did you mean 'kl'"),
    ],
)
def test_damage_is_one_clear_line(found, says):
    with pytest.raises(InputError, match=says) as error:
        parse_tiers(found, "tiers.json")
    assert "\n" not in str(error.value)


def test_unknown_tier_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'economy'"):
        choose_tier(parse_tiers({"tiers": [GOOD]}, "f"), "econmy")


def test_the_embedded_checkpoint_ships_its_tiers():
    checkpoint = open_checkpoint("tiny")
    found = checkpoint.tiers
    assert found is not None and found["weights_sha256"] == checkpoint.digest
    tiers = [checkpoint.tier(name) for name in NAMES]
    assert [t.mean_depth for t in tiers] == sorted(t.mean_depth or 0 for t in tiers)
    for tier in tiers:
        tier.policy.bind(checkpoint.config.max_depth)
        assert tier.bound is not None and tier.loss_increase is not None and tier.loss_increase <= tier.bound
