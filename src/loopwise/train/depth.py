"""Depth samplers: pure functions of (seed, step, draw), so every rank and every resumed run sees the same depths.

Each draw turns one or two uniform numbers into a depth by inversion, with the standard library only: the values do not
depend on the version of an array library. Every result is clamped to [config.min, config.max].
"""

import math
import random
from collections.abc import Callable
from statistics import NormalDist

from loopwise.train.config import DepthConfig


def depth_at(config: DepthConfig, seed: int, step: int, draw: int = 0) -> int:
    """Number of core passes for optimizer step `step`; `draw` numbers the micro-batches or sequences inside it."""
    source = random.Random(f"loopwise.depth/{seed}/{step}/{draw}")  # a string seed is hashed (SHA-512), not hash()
    return min(max(SAMPLERS[config.kind](config, step, source), config.min), config.max)


def _lognormal(config: DepthConfig, step: int, source: random.Random) -> int:
    """round(exp(N(ln m - sigma^2/2, sigma))): before rounding and clamping its mean is m."""
    return round(_draw(config.mean, config.sigma, source))


def _poisson_lognormal(config: DepthConfig, step: int, source: random.Random) -> int:
    """Poisson(exp(N(ln m - sigma^2/2, sigma))) + 1, as in Geiping et al., 2025 (Huginn): the mean is m + 1."""
    return _poisson(_draw(config.mean, config.sigma, source), source.random()) + 1


def _fixed(config: DepthConfig, step: int, source: random.Random) -> int:
    return round(config.mean)


def _uniform(config: DepthConfig, step: int, source: random.Random) -> int:
    """Uniform on min..max; `mean` is not used."""
    return config.min + int(source.random() * (config.max - config.min + 1))


def _curriculum(config: DepthConfig, step: int, source: random.Random) -> int:
    """Lognormal whose mean goes linearly from start_mean to mean over the first ramp_steps steps."""
    done = min(step / config.ramp_steps, 1.0)
    return round(_draw(config.start_mean + (config.mean - config.start_mean) * done, config.sigma, source))


SAMPLERS: dict[str, Callable[[DepthConfig, int, random.Random], int]] = {
    "lognormal": _lognormal,
    "poisson-lognormal": _poisson_lognormal,
    "fixed": _fixed,
    "uniform": _uniform,
    "curriculum": _curriculum,
}


def _draw(mean: float, sigma: float, source: random.Random) -> float:
    uniform = min(max(source.random(), 1e-12), 1 - 1e-12)  # inv_cdf is undefined at 0 and 1
    return math.exp(math.log(mean) - sigma**2 / 2 + sigma * NormalDist().inv_cdf(uniform))


def _poisson(rate: float, uniform: float) -> int:
    """Smallest k with P(X <= k) >= uniform. Terms are summed in the log domain: exp(-rate) may underflow."""
    total, k = 0.0, 0
    while True:
        total += math.exp(k * math.log(rate) - rate - math.lgamma(k + 1))
        if total >= uniform or k > 10 * rate + 100:
            return k
        k += 1
