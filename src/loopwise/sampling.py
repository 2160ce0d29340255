"""Sampling: from logits to token ids, vectorised over rows. Random numbers are counter-based.

The uniform of a token is a pure function of (seed, position), so a result depends neither on batch mates nor on how
often a request was paused. The reference decoder and the engine call the same `sample`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopwise.config import InputError

_MASK = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request samples and when it ends. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off.

    `seed` None draws one at submission. `stop` strings end the text before their first occurrence; `stop_ids` and
    (unless `ignore_eos`) the end-of-text token end it too. `logprobs` asks for that many alternatives per token.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    max_tokens: int = 64
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and low <= value <= high):
                raise InputError(f"sampling field '{name}' is {value!r}: use a number from {low:g} to {high:g}")
        if any(not text for text in self.stop):
            raise InputError("sampling field 'stop' holds an empty string: remove it")

    @property
    def plain(self) -> bool:
        """Greedy without any change to the logits: the fast path."""
        return self.temperature == 0 and not self.penalised and not self.logit_bias

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change the logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


_BIG = float(2**31)
_RANGES = (
    ("temperature", 0, 100),
    ("top_k", 0, _BIG),
    ("top_p", 1e-9, 1),
    ("min_p", 0, 1),
    ("repetition_penalty", 1e-3, 1e3),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("max_tokens", 1, _BIG),
    ("min_tokens", 0, _BIG),
    ("n", 1, 128),
)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1): splitmix64 (Steele et al., 2014) of the pair, 53 bits. Pure, so resumable anywhere."""
    x = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    for _ in range(2):
        x = (x + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return (x >> 11) / (1 << 53)


def upload(
    values: Sequence[int] | Sequence[float] | Sequence[bool], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Numbers as a tensor on `device`; on CUDA through pinned memory, because a pageable copy waits for the device."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def penalise(
    logits: Float[Tensor, "vocab"], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> Float[Tensor, "vocab"]:
    """Bias and penalties of one row: repetition (Keskar et al., 2019) over prompt and output, presence and frequency
    (OpenAI) over output only. Token ids outside the vocabulary raise `InputError`."""
    logits = logits.clone()
    if params.logit_bias:
        ids = list(params.logit_bias)
        if min(ids) < 0 or max(ids) >= logits.shape[0]:
            raise InputError(f"logit_bias names token {max(ids)}: use ids from 0 to {logits.shape[0] - 1}")
        logits[upload(ids, logits.device)] += upload(list(params.logit_bias.values()), logits.device, logits.dtype)
    if params.repetition_penalty != 1:
        seen = upload(sorted({*prompt, *output}), logits.device, torch.long)
        value = logits[seen]
        rate = params.repetition_penalty
        logits[seen] = torch.where(value > 0, value / rate, value * rate)
    if output and (params.presence_penalty or params.frequency_penalty):
        counts = torch.zeros_like(logits)  # bincount would wait for the device to learn its size
        ids = upload(output, logits.device)
        counts.index_add_(0, ids, torch.ones_like(ids, dtype=logits.dtype))
        logits -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    return logits


def sample(
    logits: Float[Tensor, "rows vocab"], params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> Int[Tensor, "rows"]:
    """One token id per row. Penalties and biases must already be applied. Greedy rows take the first maximum."""
    tokens = logits.argmax(-1)
    drawn = [row for row, p in enumerate(params) if p.temperature > 0]
    if drawn:
        index = upload(drawn, logits.device)
        chosen = [params[row] for row in drawn]
        tokens[index] = _draw(logits[index], chosen, [uniforms[row] for row in drawn])
    return tokens


def _draw(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Int[Tensor, "rows"]:
    """Invert the cumulative distribution (fp64): in the order of the vocabulary, or, for rows that filter, of falling
    probability after top-k, then top-p, then min-p. Which way a row goes depends on its own parameters alone."""
    filtered = [row for row, p in enumerate(params) if p.top_k or p.top_p < 1 or p.min_p]
    if len(filtered) == len(params):
        return _draw_filtered(logits, params, uniforms)
    heat = upload([p.temperature for p in params], logits.device, torch.float64)[:, None]
    total = (logits.double() / heat).softmax(-1).cumsum(-1)
    goal = upload(list(uniforms), logits.device, torch.float64)[:, None] * total[:, -1:]
    tokens = torch.searchsorted(total, goal, right=True)[:, 0].clamp(max=logits.shape[1] - 1)
    if filtered:
        index = upload(filtered, logits.device)
        tokens[index] = _draw_filtered(logits[index], [params[r] for r in filtered], [uniforms[r] for r in filtered])
    return tokens


def _draw_filtered(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Int[Tensor, "rows"]:

    def column(values: list[float]) -> Tensor:
        return upload(values, logits.device, torch.float64)[:, None]

    scaled, order = (logits.double() / column([p.temperature for p in params])).sort(
        dim=-1, descending=True, stable=True
    )
    rank = torch.arange(scaled.shape[1], device=logits.device)
    top_k = column([float(p.top_k or scaled.shape[1]) for p in params])
    probs = scaled.masked_fill(rank >= top_k, -torch.inf).softmax(-1)
    before = probs.cumsum(-1) - probs
    probs = probs * (before < column([p.top_p for p in params]))
    probs = probs * (probs >= probs[:, :1] * column([p.min_p for p in params]))
    total = probs.cumsum(-1)
    picked = (total <= column(list(uniforms)) * total[:, -1:]).sum(-1).clamp(max=scaled.shape[1] - 1)
    return order.gather(1, picked[:, None])[:, 0]
