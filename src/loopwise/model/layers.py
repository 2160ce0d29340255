"""Building blocks: RMSNorm, rotary embedding, attention, MLP and the residual block in its four norm placements."""

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
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Rotary(nn.Module):
    """Rotary position embedding (Su et al., 2021). Tables are fp32 and grow on demand."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.theta, self.style = config.rope_theta, config.rope
        self.width = config.width
        self.register_buffer("table", self._table(config.context), persistent=False)

    def _table(self, length: int) -> Float[Tensor, "two length half"]:
        frequency = self.theta ** (-torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
        return torch.stack([angle.cos(), angle.sin()]).float()

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
        cos, sin = turn[0].unsqueeze(-2), turn[1].unsqueeze(-2)
        if self.style == "half":
            a, b = x.float().chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with fused projections; keys and values are seen only through `ctx`."""

    def __init__(self, config: ModelConfig, layer: int, rotary: Rotary) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.width = layer, config.num_heads, config.kv_heads, config.width
        self.rotary = [rotary]  # in a list: shared, and not a submodule of every block
        self.qkv = nn.Linear(config.d_model, (self.heads + 2 * self.kv_heads) * self.width, bias=config.attention_bias)
        self.out = nn.Linear(self.heads * self.width, config.d_model, bias=False)
        self.per_head = config.qk_norm == "head"
        if config.qk_norm != "none":
            shared = self.width if self.per_head else None
            self.q_norm = RMSNorm(shared or self.heads * self.width, config.norm_eps)
            self.k_norm = RMSNorm(shared or self.kv_heads * self.width, config.norm_eps)
        self.normed = config.qk_norm != "none"

    def forward(self, x: Float[Tensor, "*rows d"], ctx: Context) -> Float[Tensor, "*rows d"]:
        sizes = [self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.width]
        q, k, v = self.qkv(x).split(sizes, dim=-1)
        if self.normed and not self.per_head:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (-1, self.width)) for t in (q, k, v))
        if self.normed and self.per_head:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rotary[0].rotate(q, ctx.turn), self.rotary[0].rotate(k, ctx.turn)
        return self.out(ctx.attend(self.layer, q, k, v).flatten(-2))


class Mlp(nn.Module):
    """SwiGLU: down(silu(gate x) * up x) (Shazeer, 2020), or relu2: down(relu(up x)^2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.mlp == "swiglu"
        self.up = nn.Linear(config.d_model, config.d_ff * (2 if self.gated else 1), bias=False)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=False)

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
        if self.gated:
            gate, up = self.up(x).chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        return self.down(F.relu(self.up(x)).square())


class Block(nn.Module):
    """Attention then MLP, each as a residual sublayer with norms placed as `config.norm` says."""

    def __init__(self, config: ModelConfig, layer: int, rotary: Rotary) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(config, layer, rotary), Mlp(config)
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
