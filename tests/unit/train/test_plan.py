"""The dry run: FLOPs against torch's own counter, the study's budget, bad input."""

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from loopwise.config import InputError
from loopwise.model.recurrent import RecurrentLM
from loopwise.recipes.catalog import recipe
from loopwise.train.loss import objective
from loopwise.train.overrides import override
from loopwise.train.plan import budget, card, mean_depths, plan, train_flops_per_token, utilisation


@pytest.mark.parametrize("backprop", ["0", "3"])
def test_training_flops_match_the_counter(backprop: str) -> None:
    """Fixed depth, attention left out of both (torch counts it over the whole square, we over the causal half)."""
    made = override(recipe("micro"), {"depth.kind": "fixed", "depth.mean": "5", "depth.backprop": backprop})
    model = RecurrentLM(made.model).initialise(0)
    tokens = torch.randint(0, 512, (2, 33))
    with FlopCounterMode(display=False) as counter:
        limit = int(backprop) or None
        objective(model(tokens[:, :-1], 5, backprop_depth=limit), tokens[:, 1:]).total.backward()
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for op, count in counts.items() if "attention" not in str(op))
    ours = train_flops_per_token(dataclasses.replace(made, train=dataclasses.replace(made.train, context=1)))
    keys = train_flops_per_token(made) - train_flops_per_token(
        dataclasses.replace(made, train=dataclasses.replace(made.train, context=2))
    )
    per_key = keys / (made.train.context / 2 - 1)
    assert products / 64 == pytest.approx(ours - per_key / 2, rel=0.02)


def test_the_4090_budget_of_the_135m_recipe() -> None:
    found = plan(recipe("base-135m"), budget("rtx-4090", mfu=0.35))
    assert found["params"] == pytest.approx(135e6, rel=0.2)
    assert found["mean_depth"] == pytest.approx(8, rel=0.05)
    assert found["hours"] == pytest.approx(found["train_flops"] / (165.2e12 * 0.35) / 3600)
    assert 20 < found["hours"] < 200  # the study: about 100 GPU-hours
    assert found["memory_bytes"]["total"] < 24 * 2**30  # fits the card
    text = card(found)
    assert "nothing was started" in text
    assert "MFU 35%" in text


def test_sharding_and_recomputation_lower_memory() -> None:
    made = recipe("base-135m")
    base = plan(made, budget("h100", mfu=0.4))["memory_bytes"]
    recomputed = plan(override(made, {"train.recompute": "true"}), budget("h100", mfu=0.4))["memory_bytes"]
    sharded = plan(override(made, {"train.parallel": "fsdp"}), budget("h100", mfu=0.4, processes=4))["memory_bytes"]
    assert recomputed["activations"] < 0.5 * base["activations"]
    assert sharded["optimizer"] == base["optimizer"] // 4


def test_truncated_backprop_counts_only_the_last_passes() -> None:
    made = override(recipe("micro"), {"depth.kind": "fixed", "depth.mean": "8", "depth.backprop": "4"})
    assert mean_depths(made) == (8, 4, 8)


def test_bad_assumptions() -> None:
    with pytest.raises(InputError, match="multiple of 512"):
        plan(recipe("base-135m"), budget("h100", mfu=0.4, processes=8))
    with pytest.raises(InputError, match="did you mean 'rtx-4090'"):
        budget("rtx4090", mfu=0.3)
    with pytest.raises(InputError, match=r"mfu is 1\.5"):
        budget("h100", mfu=1.5)


def test_utilisation_knows_some_devices() -> None:
    assert utilisation("NVIDIA GeForce RTX 4090", 165.2e11) == pytest.approx(0.1)
    assert utilisation("something", 1e12) is None
