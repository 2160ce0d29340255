"""Cost accounting: parameters by stage, FLOPs per token by depth, KV bytes per token, and the speed-up bound.

One multiply-add counts as two FLOPs; only matrix products and attention count (as torch's FLOP counter does).
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
        mlp = c.d_model * c.d_ff * (3 if c.mlp == "swiglu" else 2)
        adapter = 2 * c.d_model**2 if c.injection == "concat" else 0
        block, head, per_key = 2 * (attention + mlp), 2 * c.d_model * c.vocab_size, 4 * q
        readout = c.coda_layers * block + head
        return cls(
            params=_params(c, attention, mlp, adapter),
            fixed=c.prelude_layers * block + readout,
            per_pass=c.core_layers * block + 2 * adapter,
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


def _params(c: ModelConfig, attention: int, mlp: int, adapter: int) -> dict[str, int]:
    norms = {"pre": 2, "post": 2, "sandwich": 4, "residual": 4}[c.norm] * c.d_model
    bias = (c.num_heads + 2 * c.kv_heads) * c.width if c.attention_bias else 0
    heads = 1 if c.qk_norm == "head" else 0
    qk = {"none": 0, "head": 2 * c.width * heads, "full": (c.num_heads + c.kv_heads) * c.width}[c.qk_norm]
    block = attention + mlp + norms + bias + qk
    injection = adapter if c.injection == "concat" else (2 * c.d_model if c.injection == "diagonal" else 0)
    parts = {
        "embedding": c.vocab_size * c.d_model,
        "prelude": c.prelude_layers * block + (c.d_model if c.prelude_norm else 0),
        "core": c.core_layers * block + injection + (c.d_model if c.state_norm else 0),
        "coda": c.coda_layers * block + c.d_model,
        "head": 0 if c.tied else c.vocab_size * c.d_model,
    }
    return {**parts, "total": sum(parts.values())}
