"""Checkpoints that nobody made yet: random shapes and settings of every foreign family, in the official format.

`draw(family, seed)` gives config.json and the tensors; `write` stores them in some dtype, in shards, with keys that
other versions of the library write.
"""

import json
import math
import random

import torch

from loopwise.checkpoint.tensors import CODES, Facts, write_shards

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HARMLESS = {"_name_or_path": "somewhere/else", "use_cache": True, "pad_token_id": None, "a_later_key": {"deep": [1]}}


class Weights:
    """Seeded tensors whose activations stay of order one."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.made = {}

    def noise(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def linear(self, name, rows, columns):
        self.made[name] = 1.1 * self.noise(rows, columns) / math.sqrt(columns)

    def norm(self, name, width):
        self.made[name] = (1 + 0.25 * self.noise(width)).clamp(0.4, 1.7)

    def table(self, name, rows, width):
        self.made[name] = self.noise(rows, width)

    def tie(self, head, embedding, rng):
        """One matrix under the embedding's name, under both names, or under the head's alone (as safetensors drops
        all but the first name of a shared tensor)."""
        names = rng.choice([(embedding,), (embedding, head), (head,)])
        shared = self.made.pop(embedding)
        self.made |= {name: shared.clone() for name in names}


def scaling(rng):
    """A rope_scaling, or none."""
    return rng.choice([None, {"type": "linear", "factor": 2.0}, {**LLAMA3, "original_max_position_embeddings": 16}])


def raven(rng, w, kind):
    """Huginn, or a retrofitted Llama or OLMo 2."""
    heads, width, ff, vocab = rng.choice([1, 2, 3, 5]), rng.choice([4, 6, 8, 10]), rng.choice([12, 20, 33]), 41
    kv = (
        heads
        if kind == "huginn" or rng.random() < 0.4
        else rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    )
    d, bias, tied = heads * width, kind == "huginn" and rng.random() < 0.5, rng.random() < 0.5
    counts = {"prelude": rng.randint(0, 2), "core_block": rng.randint(1, 5), "coda": rng.randint(0, 3)}
    c = {
        "model_type": "huginn_raven",
        "n_embd": d,
        "n_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": width,
        "intermediate_size": ff,
        "n_layers_in_prelude": counts["prelude"],
        "n_layers_in_recurrent_block": counts["core_block"],
        "n_layers_in_coda": counts["coda"],
        "vocab_size": vocab,
        "padded_vocab_size": vocab,
        "norm_eps": rng.choice([1e-5, 1e-6]),
        "tie_embeddings": tied,
        "qk_bias": bias,
        "mean_recurrence": rng.choice([4, 32]),
        "block_size": 48,
        "rope_base": rng.choice([1000, 50000.0]),
        "init_values": {"embed_scale": math.sqrt(d) if kind == "huginn" else 1.0, "std": 0.1},
        "injection_type": "linear",
    }
    if kind != "huginn":
        theta, stretched = rng.choice([1e4, 5e5]), scaling(rng)
        c |= {"max_position_embeddings": 64, "initial_state_mode": "random", "test_time_noise": 0}
        if rng.random() < 0.5:  # as transformers 5 writes it
            c["rope_parameters"] = {"rope_type": "default", **(stretched or {}), "rope_theta": theta}
        else:
            c |= {"rope_theta": theta, "rope_scaling": stretched}
    w.table("transformer.wte.weight", vocab, d)
    w.linear("transformer.adapter.weight", d, 2 * d)
    w.norm("transformer.ln_f.weight", d)
    if not tied:
        w.linear("lm_head.weight", vocab, d)
    else:
        w.tie("lm_head.weight", "transformer.wte.weight", rng)
    for p in (f"transformer.{stage}.{i}" for stage, count in counts.items() for i in range(count)):
        w.linear(f"{p}.attn.Wqkv.weight", d + 2 * kv * width, d)
        w.linear(f"{p}.attn.proj.weight", d, d)
        w.linear(f"{p}.mlp.fc.weight", 2 * ff, d)
        w.linear(f"{p}.mlp.proj.weight", d, ff)
        for n in range(1, 5 if kind == "huginn" else 3):
            w.norm(f"{p}.norm_{n}.weight", d)
        if bias:
            w.made[f"{p}.attn.qk_bias"] = 0.4 * w.noise(2, 1, heads, width)
        if kind == "olmo":
            w.norm(f"{p}.attn.q_norm.weight", d)
            w.norm(f"{p}.attn.k_norm.weight", kv * width)
    optional = ["head_dim", "initial_state_mode", "injection_type"] + ["tie_embeddings"] * tied
    return c, optional + ["num_key_value_heads"] * (kv == heads)


def ouro(rng, w):
    """Ouro, windows and heads of another width than d / heads included."""
    heads, width, ff, vocab = rng.choice([1, 2, 4, 6]), rng.choice([4, 6, 10]), rng.choice([12, 33]), 37
    kv, tied = rng.choice([n for n in range(1, heads + 1) if heads % n == 0]), rng.random() < 0.4
    d = heads * width if rng.random() < 0.6 else 24
    layers, theta, stretched = rng.randint(1, 4), rng.choice([1e4, 1e6]), scaling(rng)
    c = {
        "model_type": "ouro",
        "hidden_size": d,
        "intermediate_size": ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": width,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "max_window_layers": rng.randint(0, layers),
        "rms_norm_eps": rng.choice([1e-5, 1e-6]),
        "sliding_window": 5,
        "use_sliding_window": rng.random() < 0.4,
        "tie_word_embeddings": tied,
        "total_ut_steps": rng.randint(1, 5),
        "early_exit_threshold": 1.0,
        "vocab_size": vocab,
    }
    if rng.random() < 0.5:
        c["rope_parameters"] = {"rope_type": "default", **(stretched or {}), "rope_theta": theta}
    else:
        c |= {"rope_theta": theta, "rope_scaling": stretched}
    w.table("model.embed_tokens.weight", vocab, d)
    w.norm("model.norm.weight", d)
    w.linear("model.early_exit_gate.weight", 1, d)
    w.made["model.early_exit_gate.bias"] = w.noise(1)
    if not tied:
        w.linear("lm_head.weight", vocab, d)
    else:
        w.tie("lm_head.weight", "model.embed_tokens.weight", rng)
    for p in (f"model.layers.{i}" for i in range(layers)):
        for name, rows, columns in (
            ("self_attn.q_proj", heads * width, d),
            ("self_attn.k_proj", kv * width, d),
            ("self_attn.v_proj", kv * width, d),
            ("self_attn.o_proj", d, heads * width),
            ("mlp.gate_proj", ff, d),
            ("mlp.up_proj", ff, d),
            ("mlp.down_proj", d, ff),
        ):
            w.linear(f"{p}.{name}.weight", rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            w.norm(f"{p}.{name}.weight", d)
            w.norm(f"{p}.{name}_2.weight", d)
    optional = ["hidden_act", "early_exit_threshold"] + ["tie_word_embeddings"] * (not tied)
    return c, optional + ["head_dim"] * (d == heads * width) + ["num_key_value_heads"] * (kv == heads)


def parcae(rng, w):
    """Parcae with any injection, value embeddings on some layers."""
    heads, width, vocab = rng.choice([2, 3, 4]), rng.choice([12, 16]), 43
    d, ff, core_ff = heads * width, rng.choice([20, 48]), rng.choice([24, 48])
    counts = {"prelude": rng.randint(1, 3), "core_block": rng.randint(1, 3), "coda": rng.randint(1, 2)}
    tied, kind = rng.random() < 0.5, rng.choice(["diagonal", "diagonal", "linear", "add"])
    c = {
        "n_embd": d,
        "intermediate_size": ff,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": vocab,
        "padded_vocab_size": vocab,
        "block_size": 48,
        "rope_settings": {
            "use_rope": True,
            "rope_condense_ratio": rng.choice([1, 1, 2]),
            "rope_base": rng.choice([1000, 50000]),
        },
        "norm_class_name": "RMSNorm",
        "nonlin_name": "ReLU2",
        "norm_eps": rng.choice([1e-5, 1e-6]),
        "init_strategy": "scaled-zero",
        "qk_norm": rng.random() < 0.7,
        "prelude_norm": rng.random() < 0.7,
        "logit_softcap": rng.choice([None, 15.0, 30.0]),
        "injection_type": kind,
        "n_layers_in_prelude": counts["prelude"],
        "n_layers_in_recurrent_block": counts["core_block"],
        "n_layers_in_coda": counts["coda"],
        "recurrent_embedding_dimension": d,
        "recurrent_intermediation_embedding_dimension": core_ff,
        "recurrent_num_attention_heads": rng.choice([None, heads]),
        "mean_recurrence": 8,
        "tie_embeddings": tied,
    }
    w.table("transformer.wte.weight", vocab, d)
    w.norm("transformer.ln_f.weight", d)
    w.linear("transformer.C.weight", d, d)
    if c["prelude_norm"]:
        w.norm("transformer.ln_prelude.weight", d)
    if not tied:
        w.linear("lm_head.weight", vocab, d)
    else:
        w.tie("lm_head.weight", "transformer.wte.weight", rng)
    if kind == "linear":
        w.linear("transformer.adapter.adapter.weight", d, 2 * d)
    if kind == "diagonal":
        w.made |= {f"transformer.adapter.{n}": w.noise(d) for n in ("A_log", "dt_bias")}
        w.linear("transformer.adapter.B", d, d)
    blocks = [f"transformer.{stage}.{i}" for stage, count in counts.items() for i in range(count)]
    for number, p in enumerate(blocks):
        rows = core_ff if "core_block" in p else ff
        for name in ("c_q", "c_k", "c_v", "c_proj"):
            w.linear(f"{p}.attn.{name}.weight", d, d)
        w.linear(f"{p}.mlp.fc.weight", rows, d)
        w.linear(f"{p}.mlp.proj.weight", d, rows)
        w.norm(f"{p}.norm_1.weight", d)
        w.norm(f"{p}.norm_2.weight", d)
        if rng.random() < 0.6:
            w.linear(f"{p}.attn.ve_gate.weight", heads, 20)
        if rng.random() < 0.6:
            w.table(f"value_embeds.{number}.weight", vocab, d)
    return c, ["recurrent_num_attention_heads", "logit_softcap"][c["logit_softcap"] is not None :][:1]


def nanochat(rng, w):
    """looped_nanochat: windows, padding rows, with or without the gate; its loader's own words around it."""
    heads, width, vocab = rng.choice([2, 4, 6]), rng.choice([4, 8]), rng.choice([50, 61, 64])
    kv, d = rng.choice([n for n in range(1, heads + 1) if heads % n == 0]), heads * width
    counts = {"prelude": rng.randint(0, 2), "recur": rng.randint(1, 4), "coda": rng.randint(0, 2)}
    mode = rng.choice(["inject_init_prelude", "inject_init_prelude", "inject_init_random", "passthrough"])
    c = {
        "sequence_len": rng.choice([20, 32]),
        "vocab_size": vocab,
        "size": 1,
        "n_head": heads,
        "n_kv_head": kv,
        "n_embd": d,
        "window_pattern": rng.choice(["L", "SL", "LSSL", "sll"]),
        "n_prelude": counts["prelude"],
        "n_recur_block": counts["recur"],
        "n_coda": counts["coda"],
        "train_recur_mean": 4.0,
        "train_recur_max": 16,
        "bptt_k": 4,
        "input_injection": mode,
        "logit_softcap": rng.choice([15.0, 8.0]),
    }
    for name in ("transformer.wte.weight", "lm_head.weight"):
        w.linear(name, 64, d)
    for name in ("norm_emb", "norm_recur", "norm_final"):
        w.norm(f"{name}.weight", d)
    if mode != "passthrough":
        w.linear("inject.weight", d, 2 * d)
    if rng.random() < 0.5:
        c |= {"use_exit_gate": True, "exit_beta": 0.05, "exit_min_recur": 1}
        w.linear("exit_gate.proj.weight", 1, d)
        w.made["exit_gate.proj.bias"] = w.noise(1)
    for p in (f"transformer.{stage}.{i}" for stage, count in counts.items() for i in range(count)):
        for name, rows in (("c_q", d), ("c_k", kv * width), ("c_v", kv * width), ("c_proj", d)):
            w.linear(f"{p}.attn.{name}.weight", rows, d)
        w.linear(f"{p}.mlp.c_fc.weight", 4 * d, d)
        w.linear(f"{p}.mlp.c_proj.weight", d, 4 * d)
        for n in (1, 2, 3, 4):
            w.norm(f"{p}.n{n}.weight", d)
    return ({"step": 7, "model_config": c} if rng.random() < 0.5 else c), []


DRAW = {
    "huginn": lambda rng, w: raven(rng, w, "huginn"),
    "retrofit-llama": lambda rng, w: raven(rng, w, "llama"),
    "retrofit-olmo": lambda rng, w: raven(rng, w, "olmo"),
    "ouro": ouro,
    "parcae": parcae,
    "nanochat": nanochat,
}


def draw(family, seed):
    """config.json and the fp32 tensors of a random checkpoint; some keys that have defaults are left out, some that
    mean nothing are there."""
    rng, w = random.Random(f"{family} {seed}"), Weights(seed)
    c, optional = DRAW[family](rng, w)
    if family != "nanochat":  # which refuses keys that it does not know
        for key in optional:
            if rng.random() < 0.5:
                c.pop(key, None)
        c |= HARMLESS | {rng.choice(["dtype", "torch_dtype"]): "float32"}
    return c, w.made


def write(folder, config, tensors, *, dtype=torch.float32, shards=1, prefix=""):
    """The checkpoint on disk, tensors in `dtype`, spread over `shards` files."""
    folder.mkdir(parents=True)
    made = {prefix + name: tensor.to(dtype) for name, tensor in tensors.items()}
    files = [
        f"model-{i + 1:05d}-of-{shards:05d}.safetensors" if shards > 1 else "model.safetensors" for i in range(shards)
    ]
    facts = {n: Facts(tuple(t.shape), CODES[t.dtype], files[i % shards]) for i, (n, t) in enumerate(made.items())}
    write_shards(folder, facts, made.__getitem__)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
