"""Foreign families: how to recognise a checkpoint, which `ModelConfig` it is, and where each tensor goes.

A family is a row of `FAMILIES`. Its key map is a table from our names to (transform, their names...); rows whose target
the model does not have are skipped, so one table serves all variants of a family, and whatever of theirs is then left
over is an error that lists it. The config builders refuse what the wiring cannot express.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from loopwise.checkpoint import configs
from loopwise.checkpoint.tensors import Facts, Renamed, Tensors
from loopwise.config import ModelConfig

Rows = dict[str, tuple[str, ...]]
Foreign = Mapping[str, Any]
Names = Mapping[str, Facts]


class Entry(NamedTuple):
    """`target` (ours) is `transform` of `sources` (theirs)."""

    target: str
    transform: str
    sources: tuple[str, ...]


class Family(NamedTuple):
    """One foreign format.

    `matches(config, names)` recognises it, `build(config, names)` maps the configuration. `outside` are the rows
    outside blocks, `block` those inside each block, `stages` where each stage's blocks lie in theirs. `twins` names
    tensors that repeat another one of theirs (tied weights stored twice); `carried` is a test for names of tensors
    that no computation uses: they are kept aside for export.
    """

    matches: Callable[[Foreign, Names], bool]
    build: Callable[[Foreign, Names], ModelConfig]
    outside: Rows
    block: Rows
    stages: Mapping[str, str]
    twins: Mapping[str, str] = {}
    carried: Callable[[str, ModelConfig], bool] = lambda name, config: False

    def entries(self, config: ModelConfig) -> list[Entry]:
        """The whole key map for a model of this shape."""
        found = [Entry(target, kind, tuple(sources)) for target, (kind, *sources) in self.outside.items()]
        ours = {"prelude": "prelude_blocks", "core": "recurrence.blocks", "coda": "coda_blocks"}
        first = {"prelude": 0, "core": config.prelude_layers, "coda": config.prelude_layers + config.core_layers}
        for stage, theirs in self.stages.items():
            for i in range(getattr(config, f"{stage}_layers")):
                fill = {"i": i, "layer": first[stage] + i}
                for target, (kind, *sources) in self.block.items():
                    paths = (s[1:] if s.startswith("/") else f"{theirs}.{s}" for s in sources)
                    names = tuple(path.format(**fill) for path in paths)
                    found.append(Entry(f"{ours[stage]}.{i}.{target}", kind, names))
        return found

    def embedding_named(self, foreign: Foreign, tensors: Tensors) -> Tensors:
        """Tied weights that are stored under the head's name alone (safetensors keeps one name of a shared tensor, the
        first in the alphabet), under the embedding's."""
        names = tensors.facts.keys()
        moved = {of: twin for twin, of in self.twins.items() if twin in names and of not in names}
        if not moved:
            return tensors
        kept = {name: name for name in names if name not in moved.values()}
        renamed = Renamed(tensors, kept | moved)
        return renamed if self.build(foreign, renamed.facts).tied else tensors


# --- Huginn and the retrofitted recurrent models, which share its state-dict layout

_RAVEN_OUTSIDE: Rows = {
    "embedding.weight": ("same", "transformer.wte.weight"),
    "recurrence.injection.adapter.weight": ("same", "transformer.adapter.weight"),
    "final_norm.weight": ("same", "transformer.ln_f.weight"),
    "head.weight": ("same", "lm_head.weight"),
}
_RAVEN_BLOCK: Rows = {
    "attention.qkv.weight": ("same", "attn.Wqkv.weight"),
    "attention.qkv.bias": ("qk_bias", "attn.qk_bias"),
    "attention.out.weight": ("same", "attn.proj.weight"),
    "attention.q_norm.weight": ("same", "attn.q_norm.weight"),
    "attention.k_norm.weight": ("same", "attn.k_norm.weight"),
    "mlp.up.weight": ("same", "mlp.fc.weight"),
    "mlp.down.weight": ("same", "mlp.proj.weight"),
}
_RAVEN_STAGES = {
    "prelude": "transformer.prelude.{i}",
    "core": "transformer.core_block.{i}",
    "coda": "transformer.coda.{i}",
}
_RAVEN_TWINS = {"lm_head.weight": "transformer.wte.weight"}
_FOUR_NORMS: Rows = {f"norm_{n}.weight": ("same", f"norm_{n}.weight") for n in (1, 2, 3, 4)}
_PRE_NORMS: Rows = {"norm_1.weight": ("same", "norm_1.weight"), "norm_3.weight": ("same", "norm_2.weight")}
_POST_NORMS: Rows = {"norm_2.weight": ("same", "norm_1.weight"), "norm_4.weight": ("same", "norm_2.weight")}


def _raven(config: Foreign, names: Names, *, norms: int, qk_norm: bool) -> bool:
    if config.get("model_type") != "huginn_raven":
        return False
    if not names:  # planned from config.json alone: converted models carry their source's rope_theta
        return norms == (2 if config.get("rope_theta") else 4)
    found = sum(f"transformer.core_block.0.norm_{n}.weight" in names for n in (1, 2, 3, 4))
    return (found, "transformer.core_block.0.attn.q_norm.weight" in names) == (norms, qk_norm)


def _rope_table(name: str, config: ModelConfig) -> bool:
    return name == "freqs_cis"


# --- Ouro and plain transformers, in the layout of `transformers`

_HF_BLOCK: Rows = {
    "attention.qkv.weight": ("stack", *(f"self_attn.{x}_proj.weight" for x in "qkv")),
    "attention.qkv.bias": ("stack", *(f"self_attn.{x}_proj.bias" for x in "qkv")),
    "attention.out.weight": ("same", "self_attn.o_proj.weight"),
    "attention.q_norm.weight": ("same", "self_attn.q_norm.weight"),
    "attention.k_norm.weight": ("same", "self_attn.k_norm.weight"),
    "mlp.up.weight": ("stack", "mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.down.weight": ("same", "mlp.down_proj.weight"),
}
_HF_OUTSIDE: Rows = {
    "embedding.weight": ("same", "model.embed_tokens.weight"),
    "final_norm.weight": ("same", "model.norm.weight"),
    "head.weight": ("same", "lm_head.weight"),
}
_OURO_BLOCK: Rows = {
    "norm_1.weight": ("same", "input_layernorm.weight"),
    "norm_2.weight": ("same", "input_layernorm_2.weight"),
    "norm_3.weight": ("same", "post_attention_layernorm.weight"),
    "norm_4.weight": ("same", "post_attention_layernorm_2.weight"),
}
_OURO_OUTSIDE: Rows = {
    "recurrence.norm.weight": ("same", "model.norm.weight"),
    "exit_gate.weight": ("same", "model.early_exit_gate.weight"),
    "exit_gate.bias": ("same", "model.early_exit_gate.bias"),
}
_LLAMA_BLOCK: Rows = {
    "norm_1.weight": ("same", "input_layernorm.weight"),
    "norm_3.weight": ("same", "post_attention_layernorm.weight"),
}
_OLMO_BLOCK: Rows = {
    "norm_2.weight": ("same", "post_attention_layernorm.weight"),
    "norm_4.weight": ("same", "post_feedforward_layernorm.weight"),
}
_HF_TWINS = {"lm_head.weight": "model.embed_tokens.weight"}

# --- Parcae and looped_nanochat, whose attention keeps three projections

_SPLIT_QKV = tuple(f"attn.c_{x}.weight" for x in "qkv")
_PARCAE_BLOCK: Rows = {
    "attention.qkv.weight": ("stack", *_SPLIT_QKV),
    "attention.out.weight": ("same", "attn.c_proj.weight"),
    "attention.value_gate.weight": ("same", "attn.ve_gate.weight"),
    "attention.value.weight": ("same", "/value_embeds.{layer}.weight"),
    "mlp.up.weight": ("same", "mlp.fc.weight"),
    "mlp.down.weight": ("same", "mlp.proj.weight"),
}
_PARCAE_OUTSIDE: Rows = {
    "prelude_norm.weight": ("same", "transformer.ln_prelude.weight"),
    "recurrence.injection.adapter.weight": ("same", "transformer.adapter.adapter.weight"),
    "recurrence.injection.log_rate": ("same", "transformer.adapter.A_log"),
    "recurrence.injection.step": ("same", "transformer.adapter.dt_bias"),
    "recurrence.injection.input.weight": ("same", "transformer.adapter.B"),
    "coda_projection.weight": ("same", "transformer.C.weight"),
}
_NANOCHAT_BLOCK: Rows = {
    "attention.qkv.weight": ("stack_flipped", *_SPLIT_QKV),
    "attention.out.weight": ("same", "attn.c_proj.weight"),
    "mlp.up.weight": ("same", "mlp.c_fc.weight"),
    "mlp.down.weight": ("same", "mlp.c_proj.weight"),
    **{f"norm_{n}.weight": ("same", f"n{n}.weight") for n in (1, 2, 3, 4)},
}
_NANOCHAT_OUTSIDE: Rows = {
    "embedding.weight": ("first_rows", "transformer.wte.weight"),
    "embed_norm.weight": ("same", "norm_emb.weight"),
    "recurrence.injection.adapter.weight": ("swap_columns", "inject.weight"),
    "recurrence.norm.weight": ("same", "norm_recur.weight"),
    "exit_gate.weight": ("same", "exit_gate.proj.weight"),
    "exit_gate.bias": ("same", "exit_gate.proj.bias"),
    "final_norm.weight": ("same", "norm_final.weight"),
    "head.weight": ("first_rows", "lm_head.weight"),
}


def _unused_values(name: str, config: ModelConfig) -> bool:
    """Parcae stores value embeddings and gates that have no counterpart; its own code ignores them."""
    return name == "freqs_cis" or name.startswith("value_embeds.") or name.endswith(".attn.ve_gate.weight")


FAMILIES: dict[str, Family] = {
    "huginn": Family(
        lambda c, names: _raven(c, names, norms=4, qk_norm=False),
        configs.huginn,
        _RAVEN_OUTSIDE,
        _RAVEN_BLOCK | _FOUR_NORMS,
        _RAVEN_STAGES,
        _RAVEN_TWINS,
        _rope_table,
    ),
    "retrofit-llama": Family(
        lambda c, names: _raven(c, names, norms=2, qk_norm=False),
        configs.retrofit_llama,
        _RAVEN_OUTSIDE,
        _RAVEN_BLOCK | _PRE_NORMS,
        _RAVEN_STAGES,
        _RAVEN_TWINS,
    ),
    "retrofit-olmo": Family(
        lambda c, names: _raven(c, names, norms=2, qk_norm=True),
        configs.retrofit_olmo,
        _RAVEN_OUTSIDE,
        _RAVEN_BLOCK | _POST_NORMS,
        _RAVEN_STAGES,
        _RAVEN_TWINS,
    ),
    "ouro": Family(
        lambda c, names: c.get("model_type") == "ouro",
        configs.ouro,
        _HF_OUTSIDE | _OURO_OUTSIDE,
        _HF_BLOCK | _OURO_BLOCK,
        {"core": "model.layers.{i}"},
        _HF_TWINS,
    ),
    "parcae": Family(
        lambda c, names: "recurrent_embedding_dimension" in c,
        configs.parcae,
        _RAVEN_OUTSIDE | _PARCAE_OUTSIDE,
        _PARCAE_BLOCK | _PRE_NORMS,
        _RAVEN_STAGES,
        _RAVEN_TWINS,
        _unused_values,
    ),
    "nanochat": Family(
        lambda c, names: "n_recur_block" in c.get("model_config", c),
        configs.nanochat,
        _NANOCHAT_OUTSIDE,
        _NANOCHAT_BLOCK,
        {
            stage: f"transformer.{theirs}.{{i}}"
            for stage, theirs in (("prelude", "prelude"), ("core", "recur"), ("coda", "coda"))
        },
    ),
    "llama": Family(
        lambda c, names: c.get("model_type") in configs.PLAIN and c["model_type"] != "olmo2",
        configs.plain,
        _HF_OUTSIDE,
        _HF_BLOCK | _LLAMA_BLOCK,
        {"core": "model.layers.{i}"},
        _HF_TWINS,
    ),
    "olmo2": Family(
        lambda c, names: c.get("model_type") == "olmo2",
        configs.plain,
        _HF_OUTSIDE,
        _HF_BLOCK | _OLMO_BLOCK,
        {"core": "model.layers.{i}"},
        _HF_TWINS,
    ),
}
