"""Which policy a request gets."""

import pytest

from loopwise.exit.policy import Policy
from loopwise.exit.tiers import Tier
from loopwise.serve.errors import ApiError
from loopwise.serve.schema import EFFORTS, CompletionRequest, Depth
from loopwise.serve.tiers import CUSTOM, Chosen, Menu, bounded, uniform


def tier(name, policy):
    return Tier(name=name, policy=Policy.parse(policy))


def made(*names):
    return Menu("m", {name: tier(name, f"depth={i + 1}") for i, name in enumerate(names)}, reference=4)


def asked(**fields):
    return CompletionRequest(**{"model": "m", "prompt": "x", **fields})


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 9])
def test_efforts_climb_the_ladder(count):
    menu = made(*(f"t{i}" for i in range(count)))
    places = [int(menu.by_effort(effort)[1:]) for effort in EFFORTS]
    assert places == sorted(places) and places[0] == 0
    if count <= len(EFFORTS):
        assert places[-1] == count - 1


def test_default_and_ids():
    menu = made("economy", "full", "extra")
    assert menu.default == "full" and menu.ids == ["m", "m:economy", "m:full", "m:extra"] and menu.max_depth == 4
    assert menu.choose(asked()).tier == "full"
    assert menu.choose(asked(model="m:economy")).policy == Policy.parse("depth=1")
    assert menu.choose(asked(model="m:economy", reasoning_effort="none")).tier == "economy"


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"model": "n"}, 404), ({"model": "m:x"}, 400), ({"model": "m:economy", "reasoning_effort": "max"}, 400)],
)
def test_refusals(fields, status):
    with pytest.raises(ApiError) as caught:
        made("economy", "full").choose(asked(**fields))
    assert caught.value.status == status


def test_bounds():
    kl = Chosen("economy", Policy.parse("kl<0.1,max=8"))
    assert bounded(kl, Depth()) == kl
    assert str(bounded(kl, Depth(min=2, max=4)).policy) == "kl<0.1,min=2,max=4"
    assert bounded(kl, Depth(max=4)).tier == CUSTOM
    fixed = Chosen("full", Policy.parse("depth=8"))
    assert bounded(fixed, Depth(max=3)).policy == Policy.parse("depth=3")
    assert bounded(fixed, Depth(min=9)).policy == Policy.parse("depth=9")
    assert bounded(fixed, Depth(policy="cosine<0.1")).policy == Policy.parse("cosine<0.1")
    for depth in (Depth(policy="replay:/etc/hostname"), Depth(min=3, max=2), Depth(policy="nonsense")):
        with pytest.raises(ApiError):
            bounded(kl, depth)


def test_tiers_of_an_uncalibrated_checkpoint():
    assert [str(t.policy) for t in uniform(8).values()] == ["depth=4", "depth=6", "depth=8"]
    assert [str(t.policy) for t in uniform(1).values()] == ["depth=1"] * 3
