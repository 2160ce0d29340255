"""Importing and exporting: damage, key accounting, shards, dtypes, memory, and the pitfalls others fell into."""

import json
import tracemalloc

import pytest
import torch
from safetensors.torch import load_file, save_file

from loopwise.checkpoint.dry_run import estimate, plan_on_paper
from loopwise.checkpoint.foreign import check, from_foreign, open_foreign, to_foreign
from loopwise.checkpoint.native import open_checkpoint
from loopwise.checkpoint.retrofit import parse, retrofit
from loopwise.checkpoint.tensors import Facts, write_shards
from loopwise.checkpoint.transforms import TRANSFORMS
from loopwise.cli.main import main
from loopwise.config import InputError, ModelConfig
from loopwise.data.tokenizer import MIN_VOCAB, Tokenizer

D, FF, V, HEADS, LAYERS = 16, 24, 40, 2, 4
LLAMA = {
    "model_type": "llama",
    "hidden_size": D,
    "intermediate_size": FF,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "num_hidden_layers": LAYERS,
    "vocab_size": V,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def weights(dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g).to(dtype)

    found = {"model.embed_tokens.weight": draw(V, D), "model.norm.weight": draw(D), "lm_head.weight": draw(V, D)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        found |= {
            p + "self_attn.q_proj.weight": draw(D, D),
            p + "self_attn.k_proj.weight": draw(D // 2, D),
            p + "self_attn.v_proj.weight": draw(D // 2, D),
            p + "self_attn.o_proj.weight": draw(D, D),
            p + "mlp.gate_proj.weight": draw(FF, D),
            p + "mlp.up_proj.weight": draw(FF, D),
            p + "mlp.down_proj.weight": draw(D, FF),
            p + "input_layernorm.weight": draw(D),
            p + "post_attention_layernorm.weight": draw(D),
        }
    return found


def write(folder, tensors=None, **config):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights() if tensors is None else tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**LLAMA, **config}))
    return folder


def plan_of(folder):
    return open_foreign(str(folder)).plan


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_comes_back_bit_by_bit(dtype, tmp_path):
    source = write(tmp_path / "src", weights(dtype))
    checkpoint = open_checkpoint(str(from_foreign(plan_of(source), tmp_path / "out")))
    assert {t.dtype for t in load_file(checkpoint.folder / "model.safetensors").values()} == {dtype}
    back = load_file(to_foreign(checkpoint, tmp_path / "back") / "model.safetensors")
    assert all(torch.equal(back[k], v) and back[k].dtype == v.dtype for k, v in weights(dtype).items())


def test_mixed_dtypes_and_shards_come_back_as_they_were(tmp_path):
    tensors = weights()
    tensors["model.layers.0.self_attn.k_proj.weight"] = tensors["model.layers.0.self_attn.k_proj.weight"].bfloat16()
    source, names = tmp_path / "src", sorted(tensors)
    source.mkdir()
    codes = {torch.float32: "F32", torch.bfloat16: "BF16"}
    facts = {
        n: Facts(tuple(tensors[n].shape), codes[tensors[n].dtype], f"model-{i % 3}.safetensors")
        for i, n in enumerate(names)
    }
    write_shards(source, facts, tensors.__getitem__)
    (source / "config.json").write_text(json.dumps(LLAMA))
    back = to_foreign(open_checkpoint(str(from_foreign(plan_of(source), tmp_path / "out"))), tmp_path / "back")
    for i in range(3):
        ours, theirs = (load_file(f / f"model-{i}.safetensors") for f in (back, source))
        assert ours.keys() == theirs.keys()
        assert all(ours[k].dtype == v.dtype and torch.equal(ours[k], v) for k, v in theirs.items())


def test_leftover_and_missing_keys_are_refused_and_listed(tmp_path):
    extra = {**weights(), "model.layers.0.self_attn.q_proj.bias_": torch.zeros(3), "surprise": torch.zeros(2)}
    with pytest.raises(InputError, match=r"2 unmapped.*q_proj\.bias_.*surprise"):
        from_foreign(plan_of(write(tmp_path / "a", extra)), tmp_path / "out")
    less = {k: v for k, v in weights().items() if k != "model.layers.2.mlp.up_proj.weight"}
    with pytest.raises(InputError, match=r"1 missing.*layers\.2\.mlp\.up_proj"):
        from_foreign(plan_of(write(tmp_path / "b", less)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act.*silu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope type.*yarn"),
        ({"model_type": "mamba"}, "no known family"),
        ({"hidden_size": 32}, "shape"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(config, message, tmp_path):
    with pytest.raises(InputError, match=message):
        from_foreign(plan_of(write(tmp_path / "src", **config)), tmp_path / "out")


def test_tied_weights_stored_twice_are_one_tensor_and_two_again(tmp_path):
    tensors = weights()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    plan = plan_of(write(tmp_path / "src", tensors, tie_word_embeddings=True))
    checkpoint = open_checkpoint(str(from_foreign(plan, tmp_path / "out")))
    assert "head.weight" not in load_file(checkpoint.folder / "model.safetensors")
    back = load_file(to_foreign(checkpoint, tmp_path / "back") / "model.safetensors")
    assert torch.equal(back["lm_head.weight"], back["model.embed_tokens.weight"])
    with pytest.raises(InputError, match="differ although"):
        from_foreign(plan_of(write(tmp_path / "untied", tie_word_embeddings=True)), tmp_path / "no")


def test_code_in_a_checkpoint_is_neither_run_nor_copied(tmp_path):
    source = write(tmp_path / "src", auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    (source / "modeling_evil.py").write_text("raise SystemExit('executed')")
    out = from_foreign(plan_of(source), tmp_path / "out", companions=source)
    open_checkpoint(str(out)).model()
    assert not list(out.glob("*.py"))


def test_tokenizer_and_chat_template_travel_if_there_are_any(tmp_path):
    source = write(tmp_path / "src")
    assert not (from_foreign(plan_of(source), tmp_path / "bare", companions=source) / "tokenizer.json").exists()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (source / name).write_text("{}")
    out = from_foreign(plan_of(source), tmp_path / "full", companions=source)
    assert {"tokenizer.json", "chat_template.jinja"} <= {p.name for p in out.iterdir()}
    back = to_foreign(open_checkpoint(str(out)), tmp_path / "back")
    assert (back / "chat_template.jinja").read_text() == "{}"


def test_import_holds_one_tensor_at_a_time(tmp_path):
    """Python's own allocations stay far under the model's size; torch reads through the file's pages."""
    source = write(tmp_path / "src")
    plan = plan_of(source)
    tracemalloc.start()
    from_foreign(plan, tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert estimate(plan)["peak_memory_bytes"] < (source / "model.safetensors").stat().st_size


def test_a_large_import_is_planned_from_config_alone(tmp_path, capsys):
    """Huginn's published shape: 3.5B parameters and a tied matrix of 0.35B, counted once."""
    config = {
        "model_type": "huginn_raven",
        "n_embd": 5280,
        "n_heads": 55,
        "num_key_value_heads": 55,
        "head_dim": 96,
        "intermediate_size": 17920,
        "n_layers_in_prelude": 2,
        "n_layers_in_recurrent_block": 4,
        "n_layers_in_coda": 2,
        "padded_vocab_size": 65536,
        "vocab_size": 65536,
        "norm_eps": 1e-6,
        "tie_embeddings": True,
        "qk_bias": True,
        "init_values": {"embed_scale": 72.66},
        "mean_recurrence": 32,
        "block_size": 4096,
        "rope_base": 50000,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = plan_on_paper(str(tmp_path))
    assert plan.name == "huginn"
    assert 3.4e9 < plan.params < 4.0e9
    found = estimate(plan)
    assert found["disk_bytes"] == 2 * plan.params
    assert found["peak_memory_bytes"] < 0.25 * found["disk_bytes"]
    assert main(["import", str(tmp_path), "--dry-run"]) == 0
    assert "at most while importing" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json"]


def test_retrofit_picks_layers_and_refuses_nonsense(tmp_path):
    plan = plan_of(write(tmp_path / "src"))
    assert parse("1-1-1", LAYERS) == [[0], [2], [3]]
    looped = retrofit(plan, parse("1-1-1", LAYERS))
    model = open_checkpoint(str(from_foreign(looped, tmp_path / "out"))).model()
    tokens = torch.arange(12).view(1, 12)
    with torch.no_grad():
        assert torch.equal(model(tokens, 1), model(tokens, 5))
    for text, message in (("1-2", "P-C-K"), ("2-2-2", "asks for 6"), ("2-0-2", "core needs")):
        with pytest.raises(InputError, match=message):
            parse(text, LAYERS)
    with pytest.raises(InputError, match="looped already"):
        retrofit(looped, parse("1-1-1", LAYERS))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_join_and_split_without_changing_a_bit(name):
    config = ModelConfig(
        vocab_size=5,
        d_model=16,
        num_heads=2,
        num_kv_heads=1,
        d_ff=8,
        prelude_layers=0,
        core_layers=1,
        coda_layers=0,
        context=8,
    )
    shapes = {
        "qk_bias": [(2, 1, 2, 8)],
        "stack_flipped": [(16, 4), (8, 4), (8, 4)],
        "stack": [(3, 4), (2, 4)],
        "first_rows": [(5, 4)],
    }
    shapes["qk_bias"] = [(2, 1, 1, 8)] if config.num_heads == 1 else shapes["qk_bias"]
    parts = [torch.randn(s, generator=torch.Generator().manual_seed(1)) for s in shapes.get(name, [(4, 6)])]
    kept = ModelConfig(**{**config.to_dict(), "num_kv_heads": 2}) if name == "qk_bias" else config
    joined = TRANSFORMS[name].join(parts, kept)
    again = TRANSFORMS[name].split(joined, [len(p) for p in parts], kept)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


def test_damage_is_one_line(tmp_path):
    source = write(tmp_path / "src")
    data = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="truncated"):
        plan_of(source)
    with pytest.raises(InputError, match="no checkpoint"):
        open_foreign(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="not installed"):
        open_foreign("package:no-such-package-here")
    (source / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"holds no model\.safetensors"):
        plan_of(source)


def test_native_checkpoints_have_no_source_format(tmp_path):
    out = from_foreign(plan_of(write(tmp_path / "src")), tmp_path / "out")
    (out / "source.json").unlink()
    with pytest.raises(InputError, match="was not imported"):
        to_foreign(open_checkpoint(str(out)), tmp_path / "back")


def test_check_passes_a_whole_plan(tmp_path):
    check(plan_of(write(tmp_path / "src")))


def test_a_tokenizer_larger_than_the_embedding_is_refused_when_it_is_used(tmp_path):
    """It travels as it is; whoever pairs it with the model hears that ids would fall outside."""
    words = Tokenizer.train(["one two three " * 50], vocab_size=MIN_VOCAB + 8)
    source = write(tmp_path / "src")
    words.save(source / "tokenizer.json")
    checkpoint = open_checkpoint(str(from_foreign(plan_of(source), tmp_path / "out", companions=source)))
    with pytest.raises(InputError, match=f"vocab_size is {V}"):
        Tokenizer.load(checkpoint.tokenizer_path).check_vocab(checkpoint.config.vocab_size)
    assert main(["generate", str(checkpoint.folder), "--prompt", "one"]) == 2
