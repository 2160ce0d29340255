"""Reading foreign configurations: what must be there, what may be there, and the settings several families share."""

from collections.abc import Mapping
from typing import Any

from loopwise.checkpoint.tensors import Facts
from loopwise.config import InputError

Foreign = Mapping[str, Any]
Names = Mapping[str, Facts]
MAX_WINDOW_LAYERS = 28  # default of the configurations that know `max_window_layers`


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
    """Attention windows per layer, empty if none slides. Mistral slides wherever `sliding_window` is set; the others
    only with `use_sliding_window`, in the layers that `layer_types` names or from `max_window_layers` on."""
    always = c.get("model_type") == "mistral"
    window = (c.get("sliding_window") or 0) if always or c.get("use_sliding_window") else 0
    first = 0 if always else c.get("max_window_layers", MAX_WINDOW_LAYERS)
    kinds = c.get("layer_types") or ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    for kind in kinds:
        only({"layer type": kind}, **{"layer type": ("full_attention", "sliding_attention")})
    if len(kinds) != layers:
        raise InputError(f"config key 'layer_types' has {len(kinds)} entries: the model has {layers} layers")
    if c.get("layer_types") and "sliding_attention" in kinds and not window:
        raise InputError("config key 'layer_types' names sliding layers, but no sliding window is in use: correct one")
    found = tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    return found if any(found) else ()
