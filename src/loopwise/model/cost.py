"""Cost accounting: parameters by stage, FLOPs per token by depth, KV bytes per token, and the speed-up bound.

One multiply-add counts as two FLOPs; only matrix products and attention count (as torch's FLOP counter does).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from loopwise.config import ModelConfig
from loopwise.model.kv_layout import LAYOUTS


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Costs of one configuration.

    `fixed` (F0): FLOPs per token outside the core: prelude, coda and head, once. `per_pass` (Fr): FLOPs per token of
    one core pass. `readout`: coda and head once. All three without attention over context; `*_per_key` add the
    attention cost of each key attended to.
    """

    params: Mapping[str, int]
    fixed: int
    per_pass: int
    readout: int
    fixed_per_key: int
    per_pass_per_key: int
    readout_per_key: int
    kv_values_per_layer: int
    config: ModelConfig

    @classmethod
    def of(cls, c: ModelConfig) -> "Cost":
        """Count from the shape alone; `tests` check it against the model and torch's counter."""
        q, kv = c.num_heads * c.width, c.kv_heads * c.width
        attention = c.d_model * (q + 2 * kv) + q * c.d_model
        narrow, wide = (c.d_model * d_ff * (3 if c.mlp == "swiglu" else 2) for d_ff in (c.d_ff, c.core_d_ff or c.d_ff))
        adapter = {"concat": 2, "ssm": 1}.get(c.injection, 0) * c.d_model**2
        leave = c.d_model**2 if c.coda_projection else 0
        block, head, per_key = 2 * (attention + narrow), 2 * c.d_model * c.vocab_size, 4 * q
        gates = [2 * c.value_gate * c.kv_heads * n for n in _value_layers(c)]
        readout = c.coda_layers * block + 2 * leave + gates[2] + head
        return cls(
            params=_params(c, attention, (narrow, wide, narrow), adapter, leave),
            fixed=c.prelude_layers * block + gates[0] + readout,
            per_pass=c.core_layers * 2 * (attention + wide) + gates[1] + 2 * adapter,
            readout=readout,
            fixed_per_key=(c.prelude_layers + c.coda_layers) * per_key,
            per_pass_per_key=c.core_layers * per_key,
            readout_per_key=c.coda_layers * per_key,
            kv_values_per_layer=2 * kv,
            config=c,
        )

    def flops(self, depth: float, *, keys: float = 0, readouts: float = 1, check_flops: float = 0) -> float:
        """FLOPs per token: `depth` core passes over `keys` attended positions, `readouts` coda-and-head evaluations
        (the first is the token's own output), and `check_flops` of probes or state comparisons in total."""
        once = self.fixed + self.fixed_per_key * keys
        passes = depth * (self.per_pass + self.per_pass_per_key * keys)
        extra = (readouts - 1) * (self.readout + self.readout_per_key * keys)
        return once + passes + extra + check_flops

    def bound(self, mean_depth: float, max_depth: float, *, keys: float = 0) -> float:
        """Speed-up of leaving at `mean_depth` on average against always `max_depth`, checks free:
        (F0 + max_depth Fr) / (F0 + mean_depth Fr)."""
        return self.flops(max_depth, keys=keys) / self.flops(mean_depth, keys=keys)

    def kv_bytes(self, layout: str, *, max_depth: int, mean_depth: float | None = None, item_bytes: int = 4) -> int:
        """KV bytes that one position keeps once it left. `last_exited` keeps only the planes that were run, so it
        follows `mean_depth` (default: max_depth)."""
        c = self.config
        depth = max_depth if mean_depth is None else mean_depth
        planes = LAYOUTS[layout].kept(depth, max_depth)
        layers = c.prelude_layers + c.coda_layers + c.core_layers * planes
        return round(layers * self.kv_values_per_layer * item_bytes)


def _value_layers(c: ModelConfig) -> tuple[int, int, int]:
    """How many layers of prelude, core and coda add value embeddings."""
    ends = (0, c.prelude_layers, c.prelude_layers + c.core_layers, c.num_layers)
    first, second, third = (sum(a <= i < b for i in c.value_layers) for a, b in pairwise(ends))
    return first, second, third


def _params(c: ModelConfig, attention: int, mlp: tuple[int, int, int], adapter: int, leave: int) -> dict[str, int]:
    d, kv = c.d_model, c.kv_heads * c.width
    norms = {"pre": 2, "post": 2, "sandwich": 4, "residual": 4}[c.norm] * d
    bias = c.num_heads * c.width + 2 * kv if c.attention_bias else 0
    qk = {"head": 2 * c.width, "full": c.num_heads * c.width + kv}.get(c.qk_norm, 0)
    block = attention + norms + bias + qk
    prelude, core, coda = (n * (c.vocab_size * kv + c.value_gate * c.kv_heads) for n in _value_layers(c))
    injection = adapter + {"diagonal": 2, "ssm": 2}.get(c.injection, 0) * d
    parts = {
        "embedding": (c.vocab_size + c.embed_norm) * d,
        "prelude": c.prelude_layers * (block + mlp[0]) + prelude + c.prelude_norm * d,
        "core": c.core_layers * (block + mlp[1]) + core + injection + c.state_norm * d + c.exit_gate * (d + 1),
        "coda": c.coda_layers * (block + mlp[2]) + coda + leave + c.final_norm * d,
        "head": 0 if c.tied else c.vocab_size * d,
    }
    return {**parts, "total": sum(parts.values())}
