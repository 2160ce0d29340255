"""What each foreign project computes, written down once more from its description, in fp64 and without a line of ours.

Every function takes the tensors of a checkpoint under their official names, its config.json, token ids `[batch, time]`
and a number of loops, and returns logits. Slow and plain on purpose: the importers are compared with it.
"""

import math

import torch
import torch.nn.functional as F


def rms(x, eps, weight=None):
    """Root-mean-square norm."""
    x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return x if weight is None else x * weight


def angles(length, width, theta, scaling=None):
    """`[length, width / 2]` rotary angles. `scaling` is a rope_scaling of transformers, type `linear` or `llama3`."""
    turning = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        turning = turning / scaling["factor"]
    if kind == "llama3":
        old, low, high = (
            scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        found = []
        for t in turning.tolist():
            wave = 2 * math.pi / t
            smooth = (old / wave - low) / (high - low)
            mixed = (1 - smooth) * t / scaling["factor"] + smooth * t
            found.append(t if wave < old / high else t / scaling["factor"] if wave > old / low else mixed)
        turning = torch.tensor(found, dtype=torch.float64)
    return torch.outer(torch.arange(length, dtype=torch.float64), turning)


def turn(x, angle, pairs):
    """Rotate `[batch, time, heads, width]` by `angle`: channels i and i + width/2 (`half`), 2i and 2i + 1
    (`adjacent`); `back` is `half` the other way, with a table rounded to bf16."""
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    if pairs == "adjacent":
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    if pairs == "back":
        cos, sin = (t.float().bfloat16().double() for t in (cos, -sin))
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def attend(q, k, v, window=None):
    """Causal attention over `[batch, time, heads, width]`; a query sees the `window` newest positions."""
    group, time = q.shape[2] // k.shape[2], q.shape[1]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
    behind = torch.arange(time)[:, None] - torch.arange(time)
    hidden = (behind < 0) | (behind >= (window or time))
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v).flatten(-2)


def heads(x, width):
    """`[batch, time, heads, width]`."""
    return x.unflatten(-1, (-1, width))


def matrices(w, embedding):
    """Embedding and head, which may be one matrix under one name."""
    first = w.get(embedding, w.get("lm_head.weight"))
    return first, w.get("lm_head.weight", first)


def raven(w, c, tokens, loops):
    """Huginn (four norms on the residual sum) and the retrofitted models (two norms, before or after a sublayer)."""
    table, head = matrices(w, "transformer.wte.weight")
    d, width = c["n_embd"], c["n_embd"] // c["n_heads"]
    four = "transformer.core_block.0.norm_3.weight" in w
    after = "transformer.core_block.0.attn.q_norm.weight" in w
    theta = c["rope_base"] if four else c.get("rope_theta", (c.get("rope_parameters") or {}).get("rope_theta"))
    scaling = None if four else c.get("rope_scaling") or c.get("rope_parameters")
    angle, eps = angles(tokens.shape[1], width, theta, scaling), c["norm_eps"]

    def attention(x, p):
        kv = c.get("num_key_value_heads", c["n_heads"]) * width
        q, k, v = (x @ w[f"{p}.attn.Wqkv.weight"].T).split([d, kv, kv], dim=-1)
        if after:
            q, k = rms(q, eps, w[f"{p}.attn.q_norm.weight"]), rms(k, eps, w[f"{p}.attn.k_norm.weight"])
        q, k, v = (heads(t, width) for t in (q, k, v))
        if f"{p}.attn.qk_bias" in w:
            q, k = q + w[f"{p}.attn.qk_bias"][0, 0], k + w[f"{p}.attn.qk_bias"][1, 0]
        q, k = (turn(t, angle, "adjacent" if four else "half") for t in (q, k))
        return attend(q, k, v) @ w[f"{p}.attn.proj.weight"].T

    def mlp(x, p):
        gate, up = (x @ w[f"{p}.mlp.fc.weight"].T).chunk(2, dim=-1)
        return (F.silu(gate) * up) @ w[f"{p}.mlp.proj.weight"].T

    def block(x, p):
        def norm(n, y):
            return rms(y, eps, w[f"{p}.norm_{n}.weight"])

        if four:
            x = norm(2, attention(norm(1, x), p) + x)
            return norm(4, mlp(norm(3, x), p) + x)
        if after:
            x = x + norm(1, attention(x, p))
            return x + norm(2, mlp(x, p))
        x = x + attention(norm(1, x), p)
        return x + mlp(norm(2, x), p)

    def stage(x, name, count):
        for i in range(c[count]):
            x = block(x, f"transformer.{name}.{i}")
        return x

    e = table[tokens] * c.get("init_values", {"embed_scale": math.sqrt(d)})["embed_scale"]
    e = stage(e, "prelude", "n_layers_in_prelude")
    s = torch.zeros_like(e)
    for _ in range(loops):
        s = torch.cat([s, e], dim=-1) @ w["transformer.adapter.weight"].T
        s = stage(s, "core_block", "n_layers_in_recurrent_block")
    last = w["transformer.ln_f.weight"]
    s = stage(rms(s, eps, last) if four else s, "coda", "n_layers_in_coda")
    return rms(s, eps, last) @ head.T


def ouro(w, c, tokens, loops):
    """Ouro: the stack loops; norms around each sublayer; the last norm ends every loop and is carried."""
    width = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    angle = angles(tokens.shape[1], width, rope.get("rope_theta", c.get("rope_theta", 10_000.0)), rope)
    eps, first = c["rms_norm_eps"], c.get("max_window_layers", 28)
    table, head = matrices(w, "model.embed_tokens.weight")
    s = table[tokens]
    for _ in range(loops):
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}"
            x = rms(s, eps, w[f"{p}.input_layernorm.weight"])
            q, k, v = (heads(x @ w[f"{p}.self_attn.{n}_proj.weight"].T, width) for n in "qkv")
            window = c["sliding_window"] if c.get("use_sliding_window") and i >= first else None
            x = attend(turn(q, angle, "half"), turn(k, angle, "half"), v, window) @ w[f"{p}.self_attn.o_proj.weight"].T
            s = s + rms(x, eps, w[f"{p}.input_layernorm_2.weight"])
            x = rms(s, eps, w[f"{p}.post_attention_layernorm.weight"])
            x = F.silu(x @ w[f"{p}.mlp.gate_proj.weight"].T) * (x @ w[f"{p}.mlp.up_proj.weight"].T)
            s = s + rms(x @ w[f"{p}.mlp.down_proj.weight"].T, eps, w[f"{p}.post_attention_layernorm_2.weight"])
        s = rms(s, eps, w["model.norm.weight"])
    return s @ head.T


def parcae(w, c, tokens, loops):
    """Parcae: pre-norm blocks with gated value embeddings, a matrix before the coda."""
    width, rope, eps = c["n_embd"] // c["num_attention_heads"], c["rope_settings"], c["norm_eps"]
    angle = angles(tokens.shape[1], width, rope["rope_base"]) / rope["rope_condense_ratio"]

    def block(x, p, number):
        y = rms(x, eps, w[f"{p}.norm_1.weight"])
        q, k, v = (heads(y @ w[f"{p}.attn.c_{n}.weight"].T, width) for n in "qkv")
        gate, table = w.get(f"{p}.attn.ve_gate.weight"), w.get(f"value_embeds.{number}.weight")
        if gate is not None and table is not None:
            v = v + 2 * torch.sigmoid(y[..., : gate.shape[1]] @ gate.T)[..., None] * heads(table[tokens], width)
        q, k = turn(q, angle, "adjacent"), turn(k, angle, "adjacent")
        if c.get("qk_norm"):
            q, k = rms(q, 2.0**-23), rms(k, 2.0**-23)
        x = x + attend(q, k, v) @ w[f"{p}.attn.c_proj.weight"].T
        y = rms(x, eps, w[f"{p}.norm_2.weight"]) @ w[f"{p}.mlp.fc.weight"].T
        return x + (0.5 * F.relu(y) ** 2) @ w[f"{p}.mlp.proj.weight"].T

    def inject(s):
        a = "transformer.adapter"
        if c["injection_type"] == "add":
            return s + e
        if c["injection_type"] == "linear":
            return torch.cat([s, e], dim=-1) @ w[f"{a}.adapter.weight"].T
        dt = F.softplus(w[f"{a}.dt_bias"])
        return s * torch.exp(-dt * w[f"{a}.A_log"].exp()) + dt * (e @ w[f"{a}.B"].T)

    p, r, k = (c[f"n_layers_in_{stage}"] for stage in ("prelude", "recurrent_block", "coda"))
    table, head = matrices(w, "transformer.wte.weight")
    e = table[tokens]
    for i in range(p):
        e = block(e, f"transformer.prelude.{i}", i)
    e = rms(e, eps, w["transformer.ln_prelude.weight"]) if c.get("prelude_norm") else e
    s = torch.zeros_like(e)
    for _ in range(loops):
        s = inject(s)
        for i in range(r):
            s = block(s, f"transformer.core_block.{i}", p + i)
    s = s @ w["transformer.C.weight"].T
    for i in range(k):
        s = block(s, f"transformer.coda.{i}", p + r + i)
    logits = rms(s, eps, w["transformer.ln_f.weight"]) @ head.T
    cap = c.get("logit_softcap")
    return cap * torch.tanh(logits / cap) if cap else logits


def nanochat(w, c, tokens, loops):
    """looped_nanochat: norms on the residual sum, a norm after each loop; window N shows N + 1 positions."""
    c = c.get("model_config", c)
    width, length = c["n_embd"] // c["n_head"], c["sequence_len"]
    angle = angles(tokens.shape[1], width, 10_000.0)
    counts = {"prelude": c["n_prelude"], "recur": c["n_recur_block"], "coda": c["n_coda"]}
    pattern = c.get("window_pattern", "L").upper()
    near = [length // 2 if pattern[i % len(pattern)] == "S" else length for i in range(sum(counts.values()))]
    near[-1] = length

    def stage(x, name):
        before = {"prelude": 0, "recur": counts["prelude"], "coda": counts["prelude"] + counts["recur"]}[name]
        for i in range(counts[name]):
            p = f"transformer.{name}.{i}"
            y = rms(x, 1e-6, w[f"{p}.n1.weight"])
            q, k, v = (heads(y @ w[f"{p}.attn.c_{n}.weight"].T, width) for n in "qkv")
            q, k = (rms(turn(t, angle, "back"), 1e-6) for t in (q, k))
            y = attend(q, k, v, near[before + i] + 1) @ w[f"{p}.attn.c_proj.weight"].T
            x = rms(x + y, 1e-6, w[f"{p}.n2.weight"])
            y = F.relu(rms(x, 1e-6, w[f"{p}.n3.weight"]) @ w[f"{p}.mlp.c_fc.weight"].T) ** 2
            x = rms(x + y @ w[f"{p}.mlp.c_proj.weight"].T, 1e-6, w[f"{p}.n4.weight"])
        return x

    e = stage(rms(w["transformer.wte.weight"][tokens], 1e-6, w["norm_emb.weight"]), "prelude")
    s = torch.zeros_like(e) if c.get("input_injection") == "inject_init_random" else e
    for _ in range(loops):
        if "inject.weight" in w:
            s = torch.cat([e, s], dim=-1) @ w["inject.weight"].T
        s = rms(stage(s, "recur"), 1e-6, w["norm_recur.weight"])
    logits = rms(stage(s, "coda"), 1e-6, w["norm_final.weight"]) @ w["lm_head.weight"].T
    cap = c.get("logit_softcap", 15.0)
    return cap * torch.tanh(logits[..., : c["vocab_size"]] / cap)
