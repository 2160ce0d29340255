"""The training benchmark: equal means, a complete result."""

import json
from statistics import fmean

import pytest

from loopwise.config import InputError
from loopwise.model.cost import Cost
from loopwise.recipes.catalog import recipe
from loopwise.train.bench import bench_train, equal_mean, unroll
from loopwise.train.overrides import override


@pytest.mark.parametrize("steps", [4, 24, 50])
def test_draws_have_an_integer_mean(steps: int) -> None:
    drawn = equal_mean(recipe("base-135m"), steps)
    assert len(drawn) == steps
    assert fmean(drawn) == 8
    assert len(set(drawn)) > 1


def test_result() -> None:
    small = override(recipe("micro"), {"model.d_model": "24", "train.batch_size": "2", "train.context": "8"})
    found = bench_train(small, steps=3)
    assert json.loads(json.dumps(found)) == found
    assert {row["name"].split(":")[0] for row in found["rows"]} == {"sampled", "fixed", "plain"}
    assert set(found["ratios"]) >= {"sampled_overhead", "against_plain", "sampled_against_plain"}
    assert all(row["value"] > 0 for row in found["rows"])
    depths = {row["name"]: row["value"] for row in found["rows"] if row["unit"] == "passes"}
    assert depths["sampled: mean depth"] == depths["fixed: mean depth"] == 4


def test_the_plain_transformer_has_equal_flops() -> None:
    for name in ("micro", "tiny", "base-135m"):
        model, keys = recipe(name).model, recipe(name).train.context / 2
        plain = unroll(model, 8, keys)
        assert plain.core_layers == 8 * model.core_layers
        assert Cost.of(plain).flops(1, keys=keys) == pytest.approx(Cost.of(model).flops(8, keys=keys), rel=0.01)


def test_too_few_steps() -> None:
    with pytest.raises(InputError, match="at least 2"):
        bench_train(recipe("micro"), steps=1)
