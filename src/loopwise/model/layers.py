"""Building blocks: RMSNorm, rotary embedding, attention, MLP and the residual block in its four norm placements."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from loopwise.config import ModelConfig
from loopwise.model.context import Context


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight, over the last axis (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        # Under autocast a bf16 x meets fp32 weights: torch has no fused kernel for the mix and would warn.
        return F.rms_norm(x.to(self.weight.dtype), (x.shape[-1],), self.weight, self.eps)


class Rotary(nn.Module):
    """Rotary position embedding (Su et al., 2021). Tables are fp32 and grow on demand."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.style, self.width = config, config.rope, config.width
        self.register_buffer("table", self._table(config.context), persistent=False)

    def _table(self, length: int) -> Float[Tensor, "two length half"]:
        dtype = torch.float64 if self.config.rope_dtype == "float64" else torch.float32
        frequency = self.config.rope_theta ** (-torch.arange(0, self.width, 2, dtype=dtype) / self.width)
        angle = torch.outer(torch.arange(length, dtype=dtype), _stretch(self.config, frequency))
        table = torch.stack([angle.cos(), angle.sin()])
        return table.bfloat16().float() if self.config.rope_dtype == "bfloat16" else table.float()

    def forward(self, positions: Int[Tensor, "*rows"]) -> Float[Tensor, "two *rows half"]:
        """cos and sin, stacked, for integer positions below the table's length."""
        return self.table[:, positions]

    def reserve(self, length: int) -> None:
        """Make the table cover positions below `length`."""
        if length > self.table.shape[1]:
            self.table = self._table(length).to(self.table.device)

    def rebuild(self, device: torch.device | str) -> None:
        """Compute the table on `device` (after the model was laid out without storage)."""
        self.table = self._table(self.table.shape[1]).to(device)

    def rotate(
        self, x: Float[Tensor, "*rows heads width"], turn: Float[Tensor, "two *rows half"]
    ) -> Float[Tensor, "*rows heads width"]:
        """Rotate channel pairs: (i, i + width/2) in style `half`, (2i, 2i + 1) in style `adjacent`."""
        cos, sin = turn[..., : self.width // 2].unsqueeze(-2).unbind(0)
        if self.style == "half":
            a, b = x.float().chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x.dtype)


def _stretch(config: ModelConfig, frequency: Float[Tensor, "half"]) -> Float[Tensor, "half"]:
    """Frequencies for longer contexts: all divided by `rope_factor` (`linear`), or only the slow ones (`llama3`,
    Llama 3.1: blended between the wavelengths original / high and original / low)."""
    if config.rope_scaling == "none":
        return frequency
    turns = config.rope_original * frequency / (2 * math.pi)  # full turns over the original context
    keep = ((turns - config.rope_low) / (config.rope_high - config.rope_low)).clamp(0, 1)
    keep = keep if config.rope_scaling == "llama3" else torch.zeros_like(keep)
    return (1 - keep) * frequency / config.rope_factor + keep * frequency


class Attention(nn.Module):
    """Causal self-attention with fused projections; keys and values are seen only through `ctx`.

    Layers in `config.value_layers` add 2 sigmoid(gate(x)) * embedding(token) to their values (value residual, as in
    nanochat and Parcae); the token of each row is the last column of `ctx.turn`."""

    def __init__(self, config: ModelConfig, layer: int, rotary: Rotary) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.width = layer, config.num_heads, config.kv_heads, config.width
        self.rotary = [rotary]  # in a list: shared, and not a submodule of every block
        self.qkv = nn.Linear(config.d_model, (self.heads + 2 * self.kv_heads) * self.width, bias=config.attention_bias)
        self.out = nn.Linear(self.heads * self.width, config.d_model, bias=False)
        self.norm_kind, self.eps = config.qk_norm, config.qk_norm_eps or config.norm_eps
        if config.qk_norm in ("head", "full"):
            shared = self.width if config.qk_norm == "head" else None
            self.q_norm = RMSNorm(shared or self.heads * self.width, self.eps)
            self.k_norm = RMSNorm(shared or self.kv_heads * self.width, self.eps)
        self.gate_width = config.value_gate if layer in config.value_layers else 0
        if self.gate_width:
            self.value = nn.Embedding(config.vocab_size, self.kv_heads * self.width)
            self.value_gate = nn.Linear(self.gate_width, self.kv_heads, bias=False)

    def forward(self, x: Float[Tensor, "*rows d"], ctx: Context) -> Float[Tensor, "*rows d"]:
        sizes = [self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.width]
        q, k, v = self.qkv(x).split(sizes, dim=-1)
        if self.norm_kind == "full":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (-1, self.width)) for t in (q, k, v))
        if self.norm_kind == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        if self.gate_width:
            gate = 2 * torch.sigmoid(self.value_gate(x[..., : self.gate_width])).unsqueeze(-1)
            v = v + gate * self.value(ctx.turn[0, ..., -1].long()).unflatten(-1, (-1, self.width))
        q, k = self.rotary[0].rotate(torch.cat([q, k], dim=-2), ctx.turn).split([self.heads, self.kv_heads], dim=-2)
        if self.norm_kind == "rotated":
            q, k = (F.rms_norm(t, (self.width,), None, self.eps) for t in (q, k))
        return self.out(ctx.attend(self.layer, q, k, v).flatten(-2))


class Mlp(nn.Module):
    """SwiGLU: down(silu(gate x) * up x) (Shazeer, 2020), or relu2: down(relu(up x)^2), half_relu2 with a half of it."""

    def __init__(self, config: ModelConfig, d_ff: int) -> None:
        super().__init__()
        self.gated, self.scale = config.mlp == "swiglu", 0.5 if config.mlp == "half_relu2" else 1.0
        self.up = nn.Linear(config.d_model, d_ff * (2 if self.gated else 1), bias=False)
        self.down = nn.Linear(d_ff, config.d_model, bias=False)

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
        if self.gated:
            gate, up = self.up(x).chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        hidden = F.relu(self.up(x)).square()
        return self.down(hidden if self.scale == 1 else self.scale * hidden)


class Block(nn.Module):
    """Attention then MLP, each as a residual sublayer with norms placed as `config.norm` says."""

    def __init__(self, config: ModelConfig, layer: int, rotary: Rotary) -> None:
        super().__init__()
        core = config.prelude_layers <= layer < config.prelude_layers + config.core_layers
        self.attention = Attention(config, layer, rotary)
        self.mlp = Mlp(config, config.core_d_ff if core and config.core_d_ff else config.d_ff)
        before, after = config.norm != "post", config.norm != "pre"
        self.on_sum = config.norm == "residual"

        def norm(wanted: bool) -> nn.Module:
            return RMSNorm(config.d_model, config.norm_eps) if wanted else nn.Identity()

        self.norm_1, self.norm_2, self.norm_3, self.norm_4 = norm(before), norm(after), norm(before), norm(after)

    def forward(self, x: Float[Tensor, "*rows d"], ctx: Context) -> Float[Tensor, "*rows d"]:
        if self.on_sum:
            x = self.norm_2(x + self.attention(self.norm_1(x), ctx))
            return self.norm_4(x + self.mlp(self.norm_3(x)))
        x = x + self.norm_2(self.attention(self.norm_1(x), ctx))
        return x + self.norm_4(self.mlp(self.norm_3(x)))
