"""Reading foreign configurations: what must be there, what may be there, and the settings several families share."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from loopwise.checkpoint.tensors import Facts
from loopwise.config import InputError

Foreign = Mapping[str, Any]
Names = Mapping[str, Facts]
MAX_WINDOW_LAYERS = 28  # defaults of the configurations that know `max_window_layers` and `sliding_window`
WINDOW = 4096

HEADS = (
    "n_head",
    "n_heads",
    "num_attention_heads",
    "n_kv_head",
    "num_key_value_heads",
    "recurrent_num_attention_heads",
)
COUNTS = (
    *("vocab_size", "padded_vocab_size", "n_embd", "hidden_size", "intermediate_size", "head_dim", "num_hidden_layers"),
    *("n_layers_in_prelude", "n_layers_in_recurrent_block", "n_layers_in_coda", "n_prelude", "n_recur_block", "n_coda"),
    *("block_size", "sequence_len", "max_position_embeddings", "original_max_position_embeddings", "sliding_window"),
    *("max_window_layers", "total_ut_steps", "train_recur_max", "recurrent_embedding_dimension"),
    "recurrent_intermediation_embedding_dimension",
)
NUMBERS = (
    *("norm_eps", "rms_norm_eps", "rope_base", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
    *("rope_condense_ratio", "embed_scale", "mean_recurrence", "train_recur_mean", "logit_softcap"),
)
FLAGS = ("tie_embeddings", "tie_word_embeddings", "qk_bias", "qk_norm", "prelude_norm", "use_sliding_window")
TEXTS = ("model_type", "window_pattern", "init_strategy", "injection_type", "rope_type", "type", "input_injection")
TABLES = ("rope_scaling", "rope_parameters", "rope_settings", "init_values", "model_config")


def _number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


KINDS: list[tuple[tuple[str, ...], Callable[[Any], bool], str]] = [
    (HEADS, lambda value: type(value) is int and value >= 1, "an integer of at least 1"),
    (COUNTS, lambda value: type(value) is int and value >= 0, "an integer of at least 0"),
    (NUMBERS, _number, "a number"),
    (FLAGS, lambda value: type(value) is bool, "true or false"),
    (TEXTS, lambda value: type(value) is str, "a text"),
    (TABLES, lambda value: isinstance(value, Mapping), "an object"),
    (("layer_types",), lambda value: isinstance(value, list), "a list"),
]


def check_kinds(config: Foreign) -> None:
    """Refuse known settings whose value is of another kind than any version writes; null always passes, as absent."""
    for names, right, wanted in KINDS:
        for key in names:
            value = config.get(key)
            if value is not None and not right(value):
                raise InputError(f"config key '{key}' is {value!r}: use {wanted}")
    for key in TABLES:
        if config.get(key):
            check_kinds(config[key])


def only(config: Foreign, **allowed: Any) -> None:
    """Refuse any setting that is present and differs from what we can express (a tuple allows several)."""
    for key, wanted in allowed.items():
        values = wanted if isinstance(wanted, tuple) else (wanted,)
        if key in config and config[key] not in values:
            shown = " or ".join(map(repr, values))
            raise InputError(f"config key '{key}' is {config[key]!r}: only {shown} can be imported")


def get(config: Foreign, key: str) -> Any:
    """A setting that must be there; raises `InputError`."""
    if config.get(key) is None:
        raise InputError(f"config key '{key}' is missing: this is not the family's config.json")
    return config[key]


def rows(c: Foreign, names: Names, name: str) -> int:
    """Rows of the embedding: as stored, or what the configuration says while there are no weights yet."""
    if not names:
        return c.get("padded_vocab_size") or get(c, "vocab_size")
    if name not in names:
        raise InputError(f"tensor '{name}' is missing: the weights do not belong to this config.json")
    return names[name].shape[0]


def rope(config: Foreign, theta: float) -> dict[str, Any]:
    """Rotary settings from `rope_scaling` (transformers 4) or `rope_parameters` (5)."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    only({"rope type": kind}, **{"rope type": ("default", "linear", "llama3")})
    only(config, partial_rotary_factor=(None, 1.0))
    only(scaling, partial_rotary_factor=(None, 1.0))
    found = {"rope": "half", "rope_dtype": "float32", "rope_theta": float(scaling.get("rope_theta", theta))}
    if kind == "default":
        return found
    found |= {"rope_scaling": kind, "rope_factor": float(get(scaling, "factor"))}
    if kind == "llama3":
        found |= {
            "rope_low": float(get(scaling, "low_freq_factor")),
            "rope_high": float(get(scaling, "high_freq_factor")),
            "rope_original": int(get(scaling, "original_max_position_embeddings")),
        }
    return found


def windows(c: Foreign, layers: int) -> tuple[int, ...]:
    """Attention windows per layer, empty if none slides. Mistral slides unless `sliding_window` is null; the others
    only with `use_sliding_window`, in the layers that `layer_types` names or from `max_window_layers` on."""
    always = c.get("model_type") == "mistral"
    window = (c.get("sliding_window", WINDOW) or 0) if always or c.get("use_sliding_window") else 0
    first = c.get("max_window_layers")
    first = 0 if always else MAX_WINDOW_LAYERS if first is None else first
    kinds = c.get("layer_types") or ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    for kind in kinds:
        only({"layer type": kind}, **{"layer type": ("full_attention", "sliding_attention")})
    if len(kinds) != layers:
        raise InputError(f"config key 'layer_types' has {len(kinds)} entries: the model has {layers} layers")
    if c.get("layer_types") and "sliding_attention" in kinds and not window:
        raise InputError("config key 'layer_types' names sliding layers, but no sliding window is in use: correct one")
    found = tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    return found if any(found) else ()
