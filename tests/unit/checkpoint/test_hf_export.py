"""The exported folder in transformers: logits, cache, padding, depth, special ids, and vLLM's rules for modules."""

import json
import re

import pytest
import torch

from loopwise.checkpoint.hf_export import model_card, special_ids, to_hf
from loopwise.checkpoint.native import open_checkpoint, save
from loopwise.config import InputError, ModelConfig
from loopwise.model.recurrent import RecurrentLM

transformers = pytest.importorskip("transformers", reason="needs the 'hf' extra")
BASE = {
    "vocab_size": 61,
    "d_model": 32,
    "num_heads": 4,
    "d_ff": 48,
    "prelude_layers": 1,
    "core_layers": 2,
    "coda_layers": 1,
    "context": 64,
    "mean_depth": 3.0,
    "max_depth": 8,
}
WIRINGS = [
    {},
    {
        "injection": "ssm",
        "mlp": "half_relu2",
        "core_d_ff": 40,
        "coda_projection": True,
        "value_layers": (0, 2, 3),
        "value_gate": 8,
        "qk_norm": "rotated",
        "logit_softcap": 5.0,
        "tied": False,
        "rope": "adjacent",
        "norm": "pre",
    },
    {
        "norm": "residual",
        "coda_norm": True,
        "embed_scale": 5.0,
        "attention_bias": True,
        "num_kv_heads": 2,
        "qk_norm": "head",
        "state_init": "normal",
        "embed_norm": True,
    },
    {
        "prelude_layers": 0,
        "coda_layers": 0,
        "injection": "none",
        "state_init": "embed",
        "state_norm": True,
        "final_norm": False,
        "exit_gate": True,
        "rope_scaling": "llama3",
        "rope_factor": 8.0,
        "rope_dtype": "float32",
    },
]


def exported(tmp_path, **changes):
    model = RecurrentLM(ModelConfig(**{**BASE, **changes})).initialise(0).eval()
    checkpoint = open_checkpoint(str(save(tmp_path / "native", model)))
    folder = to_hf(checkpoint, tmp_path / "exported")
    return checkpoint, folder, checkpoint.model()


@pytest.fixture(autouse=True)
def _own_module_cache(tmp_path, monkeypatch):
    """Remote code is copied to a cache: keep it out of the user's."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


@pytest.mark.parametrize("changes", WIRINGS, ids=lambda c: next(iter(c), "default"))
def test_logits_cache_padding_and_depth_equal_ours(changes, tmp_path):
    _, folder, model = exported(tmp_path, **changes)
    theirs = load(folder)
    tokens = torch.randint(0, 61, (2, 13), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    with torch.no_grad():
        for depth in (1, 3, 6):
            assert (theirs(tokens, num_steps=depth).logits - model(tokens, depth)).abs().max() <= 1e-5
        padded = theirs(tokens, attention_mask=mask).logits[1, 4:]
        assert (padded - theirs(tokens[1:, 4:]).logits[0]).abs().max() <= 1e-5
        how = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
        made = theirs.generate(tokens, attention_mask=mask, **how)
        assert torch.equal(made, theirs.generate(tokens, attention_mask=mask, use_cache=False, **how))
        assert torch.equal(made[1:, 4:], theirs.generate(tokens[1:, 4:], **how))
        deep = tokens[:1]
        for _ in range(5):
            deep = torch.cat([deep, model(deep, 5)[:, -1].argmax(-1, keepdim=True)], dim=1)
        assert torch.equal(theirs.generate(tokens[:1], num_steps=5, **how), deep)


def test_modules_follow_the_rules_of_servers_that_own_the_cache(tmp_path):
    """One parameter-free attention per (loop, layer) at model.slots.{i}; as many hidden layers; depth by override."""
    _, folder, _ = exported(tmp_path)
    model = load(folder)
    slots = {n: m for n, m in model.named_modules() if re.fullmatch(r"model\.slots\.\d+", n)}
    assert len(slots) == model.config.num_hidden_layers == 1 + 2 * 3 + 1
    assert [m.layer_idx for m in slots.values()] == list(range(8))
    assert not any(list(m.parameters()) for m in slots.values())
    config = json.loads((folder / "config.json").read_text())
    assert set(config["auto_map"]) == {"AutoConfig", "AutoModel", "AutoModelForCausalLM"}
    assert model._supports_attention_backend
    deeper = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True, num_steps=5)
    assert deeper.num_hidden_layers == 1 + 2 * 5 + 1
    assert transformers.AutoModel.from_pretrained(folder, trust_remote_code=True).slots


def test_special_ids_come_from_the_tokenizer_and_never_from_elsewhere(tmp_path):
    tokens = [{"id": 3, "content": "<eos>"}, {"id": 4, "content": "<bos>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    told = {"eos_token": {"content": "<eos>"}, "bos_token": "<bos>", "pad_token": "<no such token>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    assert special_ids(tmp_path) == {"eos_token_id": 3, "bos_token_id": 4}


def test_windows_that_bite_and_impossible_depths_are_refused(tmp_path):
    with pytest.raises(InputError, match="windows"):
        exported(tmp_path, windows=(4, 0, 0, 0))
    checkpoint, _, _ = exported(tmp_path, windows=(65, 65, 65, 65))
    with pytest.raises(InputError, match="num_steps is 9: use 1 to 8"):
        to_hf(checkpoint, tmp_path / "deep", num_steps=9)


def test_model_card_tells_depths_tiers_and_origin(tmp_path):
    checkpoint, _, _ = exported(tmp_path)
    tiers = {"tiers": [{"name": "economy", "policy": "kl<1e-3", "mean_depth": 2.5, "loss_increase": 0.004}]}
    (checkpoint.folder / "tiers.json").write_text(json.dumps(tiers))
    (checkpoint.folder / "manifest.json").write_text(json.dumps({"commit": "abc123", "seed": 7}))
    card = model_card(checkpoint, 3)
    assert "| economy | `kl<1e-3` | 2.50 | +0.0040 |" in card
    assert "commit: `abc123`" in card
