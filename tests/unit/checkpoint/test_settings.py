"""Every setting of the official configurations is honoured or refused by name; none is passed over."""

import math

import pytest

from loopwise.checkpoint import configs
from loopwise.checkpoint.settings import windows
from loopwise.checkpoint.tensors import Facts
from loopwise.config import InputError

RAVEN = {
    "model_type": "huginn_raven",
    "n_embd": 32,
    "n_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 48,
    "n_layers_in_prelude": 1,
    "n_layers_in_recurrent_block": 2,
    "n_layers_in_coda": 1,
    "vocab_size": 64,
    "padded_vocab_size": 64,
    "norm_eps": 1e-6,
    "tie_embeddings": True,
    "qk_bias": False,
    "mean_recurrence": 8,
    "block_size": 128,
    "rope_base": 50000.0,
    "init_values": {"embed_scale": 5.0, "std": 0.1},
}
RETROFIT = {**RAVEN, "rope_theta": 10000.0, "max_position_embeddings": 256}
HF = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
OURO = {**HF, "model_type": "ouro", "total_ut_steps": 4}
TURNS = {"use_rope": True, "rope_condense_ratio": 1, "rope_base": 50000}
PARCAE = {
    "n_embd": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "rope_settings": TURNS,
    "norm_class_name": "RMSNorm",
    "nonlin_name": "ReLU2",
    "norm_eps": 1e-5,
    "injection_type": "diagonal",
    "n_layers_in_prelude": 1,
    "n_layers_in_recurrent_block": 2,
    "n_layers_in_coda": 1,
    "recurrent_embedding_dimension": 32,
    "recurrent_intermediation_embedding_dimension": 48,
    "mean_recurrence": 8,
    "block_size": 128,
}
NANOCHAT = {
    "sequence_len": 32,
    "vocab_size": 60,
    "n_head": 4,
    "n_kv_head": 2,
    "n_embd": 32,
    "n_prelude": 1,
    "n_recur_block": 2,
    "n_coda": 1,
}
BUILD = {
    "huginn": (configs.huginn, RAVEN),
    "retrofit": (configs.retrofit_llama, RETROFIT),
    "olmo": (configs.retrofit_olmo, RETROFIT),
    "ouro": (configs.ouro, OURO),
    "plain": (configs.plain, HF),
    "parcae": (configs.parcae, PARCAE),
    "nanochat": (configs.nanochat, NANOCHAT),
}
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def built(name, **changes):
    build, base = BUILD[name]
    return build({k: v for k, v in {**base, **changes}.items() if v != "absent"}, {})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("huginn", {"injection_type": "add"}),
        ("huginn", {"bias": True}),
        ("huginn", {"mlp_class_name": "BaseMLP"}),
        ("huginn", {"nonlin_name": "GELU"}),
        ("huginn", {"norm_class_name": "LayerNorm"}),
        ("huginn", {"block_class_name": "PreNormBlock"}),
        ("huginn", {"architecture_class_name": "GPT"}),
        ("huginn", {"test_time_noise": 0.1}),
        ("huginn", {"head_dim": 16}),
        ("huginn", {"num_key_value_heads": 2, "qk_bias": True}),
        ("huginn", {"n_embd": "absent"}),
        ("huginn", {"init_values": {"std": 0.1}}),
        ("retrofit", {"qk_bias": True}),
        ("retrofit", {"initial_state_mode": "learned"}),
        ("retrofit", {"rope_theta": "absent"}),
        ("retrofit", {"rope_scaling": YARN}),
        ("retrofit", {"rope_scaling": LLAMA3}),  # without original_max_position_embeddings
        ("olmo", {"partial_rotary_factor": 0.5}),
        ("ouro", {"hidden_act": "gelu"}),
        ("ouro", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
        ("ouro", {"rope_scaling": {"type": "linear"}}),  # without factor
        ("ouro", {"attention_dropout": 0.1}),
        ("ouro", {"total_ut_steps": "absent"}),
        ("ouro", {"layer_types": ["sliding_attention"] * 4}),
        ("ouro", {"layer_types": ["full_attention"] * 3}),
        ("ouro", {"layer_types": ["chunked_attention"] * 4}),
        ("plain", {"mlp_bias": True}),
        ("plain", {"quantization_config": {"quant_method": "fp8"}}),
        ("parcae", {"clip_qkv": 8.0}),
        ("parcae", {"recurrent_num_attention_heads": 2}),
        ("parcae", {"recurrent_embedding_dimension": 64}),
        ("parcae", {"rope_settings": {"use_rope": False, "rope_base": 1}}),
        ("parcae", {"nonlin_name": "SiLU"}),
        ("parcae", {"nonlin_name": "absent"}),
        ("parcae", {"norm_class_name": "absent"}),
        ("parcae", {"num_key_value_heads": 2}),
        ("parcae", {"causal": False}),
        ("parcae", {"use_abacus": True}),
        ("parcae", {"center_attention": True}),
        ("parcae", {"randomize_positions_from": 512}),
        ("parcae", {"mup_model_scaling_factor": 2}),
        ("parcae", {"model_class_name": "GPT"}),
        ("parcae", {"injection_type": "gate"}),
        ("nanochat", {"input_injection": "inject_add"}),
        ("nanochat", {"window_pattern": "LX"}),
        ("nanochat", {"value_residual": True}),
    ],
)
def test_a_setting_that_cannot_be_expressed_is_refused_by_name(name, changes):
    key = next(iter(changes))
    named = {"rope_scaling": "rope type|factor|original_max", "rope_settings": "use_rope", "init_values": "embed_scale"}
    with pytest.raises(InputError, match=named.get(key, "layer type" if "chunked" in str(changes) else key)):
        built(name, **changes)


@pytest.mark.parametrize(
    ("name", "changes", "wanted"),
    [
        ("huginn", {"init_values": "absent"}, {"embed_scale": math.sqrt(32)}),
        ("huginn", {"num_key_value_heads": 2}, {"kv_heads": 2}),
        ("huginn", {"tie_embeddings": False, "padded_vocab_size": 128}, {"tied": False, "vocab_size": 128}),
        ("huginn", {"rope_base": 10000}, {"rope_theta": 10000.0, "rope": "adjacent"}),
        ("huginn", {"mean_recurrence": 40}, {"mean_depth": 40.0, "max_depth": 80}),
        ("retrofit", {"rope_base": 1.0}, {"rope_theta": 10000.0, "context": 256, "norm": "pre"}),
        ("retrofit", {"rope_scaling": {"type": "linear", "factor": 4}}, {"rope_scaling": "linear", "rope_factor": 4.0}),
        (
            "retrofit",
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64}},
            {"rope_scaling": "llama3", "rope_original": 64, "rope_factor": 8.0},
        ),
        ("olmo", {}, {"norm": "post", "qk_norm": "full"}),
        ("ouro", {"rope_theta": 1e6, "total_ut_steps": 3}, {"rope_theta": 1e6, "mean_depth": 3.0, "exit_gate": True}),
        ("ouro", {"head_dim": 16, "num_key_value_heads": 4}, {"width": 16, "kv_heads": 4}),
        ("ouro", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3}, {"windows": (0, 0, 0, 9)}),
        ("ouro", {"use_sliding_window": False, "sliding_window": 9}, {"windows": ()}),
        ("ouro", {"use_sliding_window": True, "max_window_layers": 3}, {"windows": (0, 0, 0, 4096)}),
        ("plain", {"model_type": "mistral"}, {"windows": (4096,) * 4}),
        ("plain", {"model_type": "mistral", "sliding_window": None}, {"windows": ()}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, {"rope_theta": 7.0}),
        ("plain", {"model_type": "mistral", "sliding_window": 9}, {"windows": (9, 9, 9, 9)}),
        ("plain", {"model_type": "qwen3"}, {"qk_norm": "head"}),
        ("parcae", {"num_key_value_heads": "absent"}, {"kv_heads": 4}),
        (
            "parcae",
            {"rope_settings": {"use_rope": True, "rope_condense_ratio": 2, "rope_base": 9}},
            {"rope_factor": 2.0},
        ),
        ("parcae", {"init_strategy": "takase"}, {"embed_scale": math.sqrt(32)}),
        ("parcae", {"logit_softcap": 15.0, "prelude_norm": True}, {"logit_softcap": 15.0, "prelude_norm": True}),
        ("nanochat", {}, {"windows": (33,) * 4, "mean_depth": 4.0, "logit_softcap": 15.0, "state_init": "embed"}),
        ("nanochat", {"window_pattern": "SL"}, {"windows": (17, 33, 17, 33)}),
        ("nanochat", {"window_pattern": "LS", "inject_mode": "x"}, {"windows": (33, 17, 33, 33)}),
        ("nanochat", {"input_injection": "passthrough"}, {"injection": "none"}),
        ("nanochat", {"input_injection": "inject_init_random"}, {"state_init": "zero", "injection": "concat"}),
    ],
)
def test_a_setting_reaches_the_model(name, changes, wanted):
    config = built(name, **changes)
    assert {field: getattr(config, field) for field in wanted} == wanted


def test_gates_and_biases_follow_the_weights():
    vocab = Facts((60, 32), "F32", "")
    gate = {"exit_gate.proj.weight": Facts((1, 32), "F32", "")}
    assert configs.nanochat(NANOCHAT, gate).exit_gate
    assert not configs.nanochat({**NANOCHAT, "use_exit_gate": True}, {}).exit_gate
    bias = {"model.embed_tokens.weight": vocab, "model.layers.0.self_attn.q_proj.bias": Facts((32,), "F32", "")}
    assert configs.plain({**HF, "model_type": "qwen2"}, bias).attention_bias


def test_windows_begin_where_the_configuration_says():
    assert windows({"use_sliding_window": True, "sliding_window": 5}, 30) == (0,) * 28 + (5, 5)
    kinds = ["full_attention", "sliding_attention"]
    assert windows({"use_sliding_window": True, "sliding_window": 5, "layer_types": kinds}, 2) == (0, 5)
