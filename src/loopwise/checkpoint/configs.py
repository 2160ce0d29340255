"""Configurations of foreign families as `ModelConfig`. Settings that the wiring cannot express are refused by name."""

import math
from typing import Any

from loopwise.checkpoint.settings import Foreign, Names, get, only, rope, rows, windows
from loopwise.config import InputError, ModelConfig, nearest


def _deepest(mean: float) -> dict[str, Any]:
    """Depths worth asking for: twice the training mean, at least 32."""
    return {"mean_depth": float(mean), "max_depth": max(32, 2 * math.ceil(mean))}


def _raven(c: Foreign, names: Names, **changes: Any) -> ModelConfig:
    """What Huginn and the retrofitted models share. Heads are `n_embd / n_heads` wide, whatever `head_dim` says."""
    d, heads = get(c, "n_embd"), get(c, "n_heads")
    only(
        c,
        architecture_class_name="RecurrentGPT",
        injection_type="linear",
        bias=False,
        mlp_class_name="GatedMLP",
        nonlin_name="SiLU",
        norm_class_name="RMSNorm_llama",
        block_class_name="SandwichBlock",
        test_time_noise=(0, 0.0, None),
        initial_state_mode=("random", "zero", None),
        head_dim=(None, d // heads),
        quantization_config=None,
    )
    values = c.get("init_values")
    shared = {
        "vocab_size": rows(c, names, "transformer.wte.weight"),
        "d_model": d,
        "num_heads": heads,
        "num_kv_heads": c.get("num_key_value_heads"),
        "d_ff": get(c, "intermediate_size"),
        "prelude_layers": get(c, "n_layers_in_prelude"),
        "core_layers": get(c, "n_layers_in_recurrent_block"),
        "coda_layers": get(c, "n_layers_in_coda"),
        "norm_eps": get(c, "norm_eps"),
        "tied": bool(c.get("tie_embeddings", True)),
        "injection": "concat",
        "embed_scale": math.sqrt(d) if values is None else float(get(values, "embed_scale")),
        **_deepest(get(c, "mean_recurrence")),
    }
    return ModelConfig(**{**shared, **changes})


def huginn(c: Foreign, names: Names) -> ModelConfig:
    """Huginn: norms on the residual sum, adjacent-pair rotary, the final norm twice. The random initial state of the
    official code becomes a zero state (its `init_scale=0`)."""
    if c.get("qk_bias"):  # one bias per query head serves the keys too
        only(c, num_key_value_heads=(None, get(c, "n_heads")))
    return _raven(
        c,
        names,
        family="huginn",
        context=get(c, "block_size"),
        norm="residual",
        coda_norm=True,
        rope="adjacent",
        rope_dtype="float32",
        rope_theta=float(get(c, "rope_base")),
        attention_bias=bool(get(c, "qk_bias")),
    )


def retrofit_llama(c: Foreign, names: Names) -> ModelConfig:
    """Retrofitted Llama: pre-norm blocks."""
    only(c, qk_bias=False)
    return _raven(c, names, family="retrofit-llama", norm="pre", **_positions(c))


def retrofit_olmo(c: Foreign, names: Names) -> ModelConfig:
    """Retrofitted OLMo 2: norms on the sublayer outputs only, query and key norms over all heads."""
    only(c, qk_bias=False)
    return _raven(c, names, family="retrofit-olmo", norm="post", qk_norm="full", **_positions(c))


def _positions(c: Foreign) -> dict[str, Any]:
    """Context and rotary settings of a converted model: those of its source (`rope_base` and `block_size` are
    Huginn's)."""
    theta = (c.get("rope_parameters") or {}).get("rope_theta") or get(c, "rope_theta")
    return {"context": c.get("max_position_embeddings") or get(c, "block_size"), **rope(c, theta)}


def _hf(c: Foreign, names: Names) -> dict[str, Any]:
    """What Ouro and plain transformers share."""
    only(c, hidden_act="silu", mlp_bias=(False, None), attention_dropout=(0.0, 0, None), quantization_config=None)
    layers = get(c, "num_hidden_layers")
    return {
        "vocab_size": rows(c, names, "model.embed_tokens.weight"),
        "d_model": get(c, "hidden_size"),
        "num_heads": get(c, "num_attention_heads"),
        "num_kv_heads": c.get("num_key_value_heads"),
        "head_dim": c.get("head_dim"),
        "d_ff": get(c, "intermediate_size"),
        "prelude_layers": 0,
        "core_layers": layers,
        "coda_layers": 0,
        "context": get(c, "max_position_embeddings"),
        "norm_eps": get(c, "rms_norm_eps"),
        "tied": bool(c.get("tie_word_embeddings", False)),
        "injection": "none",
        "state_init": "embed",
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in names,
        "windows": windows(c, layers),
        **rope(c, c.get("rope_theta") or 10_000.0),
    }


def ouro(c: Foreign, names: Names) -> ModelConfig:
    """Ouro: the whole stack loops, the final norm runs after every loop and is carried, a gate reads each state."""
    steps = get(c, "total_ut_steps")
    changes = {
        "family": "ouro",
        "norm": "sandwich",
        "state_norm": True,
        "final_norm": False,
        "exit_gate": True,
        "mean_depth": float(steps),
        "max_depth": 2 * steps,
    }
    return ModelConfig(**{**_hf(c, names), **changes})


PLAIN = ("llama", "mistral", "qwen2", "qwen3", "olmo2")


def plain(c: Foreign, names: Names) -> ModelConfig:
    """A fixed-depth transformer: all layers are the core, run once."""
    kind = c["model_type"]
    norm = {"olmo2": "post"}.get(kind, "pre")
    qk_norm = {"olmo2": "full", "qwen3": "head"}.get(kind, "none")
    changes = {"family": kind, "norm": norm, "qk_norm": qk_norm, "mean_depth": 1.0, "max_depth": 1}
    return ModelConfig(**{**_hf(c, names), **changes})


def parcae(c: Foreign, names: Names) -> ModelConfig:
    """Parcae: pre-norm blocks, discretised diagonal injection, a projection before the coda, value embeddings where
    both the table and the gate exist. Random initial states become a zero state."""
    d, heads = get(c, "n_embd"), get(c, "num_attention_heads")
    only(
        c,
        recurrent_embedding_dimension=d,
        recurrent_num_attention_heads=(None, heads),
        num_key_value_heads=(None, heads),  # its core has a key per query head whatever this says
        causal=True,
        clip_qkv=None,
        bias=False,
        qk_bias=False,
        block_class_name="TransformerPreNormBlock",
        norm_class_name="RMSNorm",
        mlp_class_name="BaseMLP",
        nonlin_name="ReLU2",
        mup_model_scaling_factor=1,
        randomize_positions_from=None,
        model_class_name="Parcae",
        use_abacus=False,
        debias_attention=False,
        center_attention=False,
        injection_type=("diagonal", "linear", "add"),
    )
    for key in ("norm_class_name", "nonlin_name"):
        get(c, key)  # their defaults are LayerNorm and GELU
    turning, core = get(c, "rope_settings"), get(c, "recurrent_intermediation_embedding_dimension")
    only(turning, use_rope=True)
    condense = float(turning.get("rope_condense_ratio", 1))
    stages = [get(c, f"n_layers_in_{stage}") for stage in ("prelude", "recurrent_block", "coda")]
    blocks = [
        f"transformer.{name}.{i}"
        for name, n in zip(("prelude", "core_block", "coda"), stages, strict=True)
        for i in range(n)
    ]
    gates = [f"{block}.attn.ve_gate.weight" for block in blocks]
    layers = tuple(i for i, gate in enumerate(gates) if gate in names and f"value_embeds.{i}.weight" in names)
    scale = math.sqrt(d) if str(c.get("init_strategy", "")).startswith("takase") else 1.0
    injection: Any = {"diagonal": "ssm", "linear": "concat", "add": "add"}[get(c, "injection_type")]
    return ModelConfig(
        family="parcae",
        vocab_size=rows(c, names, "transformer.wte.weight"),
        d_model=d,
        num_heads=heads,
        num_kv_heads=heads,
        d_ff=get(c, "intermediate_size"),
        core_d_ff=core,
        prelude_layers=stages[0],
        core_layers=stages[1],
        coda_layers=stages[2],
        context=get(c, "block_size"),
        norm="pre",
        norm_eps=get(c, "norm_eps"),
        rope="adjacent",
        rope_theta=float(get(turning, "rope_base")),
        rope_dtype="float32",
        mlp="half_relu2",
        injection=injection,
        rope_scaling="none" if condense == 1 else "linear",
        rope_factor=condense,
        embed_scale=scale,
        qk_norm="rotated" if c.get("qk_norm") else "none",
        qk_norm_eps=2.0**-23,
        coda_projection=True,
        prelude_norm=bool(c.get("prelude_norm")),
        tied=bool(c.get("tie_embeddings")),
        value_layers=layers,
        value_gate=names[gates[layers[0]]].shape[1] if layers else 32,
        logit_softcap=c.get("logit_softcap"),
        **_deepest(get(c, "mean_recurrence")),
    )


NANOCHAT_KEYS = (
    *("sequence_len", "vocab_size", "size", "n_head", "n_kv_head", "n_embd", "window_pattern", "n_prelude"),
    *("n_recur_block", "n_coda", "train_recur_mean", "train_recur_max", "bptt_k", "input_injection", "logit_softcap"),
    *("use_exit_gate", "exit_beta", "exit_min_recur"),  # the gate is imported if its weights are there
    *("kv_cache_recur_budget", "inject_mode", "recur_warm_start"),  # of older checkpoints; their code ignores them
)


def nanochat(c: Foreign, names: Names) -> ModelConfig:
    """looped_nanochat: norms on the residual sum, rotary tables rounded to bf16, windows of N + 1 positions, padding
    rows of the vocabulary kept aside. Its rotation goes the other way, which the key map absorbs. Keys that older
    checkpoints lack get the values that the project's own loader gives them."""
    c = {key: value for key, value in c.get("model_config", c).items() if value is not None}
    for key in c.keys() - set(NANOCHAT_KEYS) if "step" not in c else ():
        raise InputError(f"config key '{key}' is unknown to looped_nanochat: {nearest(key, NANOCHAT_KEYS)}")
    d, mode = get(c, "n_embd"), c.get("input_injection", "inject_init_prelude")
    only(c, input_injection=("inject_init_prelude", "inject_init_random", "passthrough"))
    stages = {
        f"{ours}_layers": get(c, key)
        for ours, key in (("prelude", "n_prelude"), ("core", "n_recur_block"), ("coda", "n_coda"))
    }
    mean = c.get("train_recur_mean", 4.0)
    return ModelConfig(
        family="nanochat",
        vocab_size=get(c, "vocab_size"),
        d_model=d,
        num_heads=get(c, "n_head"),
        num_kv_heads=c.get("n_kv_head"),
        d_ff=4 * d,
        **stages,
        context=get(c, "sequence_len"),
        norm="residual",
        norm_eps=1e-6,
        rope="half",
        rope_dtype="bfloat16",
        qk_norm="rotated",
        mlp="relu2",
        embed_norm=True,
        state_norm=True,
        injection="none" if mode == "passthrough" else "concat",
        state_init="zero" if mode == "inject_init_random" else "embed",
        tied=False,
        exit_gate="exit_gate.proj.weight" in names,
        logit_softcap=float(c.get("logit_softcap", 15.0)),
        windows=_pattern(c, sum(stages.values())),
        mean_depth=float(mean),
        max_depth=max(c.get("train_recur_max", 16), 2 * math.ceil(mean)),
    )


def _pattern(c: Foreign, layers: int) -> tuple[int, ...]:
    """`window_pattern`, repeated over the layers: L sees the whole length, S half of it, the last layer all."""
    length, pattern = get(c, "sequence_len"), c.get("window_pattern", "L").upper()
    if not pattern or set(pattern) - set("SL"):
        raise InputError(f"config key 'window_pattern' is '{pattern}': only the letters S and L can be imported")
    near = [length // 2 if pattern[i % len(pattern)] == "S" else length for i in range(layers)]
    return tuple(n + 1 for n in (*near[:-1], length))
