"""Importers on random variants of every family: right against an independent account of it, or refused in a line."""

import importlib.util
import json
import os
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from loopwise.checkpoint.foreign import check, from_foreign, make_plan, materialise, open_foreign, to_foreign
from loopwise.checkpoint.native import open_checkpoint
from loopwise.checkpoint.settings import KINDS
from loopwise.checkpoint.tensors import Held
from loopwise.config import InputError
from loopwise.records import read_json


def sibling(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


official, variants = sibling("official"), sibling("variants")
GOLDEN = Path(os.environ.get("LOOPWISE_SHARED") or Path(__file__).parents[2] / "../shared") / "golden"
FOLDERS = sorted(p.name for p in GOLDEN.glob("*") if (p / "expected.safetensors").is_file())
ACCOUNT = {
    "huginn": official.raven,
    "retrofit-llama": official.raven,
    "retrofit-olmo": official.raven,
    "ouro": official.ouro,
    "parcae": official.parcae,
    "nanochat": official.nanochat,
}
SEEDS, TOLERANCE = range(6), 2e-4


@pytest.mark.skipif(not FOLDERS, reason="golden files of other projects are not here (set LOOPWISE_SHARED)")
@pytest.mark.parametrize("name", FOLDERS)
def test_the_account_is_that_of_the_official_code(name):
    """What the variants are compared with reproduces the official outputs itself."""
    w, inputs, expected = (load_file(GOLDEN / name / f"{f}.safetensors") for f in ("model", "inputs", "expected"))
    w = {key: tensor.double() for key, tensor in w.items()}
    account = next(ACCOUNT[family] for family in ACCOUNT if name.startswith(family))
    seen = 0
    for depth in (1, 2, 4, 8):
        for case in (f"zero.logits.r{depth}", f"default.logits.r{depth}", f"logits.ut{depth}"):
            if case in expected:
                made = account(w, read_json(GOLDEN / name / "config.json"), inputs["input_ids"], depth)
                assert (made - expected[case]).abs().max() <= 5e-5
                seen += 1
    assert seen >= 3


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ACCOUNT)
def test_a_checkpoint_of_any_shape_is_imported_right_and_comes_back_bit_by_bit(family, seed, tmp_path):
    config, tensors = variants.draw(family, seed)
    rng = random.Random(seed)
    dtype, shards, prefix = variants.DTYPES[seed % 3], rng.randint(1, 3), rng.choice(["", "", "_orig_mod."])
    source = variants.write(tmp_path / "src", config, tensors, dtype=dtype, shards=shards, prefix=prefix)
    plan = open_foreign(str(source)).plan
    assert plan.name == family
    checkpoint = open_checkpoint(str(from_foreign(plan, tmp_path / "native")))

    stored = {name: tensor.to(dtype).double() for name, tensor in tensors.items()}
    vocab = config.get("model_config", config)["vocab_size"]
    tokens = torch.randint(vocab, (2, 20), generator=torch.Generator().manual_seed(seed))
    model = checkpoint.model(
        dtype=torch.float64
    )  # shapes this small amplify the noise of fp32; wiring is what is tested
    for depth in (1, 3):
        with torch.no_grad():
            made = model(tokens, depth)
        assert (made - ACCOUNT[family](stored, config, tokens, depth)).abs().max() <= TOLERANCE

    back = to_foreign(checkpoint, tmp_path / "back")
    assert read_json(back / "config.json") == config
    files = sorted(path.name for path in source.glob("*.safetensors*"))
    assert sorted(path.name for path in back.glob("*.safetensors*")) == files
    for file in (name for name in files if name.endswith(".safetensors")):
        theirs, ours = load_file(source / file), load_file(back / file)
        assert theirs.keys() == ours.keys()
        for key, tensor in theirs.items():
            assert ours[key].dtype == tensor.dtype
            assert torch.equal(ours[key].view(torch.uint8), tensor.view(torch.uint8)), key


PLAIN = {
    "llama": {"rope_parameters": {"rope_theta": 5e5, **variants.LLAMA3, "original_max_position_embeddings": 16}},
    "mistral": {"sliding_window": 6, "head_dim": 10},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": {"head_dim": 10, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e5}},
    "olmo2": {},
}


def randomise(model):
    """Weights that make logits of order one, in place."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        spread = 1.1 * noise / parameter.shape[-1] ** 0.5 if parameter.ndim == 2 else (1 + 0.25 * noise).clamp(0.4, 1.7)
        parameter.data.copy_(spread)
    return model.eval()


def as_version_4(config):
    """The same config.json in the words of transformers 4."""
    turning = dict(config.pop("rope_parameters"))
    theta, kind = turning.pop("rope_theta"), turning.get("rope_type", "default")
    dtype = config.pop("dtype", "float32")
    return config | {"torch_dtype": dtype, "rope_theta": theta, "rope_scaling": None if kind == "default" else turning}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", PLAIN)
def test_plain_models_as_transformers_saves_them(kind, tied, version, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the 'hf' extra")
    shape = {
        "hidden_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "intermediate_size": 33,
        "vocab_size": 50,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
    }
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **shape | PLAIN[kind])
    )
    randomise(theirs).save_pretrained(tmp_path / "src", max_shard_size="9KB")
    assert len(list((tmp_path / "src").glob("*.safetensors"))) > 2
    if version == 4:
        config = as_version_4(read_json(tmp_path / "src/config.json"))
        (tmp_path / "src/config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(str(from_foreign(open_foreign(str(tmp_path / "src")).plan, tmp_path / "native")))
    tokens = torch.randint(50, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (checkpoint.model()(tokens, 1) - theirs(tokens).logits).abs().max() <= TOLERANCE


WRONG = ("seven", 0, -1, None, [2])


@pytest.mark.parametrize("family", ACCOUNT)
def test_a_wrong_setting_ends_in_one_line_and_never_in_a_traceback(family):
    """Every setting in turn gets values of every kind; what the importer reads must be of the right one."""
    config, tensors = variants.draw(family, 3)
    config, held = config.get("model_config", config), Held(tensors)
    known = [key for names, _, wanted in KINDS for key in names if key in config and wanted != "a text"]
    refused = set()
    for key, value in ((key, value) for key in config for value in WRONG):
        try:
            plan = make_plan(config | {key: value}, held)
            check(plan)
            if type(value) is int:
                materialise(plan)
        except InputError as error:
            assert "\n" not in str(error)
            refused.add((key, str(value)))
    assert {(key, "seven") for key in known} | {(key, "[2]") for key in known} <= refused
