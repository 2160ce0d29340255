"""Foreign folders that are incomplete, contradictory or dangerous are refused in a line that names the file."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from loopwise.checkpoint.foreign import from_foreign, open_foreign, to_foreign
from loopwise.checkpoint.golden.cases import verify
from loopwise.checkpoint.native import open_checkpoint
from loopwise.cli.main import main
from loopwise.config import InputError

spec = importlib.util.spec_from_file_location("foreign_tests", Path(__file__).parent / "test_foreign.py")
assert spec and spec.loader
foreign = importlib.util.module_from_spec(spec)
spec.loader.exec_module(foreign)
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
OTHER = "the other shard"


def sharded(folder: Path, index: dict | None = None) -> Path:
    """A sound checkpoint in two shards; `index` replaces entries of its weight map (None removes one)."""
    tensors, folder = foreign.weights(), foreign.write(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    placed = {name: SHARDS[i % 2] for i, name in enumerate(names)}
    for file in set(placed.values()):
        save_file({n: tensors[n] for n in names if placed[n] == file}, folder / file)
    moved = dict(zip(SHARDS, reversed(SHARDS), strict=True))
    placed |= {name: moved[placed[name]] if file == OTHER else file for name, file in (index or {}).items()}
    (folder / INDEX).write_text(json.dumps({"weight_map": {n: f for n, f in placed.items() if f}}))
    return folder


def test_shards_with_a_right_index_are_read(tmp_path):
    assert open_foreign(str(sharded(tmp_path))).plan.unmapped == []


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"model.norm.weight": OTHER}, r"model\.norm\.weight.*copy index and shards"),
        ({"model.norm.weight": None}, "puts tensor .model.norm.weight. in None"),
        ({"no.such.tensor": SHARDS[0]}, "no.such.tensor"),
        ({"model.norm.weight": "model-00003-of-00003.safetensors"}, "no such file"),
        ({"model.norm.weight": "../secret.safetensors"}, "only safetensors beside the index"),
        ({"model.norm.weight": "pytorch_model.bin"}, "only safetensors beside the index"),
        ({"model.norm.weight": 7}, "has no weight_map"),
    ],
)
def test_an_index_that_contradicts_its_shards_is_refused(index, message, tmp_path):
    found = sharded(tmp_path, index)
    with pytest.raises(InputError, match=message):
        open_foreign(str(found))


def test_shards_without_an_index_and_truncated_shards_are_refused(tmp_path):
    folder = sharded(tmp_path)
    last = sorted(folder.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(InputError, match=f"{last.name}: is truncated"):
        open_foreign(str(folder))
    (folder / INDEX).unlink()
    with pytest.raises(InputError, match="2 safetensors files but no"):
        open_foreign(str(folder))
    (folder / INDEX).write_text("[]")
    with pytest.raises(InputError, match="no weight_map"):
        open_foreign(str(folder))


@pytest.mark.parametrize("data", [b"", b"12345678", b"\xff" * 64, (2).to_bytes(8, "little") + b"[]", b"\0" * 8])
def test_files_that_are_no_safetensors_are_refused(data, tmp_path):
    folder = foreign.write(tmp_path)
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="is truncated or no safetensors"):
        open_foreign(str(folder))


def test_pickled_weights_are_refused_and_never_opened(tmp_path, capsys):
    folder = foreign.write(tmp_path / "src")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    assert main(["import", str(folder), "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert "pytorch_model.bin" in shown
    assert "convert them to safetensors" in shown
    assert not (tmp_path / "out").exists()


def test_one_file_of_another_name_is_read_and_comes_back_under_it(tmp_path):
    folder = foreign.write(tmp_path / "src")
    (folder / "model.safetensors").rename(folder / "model_000100.safetensors")
    out = from_foreign(open_foreign(str(folder)).plan, tmp_path / "out")
    back = to_foreign(open_checkpoint(str(out)), tmp_path / "back")
    assert load_file(back / "model_000100.safetensors").keys() == foreign.weights().keys()


def test_dtypes_that_cannot_be_held_are_refused_by_name(tmp_path):
    tensors = foreign.weights()
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    with pytest.raises(InputError, match=r"model\.norm\.weight.*F8_E4M3"):
        open_foreign(str(foreign.write(tmp_path, tensors)))


def test_names_of_a_compiled_model_lose_their_prefix_and_get_it_back(tmp_path):
    tensors = {f"_orig_mod.{name}": tensor for name, tensor in foreign.weights().items()}
    plan = open_foreign(str(foreign.write(tmp_path / "src", tensors))).plan
    assert (plan.unmapped, plan.missing) == ([], [])
    back = to_foreign(open_checkpoint(str(from_foreign(plan, tmp_path / "out"))), tmp_path / "back")
    stored = load_file(back / "model.safetensors")
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("text", ["[]", "{", "", '"config"'])
def test_a_damaged_configuration_is_refused(text, tmp_path):
    folder = foreign.write(tmp_path)
    (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        open_foreign(str(folder))


def golden(folder: Path, **cases) -> Path:
    folder.mkdir()
    save_file({"input_ids": torch.arange(6).view(1, 6)}, folder / "inputs.safetensors")
    save_file({name: value.clone() for name, value in cases.items()}, folder / "expected.safetensors")
    return folder


def test_cases_of_an_unknown_kind_are_refused_by_name(tmp_path):
    plan = open_foreign(str(foreign.write(tmp_path / "src"))).plan
    model = open_checkpoint(str(from_foreign(plan, tmp_path / "out"))).model()
    with torch.no_grad():
        right = model(torch.arange(6).view(1, 6), 1)
    sound = golden(tmp_path / "sound", **{"source.logits": right, "zero.logits.r1": right})
    assert verify(model, "llama", sound) == {"source.logits": 0.0}
    strange = golden(tmp_path / "strange", **{"source.logits": right, "source.attentions": right})
    with pytest.raises(InputError, match=r"source\.attentions.*unknown for llama"):
        verify(model, "llama", strange)
    with pytest.raises(InputError, match="no golden cases of family 'gpt'"):
        verify(model, "gpt", sound)
    wrong = golden(tmp_path / "wrong", **{"source.logits": right[:, :3].contiguous()})
    assert verify(model, "llama", wrong)["source.logits"] > 1e20
    (sound / "expected.safetensors").write_bytes(b"short")
    with pytest.raises(InputError, match="truncated"):
        verify(model, "llama", sound)
