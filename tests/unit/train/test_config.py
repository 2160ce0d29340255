"""Recipes: validation, overrides and what binds a resumed run."""

import dataclasses
import json

import pytest

from loopwise.config import InputError
from loopwise.recipes.catalog import RECIPES, recipe
from loopwise.train.overrides import override


def test_typed_overrides() -> None:
    changes = {
        "model.d_model": "96",
        "train.lr": "1e-3",
        "depth.mean": "4",
        "train.compile": "yes",
        "train.tokens": "2M",
        "train.eval_depths": "1,3,9",
        "model.num_kv_heads": "1",
        "train.optimizer": "muon",
    }
    changed = override(recipe("micro"), changes)
    assert (changed.model.d_model, changed.train.lr, changed.depth.mean) == (96, 1e-3, 4.0)
    assert (changed.train.compile, changed.train.tokens, changed.train.eval_depths) == (True, 2_000_000, (1, 3, 9))
    assert changed.model.num_kv_heads == 1
    assert override(changed, {"model.num_kv_heads": "none"}).model.num_kv_heads is None


def test_mean_depth_of_the_model_follows_the_sampler() -> None:
    assert override(recipe("micro"), {"depth.mean": "2.5"}).model.mean_depth == 2.5
    assert override(recipe("micro"), {"depth.mean": "2.5", "model.mean_depth": "3"}).model.mean_depth == 3


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("train.learning_rate", "1", "unknown"),
        ("train.wamup_steps", "1", "did you mean 'warmup_steps'"),
        ("trian.lr", "1", "did you mean 'train'"),
        ("train.lr", "fast", "type float"),
        ("train.batch_size", "2.5", "type int"),
        ("train.compile", "maybe", "type bool"),
        ("depth.kind", "lognorml", "did you mean 'lognormal'"),
        ("depth.max", "99", "model.max_depth"),
        ("train.context", "4096", "model.context"),
        ("train.accumulation", "3", "divide train.batch_size"),
        ("data.sources", "x", "recipe function"),
        ("train.lr", "-1", "positive"),
        ("train.lr", "nan", "positive"),
        ("train.tokens", "inf", "type int"),
    ],
)
def test_bad_overrides_are_one_line(name: str, value: str, told: str) -> None:
    with pytest.raises(InputError, match=told.replace(".", r"\.")) as caught:
        override(recipe("micro"), {name: value})
    assert "\n" not in str(caught.value)


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'micro'"):
        recipe("mikro")


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_is_complete_and_documented(name: str) -> None:
    made = recipe(name)
    assert made.name == name
    assert json.loads(json.dumps(made.to_dict())) == made.to_dict()
    assert "Command" in (RECIPES[name].__doc__ or "")
    assert "Expected" in (RECIPES[name].__doc__ or "")


def test_digest_binds_what_decides_the_result() -> None:
    made = recipe("micro")
    practical = dataclasses.replace(made, train=dataclasses.replace(made.train, threads=2, checkpoint_interval=7))
    assert practical.digest == made.digest
    assert override(made, {"train.lr": "1e-4"}).digest != made.digest
    assert override(made, {"train.seed": "5"}).digest != made.digest
