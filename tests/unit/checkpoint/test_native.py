"""Native checkpoints: round trip, and every way a folder can be wrong."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from loopwise.checkpoint.native import open_checkpoint, save
from loopwise.config import InputError, ModelConfig
from loopwise.model.recurrent import RecurrentLM

SHAPE = dict(
    vocab_size=61, d_model=32, num_heads=4, d_ff=48, prelude_layers=1, core_layers=1, coda_layers=1, context=32
)


@pytest.fixture
def folder(tmp_path):
    model = RecurrentLM(ModelConfig(**SHAPE)).initialise(0)
    return save(tmp_path / "model", model, manifest={"seed": 0})


@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(tmp_path, tied):
    model = RecurrentLM(ModelConfig(**SHAPE, tied=tied)).initialise(0).eval()
    checkpoint = open_checkpoint(str(save(tmp_path / "m", model)))
    loaded, tokens = checkpoint.model(), torch.arange(20)[None]
    assert torch.equal(loaded(tokens, 3), model(tokens, 3))
    assert ("head.weight" in load_file(checkpoint.folder / "model.safetensors")) is not tied
    assert checkpoint.config == model.config and len(checkpoint.digest) == 64


def test_saving_again_replaces_the_folder_whole(folder):
    (folder / "leftover").touch()
    save(folder, RecurrentLM(ModelConfig(**SHAPE)).initialise(1))
    assert not (folder / "leftover").exists()
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def broken(name: str):
    """How to damage a checkpoint, and what the error must say."""
    return {
        "no folder": (lambda f: f.rename(f.with_name("gone")), "does not exist"),
        "no weights": (lambda f: (f / "model.safetensors").unlink(), "incomplete"),
        "no config": (lambda f: (f / "config.json").unlink(), "no such file"),
        "config is not JSON": (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON"),
        "config is a list": (lambda f: (f / "config.json").write_text("[]"), "holds a list"),
        "unknown key": (lambda f: edit(f, depth=3), "unknown key 'depth'"),
        "wrong shape": (lambda f: edit(f, d_ff=64), "has shape"),
        "missing layers": (lambda f: edit(f, core_layers=2), "is missing"),
        "unknown layers": (lambda f: edit(f, coda_layers=0), "is unknown"),
        "truncated": (lambda f: os.truncate(f / "model.safetensors", 5000), "truncated"),
        "empty": (lambda f: os.truncate(f / "model.safetensors", 0), "truncated"),
        "not safetensors": (
            lambda f: (f / "model.safetensors").write_bytes(b"PK" * 500),
            "truncated or no safetensors",
        ),
        "wrong dtype": (integers, "has dtype torch.int64"),
    }[name]


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def integers(folder):
    path = folder / "model.safetensors"
    save_file({k: v.long() for k, v in load_file(path).items()}, path)


@pytest.mark.parametrize(
    "name",
    [
        "no folder",
        "no weights",
        "no config",
        "config is not JSON",
        "config is a list",
        "unknown key",
        "wrong shape",
        "missing layers",
        "unknown layers",
        "truncated",
        "empty",
        "not safetensors",
        "wrong dtype",
    ],
)
def test_damage_is_named_in_one_line(folder, name):
    damage, says = broken(name)
    damage(folder)
    with pytest.raises(InputError, match=says) as error:
        open_checkpoint(str(folder)).model()
    assert "\n" not in str(error.value)


def test_a_file_is_not_a_checkpoint(folder):
    with pytest.raises(InputError, match="give the folder"):
        open_checkpoint(str(folder / "config.json"))


def test_hub_without_network_is_one_line(monkeypatch):
    pytest.importorskip("huggingface_hub", reason="the hf extra is not installed")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: (_ for _ in ()).throw(OSError("offline")))
    with pytest.raises(InputError, match="cannot be had from the hub \\(offline\\)"):
        open_checkpoint("nobody/nothing")


def test_missing_tokenizer(folder):
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        _ = open_checkpoint(str(folder)).tokenizer_path


def test_probe_and_tiers_are_optional(folder):
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.probe() is None and checkpoint.tiers is None
    save_file(
        {"weight": torch.ones(1, 32), "bias": torch.zeros(1), "mean": torch.zeros(32)}, folder / "probe.safetensors"
    )
    with pytest.raises(InputError, match="tensor 'scale' is missing"):
        checkpoint.probe()
