# pyright: basic, reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportCallIssue=false, reportArgumentType=false
"""An exported Loopwise model for transformers. This file travels with the weights; it needs torch and transformers.

A prelude runs once, a core runs `num_steps` times on a state, a coda reads the state. Attention is one parameter-free
module per layer of every pass (`model.slots.{i}`), so that key/value caches, and servers that own them, see each pass
as a layer of its own.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_loopwise import LoopwiseConfig

# transformers 5 renamed the cache on its way from 5.0: speak whichever name this version does.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class Options:
    """The model's settings as attributes."""

    def __init__(self, values):
        self.__dict__.update(values)
        self.num_kv_heads = self.num_kv_heads or self.num_heads
        self.head_dim = self.head_dim or self.d_model // self.num_heads


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def norm_if(wanted, width, eps):
    return RMSNorm(width, eps) if wanted else nn.Identity()


def rotary(o, positions):
    """cos and sin `[batch, 1, time, half]` of integer positions, fp32."""
    dtype = torch.float64 if o.rope_dtype == "float64" else torch.float32
    steps = torch.arange(0, o.head_dim, 2, dtype=dtype, device=positions.device)
    frequency = o.rope_theta ** (-steps / o.head_dim)
    if o.rope_scaling != "none":
        turns = o.rope_original * frequency / (2 * math.pi)
        keep = ((turns - o.rope_low) / (o.rope_high - o.rope_low)).clamp(0, 1)
        keep = keep if o.rope_scaling == "llama3" else torch.zeros_like(keep)
        frequency = (1 - keep) * frequency / o.rope_factor + keep * frequency
    angle = positions.to(dtype)[:, None, :, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    if o.rope_dtype == "bfloat16":
        cos, sin = cos.bfloat16(), sin.bfloat16()
    return cos.float(), sin.float()


def rotate(x, turn, style):
    cos, sin = turn
    if style == "half":
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x.dtype)


def eager_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Plain attention over `[batch, heads, time, width]`; a boolean mask marks what may be seen."""
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is None and query.shape[2] > 1:
        attention_mask = torch.ones_like(scores[:1, :1], dtype=torch.bool).tril()
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


class Slot(nn.Module):
    """Attention of one layer in one pass: no parameters, but a place in the cache."""

    def __init__(self, config, index):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, index, True
        self.head_dim, self.scaling = config.head_dim, config.head_dim**-0.5
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads

    def forward(self, q, k, v, mask, cache, **kwargs):
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        name = self.config._attn_implementation
        attend = eager_attention if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
        return attend(self, q, k, v, mask, dropout=0.0, scaling=self.scaling, **kwargs)[0].flatten(2)


class Attention(nn.Module):
    def __init__(self, o, layer):
        super().__init__()
        self.o, self.eps = o, o.qk_norm_eps or o.norm_eps
        q, kv = o.num_heads * o.head_dim, o.num_kv_heads * o.head_dim
        self.sizes = [q, kv, kv]
        self.qkv = nn.Linear(o.d_model, q + 2 * kv, bias=o.attention_bias)
        self.out = nn.Linear(q, o.d_model, bias=False)
        if o.qk_norm in ("head", "full"):
            full = o.qk_norm == "full"
            self.q_norm = RMSNorm(q if full else o.head_dim, self.eps)
            self.k_norm = RMSNorm(kv if full else o.head_dim, self.eps)
        self.gated = layer in o.value_layers
        if self.gated:
            self.value = nn.Embedding(o.vocab_size, kv)
            self.value_gate = nn.Linear(o.value_gate, o.num_kv_heads, bias=False)

    def forward(self, x, slot, ctx):
        o = self.o
        q, k, v = self.qkv(x).split(self.sizes, dim=-1)
        if o.qk_norm == "full":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (-1, o.head_dim)) for t in (q, k, v))
        if o.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        if self.gated:
            gate = 2 * torch.sigmoid(self.value_gate(x[..., : o.value_gate])).unsqueeze(-1)
            v = v + gate * self.value(ctx["tokens"]).unflatten(-1, (-1, o.head_dim))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = rotate(q, ctx["turn"], o.rope), rotate(k, ctx["turn"], o.rope)
        if o.qk_norm == "rotated":
            q, k = (F.rms_norm(t, (o.head_dim,), None, self.eps) for t in (q, k))
        return self.out(slot(q, k, v, ctx["mask"], ctx["cache"], **ctx["kwargs"]))


class Mlp(nn.Module):
    def __init__(self, o, d_ff):
        super().__init__()
        self.kind = o.mlp
        self.up = nn.Linear(o.d_model, d_ff * (2 if o.mlp == "swiglu" else 1), bias=False)
        self.down = nn.Linear(d_ff, o.d_model, bias=False)

    def forward(self, x):
        if self.kind == "swiglu":
            gate, up = self.up(x).chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        return self.down(F.relu(self.up(x)).square() * (0.5 if self.kind == "half_relu2" else 1.0))


class Block(nn.Module):
    def __init__(self, o, layer):
        super().__init__()
        core = o.prelude_layers <= layer < o.prelude_layers + o.core_layers
        self.attention = Attention(o, layer)
        self.mlp = Mlp(o, o.core_d_ff if core and o.core_d_ff else o.d_ff)
        before, after, self.on_sum = o.norm != "post", o.norm != "pre", o.norm == "residual"
        self.norm_1, self.norm_3 = (norm_if(before, o.d_model, o.norm_eps) for _ in range(2))
        self.norm_2, self.norm_4 = (norm_if(after, o.d_model, o.norm_eps) for _ in range(2))

    def forward(self, x, slot, ctx):
        if self.on_sum:
            x = self.norm_2(x + self.attention(self.norm_1(x), slot, ctx))
            return self.norm_4(x + self.mlp(self.norm_3(x)))
        x = x + self.norm_2(self.attention(self.norm_1(x), slot, ctx))
        return x + self.norm_4(self.mlp(self.norm_3(x)))


class Injection(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.kind = o.injection
        if self.kind == "concat":
            self.adapter = nn.Linear(2 * o.d_model, o.d_model, bias=False)
        elif self.kind == "diagonal":
            self.decay, self.gain = nn.Parameter(torch.zeros(o.d_model)), nn.Parameter(torch.ones(o.d_model))
        elif self.kind == "ssm":
            self.log_rate, self.step = nn.Parameter(torch.zeros(o.d_model)), nn.Parameter(torch.zeros(o.d_model))
            self.input = nn.Linear(o.d_model, o.d_model, bias=False)

    def forward(self, s, e):
        if self.kind == "concat":
            return self.adapter(torch.cat([s, e], dim=-1))
        if self.kind == "diagonal":
            return torch.sigmoid(self.decay) * s + self.gain * e
        if self.kind == "ssm":
            dt = F.softplus(self.step)
            return s * torch.exp(-dt * self.log_rate.exp()) + dt * self.input(e)
        return s + e if self.kind == "add" else s


class Recurrence(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.injection = Injection(o)
        self.blocks = nn.ModuleList(Block(o, o.prelude_layers + i) for i in range(o.core_layers))
        self.norm = norm_if(o.state_norm, o.d_model, o.norm_eps)

    def forward(self, s, e, slots, ctx):
        x = self.injection(s, e)
        for block, slot in zip(self.blocks, slots, strict=True):
            x = block(x, slot, ctx)
        return self.norm(x)


class LoopwisePreTrainedModel(PreTrainedModel):
    config_class = LoopwiseConfig
    base_model_prefix = "model"
    _no_split_modules = ["Block"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_attention_backend = True
    _supports_cache_class = True

    def _init_weights(self, module):
        super()._init_weights(module)


class LoopwiseModel(LoopwisePreTrainedModel):
    """Everything but the head."""

    def __init__(self, config):
        super().__init__(config)
        o = self.o = Options(config.loopwise)
        start = o.prelude_layers + o.core_layers
        self.embedding = nn.Embedding(o.vocab_size, o.d_model)
        self.embed_norm = norm_if(o.embed_norm, o.d_model, o.norm_eps)
        self.prelude_blocks = nn.ModuleList(Block(o, i) for i in range(o.prelude_layers))
        self.prelude_norm = norm_if(o.prelude_norm, o.d_model, o.norm_eps)
        self.recurrence = Recurrence(o)
        self.coda_blocks = nn.ModuleList(Block(o, start + i) for i in range(o.coda_layers))
        self.coda_projection = nn.Linear(o.d_model, o.d_model, bias=False) if o.coda_projection else nn.Identity()
        self.final_norm = norm_if(o.final_norm, o.d_model, o.norm_eps)
        if o.exit_gate:
            self.exit_gate = nn.Linear(o.d_model, 1)
        self.slots = nn.ModuleList(Slot(config, i) for i in range(config.num_hidden_layers))
        self.post_init()

    def get_input_embeddings(self):
        return self.embedding

    def set_input_embeddings(self, value):
        self.embedding = value

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        use_cache=None,
        num_steps=None,
        return_dict=None,
        cache=None,
        **kwargs,
    ):
        o, depth = self.o, num_steps or self.config.num_steps
        x = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        needed = o.prelude_layers + o.core_layers * depth + o.coda_layers
        while len(self.slots) < needed:
            self.slots.append(Slot(self.config, len(self.slots)))
        cache = self._cache(past_key_values if cache is None else cache, use_cache, needed)
        past = cache.get_seq_length() if cache is not None else 0
        if position_ids is None:
            position_ids = self._positions(attention_mask, past, x)
        kwargs.pop("cache_position", None)
        ctx = {
            "turn": rotary(o, position_ids),
            "tokens": input_ids,
            "cache": cache,
            "kwargs": kwargs,
            "mask": self._mask(attention_mask, past, x),
        }
        slots = iter(self.slots[:needed])
        x = self.embed_norm(x * o.embed_scale)
        for block in self.prelude_blocks:
            x = block(x, next(slots), ctx)
        e = self.prelude_norm(x)
        s = self._initial(e, position_ids)
        for _ in range(depth):
            s = self.recurrence(s, e, [next(slots) for _ in self.recurrence.blocks], ctx)
        x = self.coda_projection(self.final_norm(s) if o.coda_norm else s)
        for block in self.coda_blocks:
            x = block(x, next(slots), ctx)
        x = self.final_norm(x)
        if return_dict is False:
            return (x, cache)
        return BaseModelOutputWithPast(last_hidden_state=x, **{CACHE: cache})

    def _cache(self, cache, use_cache, needed):
        """The cache to use; one made for fewer passes is widened while it is empty."""
        if cache is None:
            return DynamicCache() if use_cache else None
        layers = getattr(cache, "layers", None)
        if layers and len(layers) < needed and cache.get_seq_length() == 0:
            layers.extend(type(layers[-1])() for _ in range(needed - len(layers)))
        return cache

    def _positions(self, attention_mask, past, x):
        """Positions count real tokens only, so that padding changes nothing."""
        if attention_mask is None:
            return torch.arange(past, past + x.shape[1], device=x.device).expand(x.shape[:2])
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -x.shape[1] :]

    def _mask(self, attention_mask, past, x):
        """Boolean `[batch, 1, query, key]`, or None where plain causal attention is meant."""
        if attention_mask is not None and attention_mask.ndim != 2:
            return attention_mask
        padded = attention_mask is not None and not bool(attention_mask.all())
        if not padded and (past == 0 or x.shape[1] == 1):
            return None
        keys = past + x.shape[1]
        here, there = torch.arange(past, keys, device=x.device)[:, None], torch.arange(keys, device=x.device)
        mask = (there <= here)[None]
        if padded:
            mask = mask & attention_mask[:, None, :].bool() | (there == here)  # padding sees itself: no empty rows
        return mask[:, None]

    def _initial(self, e, positions):
        if self.o.state_init == "embed":
            return e
        if self.o.state_init == "zero":
            return torch.zeros_like(e)
        size, generator = (int(positions.max()) + 1, self.o.d_model), torch.Generator().manual_seed(self.o.state_seed)
        return torch.empty(size).normal_(0, self.o.state_std, generator=generator).to(e)[positions]


class LoopwiseForCausalLM(LoopwisePreTrainedModel, GenerationMixin):
    """With the head. `num_steps` (in `forward` and `generate`) sets the depth; default `config.num_steps`."""

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        self.model = LoopwiseModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embedding

    def set_input_embeddings(self, value):
        self.model.embedding = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        num_steps=None,
        logits_to_keep=0,
        cache=None,
        **kwargs,
    ):
        kwargs.pop("return_dict", None)
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            num_steps=num_steps,
            cache=past_key_values if cache is None else cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits, cap = self.lm_head(out.last_hidden_state[:, keep]).float(), self.config.loopwise["logit_softcap"]
        logits = cap * torch.tanh(logits / cap) if cap else logits
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: out[CACHE] if CACHE in out else None})


LoopwiseConfig.register_for_auto_class()
LoopwiseModel.register_for_auto_class("AutoModel")
LoopwiseForCausalLM.register_for_auto_class("AutoModelForCausalLM")
