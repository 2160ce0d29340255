"""Turn a plain transformer into a looped one: pick layers for prelude, core and coda, add an adapter.

The adapter starts as [0 | I]: the state is ignored and the prelude's output goes through, so the model computes the
chosen stack at any depth until training changes it.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopwise.checkpoint.families import FAMILIES, Entry
from loopwise.checkpoint.foreign import Plan, stored_dtype
from loopwise.checkpoint.native import expected_shapes
from loopwise.checkpoint.tensors import Facts, Tensors
from loopwise.config import InputError, ModelConfig
from loopwise.model.recurrent import RecurrentLM

ADAPTER = "recurrence.injection.adapter.weight"
STAGES = ("prelude_blocks", "recurrence.blocks", "coda_blocks")


class _WithAdapter:
    """Tensors of the source and one more: the adapter, in the dtype of the embedding."""

    def __init__(self, tensors: Tensors, config: ModelConfig, dtype: str) -> None:
        shape = (config.d_model, 2 * config.d_model)
        self.tensors, self.d = tensors, config.d_model
        self.facts = {**tensors.facts, ADAPTER: Facts(shape, dtype, "")}

    def read(self, name: str) -> Tensor:
        return identity(self.d) if name == ADAPTER else self.tensors.read(name)


def identity(d: int) -> Tensor:
    """[0 | I]."""
    return torch.cat([torch.zeros(d, d), torch.eye(d)], dim=1)


def identity_adapter(model: RecurrentLM) -> RecurrentLM:
    """A copy of a concat-injection model whose adapter is [0 | I]."""
    changed = copy.deepcopy(model)
    changed.recurrence.injection.adapter.weight.data.copy_(identity(model.config.d_model))
    return changed


def parse(text: str, layers: int) -> list[list[int]]:
    """`P-C-K` as layer numbers: the first P, the C before the last K, the last K; layers between are dropped."""
    parts = text.split("-")
    if len(parts) != 3 or not all(p.isdigit() for p in parts):
        raise InputError(f"retrofit '{text}' is not P-C-K: give three counts, e.g. 2-4-2")
    prelude, core, coda = map(int, parts)
    if core < 1 or prelude + core + coda > layers:
        asked = prelude + core + coda
        raise InputError(f"retrofit '{text}' asks for {asked} layers: the checkpoint has {layers}; the core needs one")
    end = layers - coda
    return [list(range(prelude)), list(range(end - core, end)), list(range(end, layers))]


def retrofit(plan: Plan, layers: Sequence[Sequence[int]], *, mean_depth: float = 8.0, max_depth: int = 32) -> Plan:
    """The plan of the looped model that takes these layers of a plain one. Layers that are not picked are dropped."""
    config = plan.config
    if config.injection != "none" or config.prelude_layers or config.coda_layers or config.max_depth != 1:
        raise InputError(f"retrofit: a {plan.name} checkpoint is looped already: give a plain transformer")
    counts = [len(picked) for picked in layers]
    windows = tuple(config.windows[i] for picked in layers for i in picked) if config.windows else ()
    values = {
        **config.to_dict(),
        "family": f"retrofit-{'olmo' if plan.name == 'olmo2' else 'llama'}",
        "windows": windows,
        "prelude_layers": counts[0],
        "core_layers": counts[1],
        "coda_layers": counts[2],
        "injection": "concat",
        "state_init": "zero",
        "mean_depth": mean_depth,
        "max_depth": max_depth,
    }
    looped = ModelConfig(**values)
    place = {
        f"recurrence.blocks.{source}.": f"{stage}.{i}."
        for stage, picked in zip(STAGES, layers, strict=True)
        for i, source in enumerate(picked)
    }
    entries = [_moved(entry, place) for entry in plan.entries]
    dtype = next(plan.tensors.facts[e.sources[0]].dtype for e in plan.entries if e.target == "embedding.weight")
    tensors = _WithAdapter(plan.tensors, looped, dtype)
    kept = [entry for entry in entries if entry] + [Entry(ADAPTER, "same", (ADAPTER,))]
    changed = plan._replace(config=looped, tensors=tensors, entries=kept, twins={}, export={})
    return changed._replace(export=_export(changed))


def _export(plan: Plan) -> dict[str, Any]:
    """How to write the looped model in the layout of the retrofitting-recurrence project; empty if it has no words for
    it (biases, per-head query and key norms, windows, heads of another width than d / heads)."""
    c, name = plan.config, plan.config.family
    odd = c.width * c.num_heads != c.d_model
    if odd or c.attention_bias or c.qk_norm == "head" or c.windows or c.rope_scaling == "linear":
        return {}
    shapes = expected_shapes(c)
    tensors = {}
    for entry in FAMILIES[name].entries(c):
        if entry.target in shapes:
            facts = [list(shapes[entry.target]), stored_dtype(plan, entry.target), "model.safetensors"]
            tensors[entry.sources[0]] = facts
    return {"family": name, "config": _raven_config(c), "tensors": tensors, "twins": {}, "carried": []}


def _raven_config(c: ModelConfig) -> dict[str, Any]:
    """config.json of that project."""
    scaling = {
        "rope_type": "llama3",
        "factor": c.rope_factor,
        "low_freq_factor": c.rope_low,
        "high_freq_factor": c.rope_high,
        "original_max_position_embeddings": c.rope_original,
    }
    return {
        "model_type": "huginn_raven",
        "architectures": ["RavenForCausalLM"],
        "n_embd": c.d_model,
        "n_heads": c.num_heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.width,
        "intermediate_size": c.d_ff,
        "n_layers": c.num_layers,
        "n_layers_in_prelude": c.prelude_layers,
        "n_layers_in_recurrent_block": c.core_layers,
        "n_layers_in_coda": c.coda_layers,
        "vocab_size": c.vocab_size,
        "padded_vocab_size": c.vocab_size,
        "norm_eps": c.norm_eps,
        "tie_embeddings": c.tied,
        "qk_bias": False,
        "bias": False,
        "injection_type": "linear",
        "init_values": {"embed_scale": c.embed_scale, "std": math.sqrt(2 / (5 * c.d_model))},
        "mean_recurrence": round(c.mean_depth),
        "max_position_embeddings": c.context,
        "block_size": c.context,
        "rope_base": c.rope_theta,
        "rope_theta": c.rope_theta,
        "rope_scaling": scaling if c.rope_scaling == "llama3" else None,
    }


def _moved(entry: Entry, place: dict[str, str]) -> Entry | None:
    """The entry at its new target, or None if its layer was not picked."""
    if not entry.target.startswith("recurrence.blocks."):
        return entry
    old = ".".join(entry.target.split(".")[:3]) + "."
    return entry._replace(target=entry.target.replace(old, place[old], 1)) if old in place else None
