"""Configurations of foreign families as `ModelConfig`. Settings that the wiring cannot express are refused by name."""

import math
from collections.abc import Mapping
from typing import Any

from loopwise.checkpoint.tensors import Facts
from loopwise.config import InputError, ModelConfig

Foreign = Mapping[str, Any]
Names = Mapping[str, Facts]


def _only(config: Foreign, **allowed: Any) -> None:
    """Refuse any setting that is present and differs from what we can express (a tuple allows several)."""
    for key, wanted in allowed.items():
        values = wanted if isinstance(wanted, tuple) else (wanted,)
        if key in config and config[key] not in values:
            shown = " or ".join(map(repr, values))
            raise InputError(f"config key '{key}' is {config[key]!r}: only {shown} can be imported")


def _get(config: Foreign, key: str) -> Any:
    if config.get(key) is None:
        raise InputError(f"config key '{key}' is missing: this is not the family's config.json")
    return config[key]


def _rows(c: Foreign, names: Names, name: str) -> int:
    """Rows of the embedding: as stored, or what the configuration says while there are no weights yet."""
    if not names:
        return c.get("padded_vocab_size") or _get(c, "vocab_size")
    if name not in names:
        raise InputError(f"tensor '{name}' is missing: the weights do not belong to this config.json")
    return names[name].shape[0]


def _rope(config: Foreign, theta: float) -> dict[str, Any]:
    """Rotary settings from `rope_scaling` (transformers 4) or `rope_parameters` (5)."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    _only({"rope type": kind}, **{"rope type": ("default", "linear", "llama3")})
    _only(config, partial_rotary_factor=(None, 1.0))
    _only(scaling, partial_rotary_factor=(None, 1.0))
    found = {"rope": "half", "rope_dtype": "float32", "rope_theta": float(scaling.get("rope_theta", theta))}
    if kind == "default":
        return found
    found |= {"rope_scaling": kind, "rope_factor": float(scaling["factor"])}
    if kind == "llama3":
        found |= {
            "rope_low": float(scaling["low_freq_factor"]),
            "rope_high": float(scaling["high_freq_factor"]),
            "rope_original": int(scaling["original_max_position_embeddings"]),
        }
    return found


def _deepest(mean: float) -> dict[str, Any]:
    """Depths worth asking for: twice the training mean, at least 32."""
    return {"mean_depth": float(mean), "max_depth": max(32, 2 * math.ceil(mean))}


def _raven(c: Foreign, names: Names, **changes: Any) -> ModelConfig:
    _only(
        c,
        injection_type="linear",
        bias=False,
        mlp_class_name="GatedMLP",
        nonlin_name="SiLU",
        norm_class_name="RMSNorm_llama",
        block_class_name="SandwichBlock",
        test_time_noise=(0, 0.0, None),
    )
    shared = {
        "vocab_size": _rows(c, names, "transformer.wte.weight"),
        "d_model": _get(c, "n_embd"),
        "num_heads": _get(c, "n_heads"),
        "num_kv_heads": c.get("num_key_value_heads"),
        "head_dim": c.get("head_dim"),
        "d_ff": _get(c, "intermediate_size"),
        "prelude_layers": _get(c, "n_layers_in_prelude"),
        "core_layers": _get(c, "n_layers_in_recurrent_block"),
        "coda_layers": _get(c, "n_layers_in_coda"),
        "norm_eps": _get(c, "norm_eps"),
        "tied": bool(c.get("tie_embeddings", True)),
        "injection": "concat",
        "embed_scale": float(_get(c, "init_values")["embed_scale"]),
        **_deepest(_get(c, "mean_recurrence")),
    }
    return ModelConfig(**{**shared, **changes})


def huginn(c: Foreign, names: Names) -> ModelConfig:
    """Huginn: norms on the residual sum, adjacent-pair rotary, the final norm twice. The random initial state of the
    official code becomes a zero state (its `init_scale=0`)."""
    return _raven(
        c,
        names,
        family="huginn",
        context=_get(c, "block_size"),
        norm="residual",
        coda_norm=True,
        head_dim=None,
        rope="adjacent",
        rope_dtype="float32",
        rope_theta=float(_get(c, "rope_base")),
        attention_bias=bool(_get(c, "qk_bias")),
    )


def retrofit_llama(c: Foreign, names: Names) -> ModelConfig:
    """Retrofitted Llama: pre-norm blocks; `rope_base` is stale where `rope_theta` exists."""
    _only(c, qk_bias=False)
    rope = _rope(c, c.get("rope_theta") or _get(c, "rope_base"))
    context = c.get("max_position_embeddings") or _get(c, "block_size")
    return _raven(c, names, **{"family": "retrofit-llama", "context": context, "norm": "pre", **rope})


def retrofit_olmo(c: Foreign, names: Names) -> ModelConfig:
    """Retrofitted OLMo 2: norms on the sublayer outputs only, query and key norms over all heads."""
    _only(c, qk_bias=False)
    rope = _rope(c, c.get("rope_theta") or _get(c, "rope_base"))
    context = c.get("max_position_embeddings") or _get(c, "block_size")
    changes = {"family": "retrofit-olmo", "context": context, "norm": "post", "qk_norm": "full", **rope}
    return _raven(c, names, **changes)


def _hf(c: Foreign, names: Names) -> dict[str, Any]:
    """What Ouro and plain transformers share."""
    _only(c, hidden_act="silu", mlp_bias=False, attention_dropout=(0.0, 0))
    rope_theta = c.get("rope_theta") or 10_000.0
    layers = _get(c, "num_hidden_layers")
    window = c.get("sliding_window") or 0
    kinds = c.get("layer_types") or ["sliding_attention" if _slides(c) else "full_attention"] * layers
    windows = tuple(window if kind == "sliding_attention" else 0 for kind in kinds[:layers])
    return {
        "vocab_size": _rows(c, names, "model.embed_tokens.weight"),
        "d_model": _get(c, "hidden_size"),
        "num_heads": _get(c, "num_attention_heads"),
        "num_kv_heads": c.get("num_key_value_heads"),
        "head_dim": c.get("head_dim"),
        "d_ff": _get(c, "intermediate_size"),
        "prelude_layers": 0,
        "core_layers": layers,
        "coda_layers": 0,
        "context": _get(c, "max_position_embeddings"),
        "norm_eps": _get(c, "rms_norm_eps"),
        "tied": bool(c.get("tie_word_embeddings", False)),
        "injection": "none",
        "state_init": "embed",
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in names,
        "windows": windows if any(windows) else (),
        **_rope(c, rope_theta),
    }


def _slides(c: Foreign) -> bool:
    """Without `layer_types`, Mistral slides wherever `sliding_window` is set and Qwen asks for `use_sliding_window`."""
    return c.get("model_type") == "mistral" or bool(c.get("use_sliding_window"))


def ouro(c: Foreign, names: Names) -> ModelConfig:
    """Ouro: the whole stack loops, the final norm runs after every loop and is carried, a gate reads each state."""
    steps = _get(c, "total_ut_steps")
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
    d, heads = _get(c, "n_embd"), _get(c, "num_attention_heads")
    _only(
        c,
        recurrent_embedding_dimension=d,
        recurrent_num_attention_heads=(None, heads),
        clip_qkv=None,
        bias=False,
        qk_bias=False,
        block_class_name="TransformerPreNormBlock",
        norm_class_name="RMSNorm",
        mlp_class_name="BaseMLP",
        nonlin_name="ReLU2",
        num_key_value_heads=heads,
        mup_model_scaling_factor=1,
        use_abacus=False,
        debias_attention=False,
        center_attention=False,
        injection_type=("diagonal", "linear", "add"),
    )
    rope, core = _get(c, "rope_settings"), _get(c, "recurrent_intermediation_embedding_dimension")
    _only(rope, use_rope=True)
    condense = float(rope.get("rope_condense_ratio", 1))
    stages = [_get(c, f"n_layers_in_{stage}") for stage in ("prelude", "recurrent_block", "coda")]
    blocks = [
        f"transformer.{name}.{i}"
        for name, n in zip(("prelude", "core_block", "coda"), stages, strict=True)
        for i in range(n)
    ]
    gates = [f"{block}.attn.ve_gate.weight" for block in blocks]
    layers = tuple(i for i, gate in enumerate(gates) if gate in names and f"value_embeds.{i}.weight" in names)
    scale = math.sqrt(d) if str(c.get("init_strategy", "")).startswith("takase") else 1.0
    injection: Any = {"diagonal": "ssm", "linear": "concat", "add": "add"}[_get(c, "injection_type")]
    return ModelConfig(
        family="parcae",
        vocab_size=_rows(c, names, "transformer.wte.weight"),
        d_model=d,
        num_heads=heads,
        d_ff=_get(c, "intermediate_size"),
        core_d_ff=core,
        prelude_layers=stages[0],
        core_layers=stages[1],
        coda_layers=stages[2],
        context=_get(c, "block_size"),
        norm="pre",
        norm_eps=_get(c, "norm_eps"),
        rope="adjacent",
        rope_theta=float(_get(rope, "rope_base")),
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
        **_deepest(_get(c, "mean_recurrence")),
    )


def nanochat(c: Foreign, names: Names) -> ModelConfig:
    """looped_nanochat: norms on the residual sum, rotary tables rounded to bf16, windows of N + 1 positions, padding
    rows of the vocabulary kept aside. Its rotation goes the other way, which the key map absorbs."""
    c = c.get("model_config", c)
    d, length, mode = _get(c, "n_embd"), _get(c, "sequence_len"), c.get("input_injection", "inject_init_prelude")
    _only(c, input_injection=("inject_init_prelude", "inject_init_random", "passthrough"))
    stages = {
        f"{ours}_layers": _get(c, key)
        for ours, key in (("prelude", "n_prelude"), ("core", "n_recur_block"), ("coda", "n_coda"))
    }
    pattern = _get(c, "window_pattern").upper()
    near = [length // 2 if pattern[i % len(pattern)] == "S" else length for i in range(sum(stages.values()))]
    near[-1] = length
    return ModelConfig(
        family="nanochat",
        vocab_size=_get(c, "vocab_size"),
        d_model=d,
        num_heads=_get(c, "n_head"),
        num_kv_heads=_get(c, "n_kv_head"),
        d_ff=4 * d,
        **stages,
        context=length,
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
        windows=tuple(n + 1 for n in near),
        mean_depth=float(_get(c, "train_recur_mean")),
        max_depth=max(_get(c, "train_recur_max"), 2 * math.ceil(c["train_recur_mean"])),
    )
