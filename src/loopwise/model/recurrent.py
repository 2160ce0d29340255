"""`RecurrentLM`: prelude, weight-tied core, coda. One definition for training, measuring and serving."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from loopwise.config import ModelConfig
from loopwise.model.context import Context, DenseCausal
from loopwise.model.layers import Block, RMSNorm, Rotary


class Injection(nn.Module):
    """Combine state and injected prelude output at the start of a pass (see `ModelConfig.injection`).

    `ssm` (arXiv 2604.12946): exp(-dt A) s + dt B e with dt = softplus(step) and A = exp(log_rate) per channel.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.injection
        if self.kind == "concat":
            self.adapter = nn.Linear(2 * config.d_model, config.d_model, bias=False)
        elif self.kind == "diagonal":
            self.decay = nn.Parameter(torch.zeros(config.d_model))
            self.gain = nn.Parameter(torch.ones(config.d_model))
        elif self.kind == "ssm":
            self.log_rate = nn.Parameter(torch.zeros(config.d_model))
            self.step = nn.Parameter(torch.zeros(config.d_model))
            self.input = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(self, s: Float[Tensor, "*rows d"], e: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
        if self.kind == "concat":
            return self.adapter(torch.cat([s, e], dim=-1))
        if self.kind == "diagonal":
            return torch.sigmoid(self.decay) * s + self.gain * e
        if self.kind == "ssm":
            dt = F.softplus(self.step)
            return s * torch.exp(-dt * self.log_rate.exp()) + dt * self.input(e)
        return s + e if self.kind == "add" else s


class Recurrence(nn.Module):
    """The core and its loop. One module holds the whole loop, so that sharding gathers weights once per forward."""

    def __init__(self, config: ModelConfig, rotary: Rotary) -> None:
        super().__init__()
        self.injection = Injection(config)
        first = config.prelude_layers
        self.blocks = nn.ModuleList(Block(config, first + i, rotary) for i in range(config.core_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps) if config.state_norm else nn.Identity()
        self.pass_once: Callable[[Tensor, Tensor, Context], Tensor] = self._pass
        self.recompute = False

    def _pass(self, s: Tensor, e: Tensor, ctx: Context) -> Tensor:
        x = self.injection(s, e)
        for block in self.blocks:
            x = block(x, ctx)
        return self.norm(x)

    def forward(self, s: Tensor, e: Tensor, ctx: Context, depth: int, backprop_depth: int | None = None) -> Tensor:
        """Apply the core `depth` times; gradients reach the last `backprop_depth` passes (and `e` in them)."""
        for i in range(1, depth + 1):
            ctx.depth = i
            frozen = backprop_depth is not None and i <= depth - backprop_depth
            with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
                # A compiled pass has one graph per combination of requires_grad: keep to (no, no) and (yes, yes).
                if not torch.is_grad_enabled():
                    s, injected = s.detach(), e.detach()
                else:
                    s, injected = s if s.requires_grad else s.detach().requires_grad_(e.requires_grad), e
                if self.recompute and torch.is_grad_enabled():
                    s = checkpoint(self.pass_once, s, injected, ctx, use_reentrant=False)  # type: ignore[assignment]
                else:
                    s = self.pass_once(s, injected, ctx)
        ctx.depth = 0
        return s


class RecurrentLM(nn.Module):
    """Depth-recurrent language model: `prelude -> e`, `init_state -> s`, `core` (repeated), `coda -> logits`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.rotary = Rotary(config)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        start = config.prelude_layers + config.core_layers
        self.embed_norm = RMSNorm(config.d_model, config.norm_eps) if config.embed_norm else nn.Identity()
        self.prelude_blocks = nn.ModuleList(Block(config, i, self.rotary) for i in range(config.prelude_layers))
        self.prelude_norm = RMSNorm(config.d_model, config.norm_eps) if config.prelude_norm else nn.Identity()
        self.recurrence = Recurrence(config, self.rotary)
        self.coda_blocks = nn.ModuleList(Block(config, start + i, self.rotary) for i in range(config.coda_layers))
        self.coda_projection = (
            nn.Linear(config.d_model, config.d_model, bias=False) if config.coda_projection else nn.Identity()
        )
        self.final_norm = RMSNorm(config.d_model, config.norm_eps) if config.final_norm else nn.Identity()
        if config.exit_gate:
            self.exit_gate = nn.Linear(config.d_model, 1)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight

    def initialise(self, seed: int) -> "RecurrentLM":
        """Draw weights: normal with std sqrt(2 / 5d) (Takase et al., 2023); output projections of pre-norm blocks
        shrink with the effective depth prelude + mean_depth * core + coda. Returns self."""
        generator = torch.Generator().manual_seed(seed)
        c, std = self.config, math.sqrt(2 / (5 * self.config.d_model))
        effective = c.prelude_layers + c.mean_depth * c.core_layers + c.coda_layers
        shrink = 1 / math.sqrt(2 * effective) if c.norm == "pre" else 1.0
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = shrink if name.endswith(("out.weight", "down.weight")) else 1.0
                noise = torch.empty(parameter.shape).normal_(0, std * scale, generator=generator)
                parameter.data.copy_(noise)
        return self

    def prelude(self, tokens: Int[Tensor, "*rows"], ctx: Context) -> Float[Tensor, "*rows d"]:
        """Embed tokens and run the prelude blocks; also sets `ctx.turn`, which goes with the rows to every layer: their
        rotary angles and, if layers add value embeddings, one more column with the token id (exact in fp32)."""
        ctx.turn, ctx.depth = self.rotary(ctx.positions), 0
        if self.config.value_layers:
            ctx.turn = torch.cat([ctx.turn, tokens.to(ctx.turn).expand(2, *tokens.shape).unsqueeze(-1)], dim=-1)
        if self.config.windows:
            ctx.windows = self.config.windows
        x = self.embed_norm(self.embedding(tokens) * self.config.embed_scale)
        for block in self.prelude_blocks:
            x = block(x, ctx)
        return self.prelude_norm(x)

    def init_state(self, e: Float[Tensor, "*rows d"], ctx: Context) -> Float[Tensor, "*rows d"]:
        """State before the first pass. `normal` is a pure function of (state_seed, position): batch-invariant."""
        if self.config.state_init == "embed":
            return e.clone()  # callers overwrite rows of the state, never of what is injected
        if self.config.state_init == "zero":
            return torch.zeros_like(e)
        size = (int(ctx.positions.max()) + 1, self.config.d_model)
        noise = torch.empty(size).normal_(0, self.config.state_std, generator=_generator(self.config.state_seed))
        return noise.to(e)[ctx.positions]

    def core(self, s: Float[Tensor, "*rows d"], e: Float[Tensor, "*rows d"], ctx: Context) -> Float[Tensor, "*rows d"]:
        """Exactly one more unit of depth. The caller sets `ctx.depth`; `prelude` must have run on this `ctx`."""
        return self.recurrence.pass_once(s, e, ctx)

    def hidden(self, s: Float[Tensor, "*rows d"], ctx: Context) -> Float[Tensor, "*rows d"]:
        """Coda blocks and final norm: the vector that the head reads."""
        ctx.depth = 0
        s = self.coda_projection(self.final_norm(s) if self.config.coda_norm else s)
        for block in self.coda_blocks:
            s = block(s, ctx)
        return self.final_norm(s)

    def coda(self, s: Float[Tensor, "*rows d"], ctx: Context) -> Float[Tensor, "*rows vocab"]:
        """Readout: fp32 logits of a state. The head runs in the dtype of its weights."""
        return self.logits(self.hidden(s, ctx))

    def logits(self, hidden: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows vocab"]:
        """The head alone: fp32 logits of what `hidden` returned."""
        logits, cap = F.linear(hidden, self.head.weight).float(), self.config.logit_softcap
        return cap * torch.tanh(logits / cap) if cap else logits

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        depth: int,
        *,
        valid: Bool[Tensor, "batch time"] | None = None,
        state: Float[Tensor, "batch time d"] | None = None,
        backprop_depth: int | None = None,
    ) -> Float[Tensor, "batch time vocab"]:
        """Logits at uniform depth. `valid` masks padding, `state` replaces `init_state`, `backprop_depth` truncates
        backpropagation to the last passes (the state is detached, `e` stays in the graph)."""
        ctx = DenseCausal.over(tokens, valid)
        e = self.prelude(tokens, ctx)
        s = self.init_state(e, ctx) if state is None else state
        return self.coda(self.recurrence(s, e, ctx, depth, backprop_depth), ctx)

    def compile_core(self, **options: object) -> None:
        """Compile one pass of the core. The loop stays in Python: compiling it would recompile for every depth."""
        self.recurrence.pass_once = torch.compile(self.recurrence._pass, **options)  # type: ignore[arg-type]

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Passes inside are not compiled: for decoding, whose shapes change from call to call."""
        compiled, self.recurrence.pass_once = self.recurrence.pass_once, self.recurrence._pass
        try:
            yield
        finally:
            self.recurrence.pass_once = compiled


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
