"""Prepared text as the trainer opens it: single sets, mixtures, and everything that can be wrong with them."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from loopwise.config import InputError
from loopwise.data.prepare import prepare
from loopwise.recipes.catalog import recipe
from loopwise.train.config import DataConfig, Recipe, Source
from loopwise.train.inputs import open_inputs
from loopwise.train.overrides import override
from loopwise.train.world import World

ALONE = World(rank=0, size=1, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets, `a` and `b`, with one tokenizer."""
    root = tmp_path_factory.mktemp("data")
    for name in ("a", "b"):
        text = root / f"{name}.jsonl"
        lines = [f'{{"text": "{name} says {i} and {i * 7 % 13} to the {name * (i % 5 + 1)}"}}' for i in range(150)]
        text.write_text("\n".join(lines))
        tokenizer = root / "set/a/tokenizer.json" if name == "b" else None
        prepare([str(text)], root / "set" / name, tokenizer=tokenizer, vocab_size=300, holdout=0.2)
    return root / "set"


def _mixed(*sources: Source) -> Recipe:
    made = override(recipe("micro"), {"model.vocab_size": "300", "train.context": "16"})
    return dataclasses.replace(made, data=DataConfig(sources=sources, mix_steps=10))


def test_one_set_may_be_renamed(folder: Path, tmp_path: Path) -> None:
    one = open_inputs(folder / "a", _mixed(), ALONE)
    shutil.copytree(folder / "a", tmp_path / "elsewhere")
    other = open_inputs(tmp_path / "elsewhere", _mixed(), ALONE)
    assert {k: v for k, v in one.fingerprint.items() if k != "data_sha256"} == {
        k: v for k, v in other.fingerprint.items() if k != "data_sha256"
    }
    assert one.fingerprint["data_sha256"] == other.fingerprint["data_sha256"]
    assert torch.equal(one.train.batch(3), other.train.batch(3))
    assert one.train.batch(0).shape == (8, 17)


def test_mixture_follows_the_recipe(folder: Path) -> None:
    first = Source(name="a", text="a.jsonl", weight=1, final_weight=0)
    made = _mixed(first, Source(name="b", text="b.jsonl", weight=0, final_weight=1))
    inputs = open_inputs(folder, made, ALONE)
    assert set(inputs.train.sources(0)) == {"a"}
    assert set(inputs.train.sources(20)) == {"b"}
    assert {name: held.weight for name, held in inputs.held_out.items()} == {"a": 0, "b": 1}


def test_shares_by_step_and_answer_weights_come_from_the_recipe(folder: Path) -> None:
    made = _mixed(
        Source(name="a", text="a.jsonl", shares=((0, 1.0), (5, 1.0), (6, 0.0))),
        Source(name="b", text="b.jsonl", shares=((0, 0.0), (5, 0.0), (6, 1.0))),
    )
    assert open_inputs(folder, made, ALONE).weigh is None
    made = dataclasses.replace(made, data=dataclasses.replace(made.data, answer_weight=4.0))
    inputs = open_inputs(folder, made, ALONE)
    assert set(inputs.train.sources(5)) == {"a"} and set(inputs.train.sources(6)) == {"b"}
    assert {name: held.weight for name, held in inputs.held_out.items()} == {"a": 0, "b": 1}
    assert inputs.weigh is not None and inputs.weigh(inputs.train.batch(0)).eq(1).all()


def test_processes_share_one_batch(folder: Path) -> None:
    whole = open_inputs(folder / "a", _mixed(), ALONE).train.batch(2)
    parts = [
        open_inputs(folder / "a", _mixed(), World(rank=rank, size=2, device=torch.device("cpu"))).train.batch(2)
        for rank in range(2)
    ]
    assert torch.equal(torch.stack(parts, 1).flatten(0, 1), whole)


@pytest.mark.parametrize("damage", ["truncate", "swap", "tokenizer"])
def test_unsafe_data_is_refused(folder: Path, tmp_path: Path, damage: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(folder / "a", data)
    shard = data / "train/00000.bin"
    if damage == "truncate":
        shard.write_bytes(shard.read_bytes()[:-2])
    elif damage == "swap":
        content = bytearray(shard.read_bytes())
        content[0:2], content[2:4] = content[2:4], content[0:2]
        content[0] ^= 1
        shard.write_bytes(content)
    else:
        path = data / "tokenizer.json"
        path.write_text(path.read_text() + "\n")
    with pytest.raises(InputError, match="prepare the text again"):
        open_inputs(data, _mixed(), ALONE)


def test_bad_combinations(folder: Path) -> None:
    with pytest.raises(InputError, match="no set 'c'"):
        open_inputs(folder, _mixed(Source(name="a", text="x"), Source(name="c", text="x")), ALONE)
    with pytest.raises(InputError, match="vocab_size is 5000"):
        open_inputs(folder / "a", override(_mixed(), {"model.vocab_size": "5000"}), ALONE)
    with pytest.raises(InputError, match="no prepared text"):
        open_inputs(folder.parent, _mixed(), ALONE)
    long = override(_mixed(), {"model.context": "100000", "train.context": "100000"})
    with pytest.raises(InputError, match="fewer than"):
        open_inputs(folder / "a", long, ALONE)
