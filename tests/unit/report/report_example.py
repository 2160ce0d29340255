"""A made-up run for the report's tests: smooth curves with a little noise, seeded, and text that tries to break out."""

import math

import numpy as np

from loopwise.report.lens import Lens, Passage
from loopwise.report.run import (
    Allocation,
    Convergence,
    Curve,
    Difficulty,
    Fixed,
    Matched,
    Measure,
    Oracle,
    Point,
    Policy,
    Run,
    Sample,
    TypeRow,
)

HOSTILE = (
    "</script><script>document.title='broken'</script>"
    "<img src=x onerror=\"document.title='broken'\"> & 'quoted' ]]> -->"
)
TEXT = (
    "Geography\nLocation: Southern Europe, bordering the Adriatic Sea, between Greece in the south and "
    "Montenegro to the north.\n"
    "Area: total 28,748 sq km; land 27,398 sq km; water 1,350 sq km.\nClimate: mild temperate; cool, cloudy, "
    "wet winters; hot, clear, dry "
    "summers; the interior is cooler and wetter.\nTerrain: mostly mountains and hills; small plains along the coast.\n"
)
DEPTHS = tuple(range(1, 33))


def curve(first: float, last: float, rate: float, spread: float = 0.0) -> Curve:
    values = tuple(last + (first - last) * math.exp(-rate * (d - 1)) for d in DEPTHS)
    if not spread:
        return Curve(DEPTHS, values)
    return Curve(DEPTHS, values, tuple(v - spread for v in values), tuple(v + spread for v in values))


def decay(first: float, last: float, rate: float) -> Curve:
    depths = DEPTHS[1:]
    return Curve(depths, tuple(last + first * math.exp(-rate * (d - 2)) for d in depths))


def settled(median: int, tokens: int, threshold: float = 1e-3) -> Convergence:
    weight = np.array([math.exp(-((math.log(d / median)) ** 2) / 0.45) for d in DEPTHS])
    counts = np.floor(weight / weight.sum() * tokens).astype(int)
    counts[median - 1] += tokens - counts.sum()
    after = {d: float(1 - counts[:d].sum() / tokens) for d in DEPTHS[:-1]}
    histogram = {d: int(n) for d, n in zip(DEPTHS, counts, strict=True)}
    return Convergence(
        threshold=threshold,
        median=median,
        mean=median + 0.6,
        share_after=after,
        censored=counts[-1] / tokens,
        histogram=histogram,
    )


def measure(tokens: int = 20_000) -> Measure:
    medians = {"whitespace": 2, "punctuation": 4, "digits": 6, "word_start": 7, "word_continuation": 5}
    types = [
        TypeRow(
            name=name,
            count=tokens // 5,
            share=0.2,
            median=m,
            mean=m + 0.4,
            histogram=settled(m, tokens // 5).histogram,
            share_ci=(0.18, 0.22),
            median_ci=(m, m + 1),
            mean_ci=(m + 0.2, m + 0.6),
        )
        for name, m in medians.items()
    ]
    hard = [
        Difficulty(
            kind="chain",
            k=k,
            count=400,
            accuracy=Curve(DEPTHS, tuple(1 / (1 + math.exp(k + 1 - d)) for d in DEPTHS)),
            depth=2.0 + 1.1 * k,
            depth_ci=(1.8 + 1.1 * k, 2.2 + 1.1 * k),
        )
        for k in range(1, 7)
    ]
    return Measure(
        tokens=tokens,
        groups=25,
        unit="documents",
        max_depth=32,
        mean_depth=8,
        loss=curve(3.9, 2.71, 0.55, 0.03),
        kl=decay(0.39, 2e-6, 0.9),
        kl_prev=decay(0.45, 2e-6, 0.88),
        change=decay(0.3, 3e-5, 0.6),
        rate=0.55,
        convergence=settled(6, tokens),
        latent=settled(9, tokens, 1e-2),
        types=types,
        difficulty=hard,
    )


def policy(signal: str, mode: str, shift: float, cost: float) -> Policy:
    loss = curve(3.9, 2.71, 0.55).values
    points = [
        Point(
            None if signal == "depth" else 10.0**-i,
            d * shift,
            loss[d - 1] + (0.003 if mode == "live" else 0),
            (loss[d - 1] - 0.03, loss[d - 1] + 0.03),
            0.9,
            (2 + d * shift * cost) / 10,
        )
        for i, d in enumerate((2, 3, 4, 5, 6, 8, 12, 16))
    ]
    matched = (
        None
        if signal == "depth"
        else Matched(
            8 * shift,
            1 - shift,
            loss=loss[7] + 0.008,
            saving_ci=(1 - shift - 0.04, 1 - shift + 0.03),
            cost_ratio=(2 + 8 * shift * cost) / 10,
            cost_ratio_ci=((2 + 8 * shift * cost) / 10 - 0.03, (2 + 8 * shift * cost) / 10 + 0.04),
            saving_vs_best=1 - 8 * shift / 6,
            saving_vs_best_ci=(0.9 - 8 * shift / 6, 1.1 - 8 * shift / 6),
            cost_vs_best=(2 + 8 * shift * cost) / 8,
            cost_vs_best_ci=(0.7, 1.2),
        )
    )
    return Policy(name=signal, signal=signal, mode=mode, points=points, matched=matched)


def allocation() -> Allocation:
    shapes = {
        "depth": (1.0, 1.0),
        "kl": (0.62, 1.9),
        "probe": (0.97, 1.02),
        "rel_change": (0.68, 1.01),
        "accel": (0.72, 1.01),
        "entropy": (0.9, 1.8),
    }
    policies = [
        policy(s, mode, a + (0.03 if mode == "live" else 0), c)
        for s, (a, c) in shapes.items()
        for mode in ("replay", "live")
        if (s, mode) != ("depth", "live")
    ]
    return Allocation(
        tokens=20_000,
        groups=25,
        unit="documents",
        reference_depth=8,
        reference_loss=curve(3.9, 2.71, 0.55).values[7],
        tolerance=0.01,
        policies=policies,
        oracle=Oracle(3.1, 2.69, [(1.5, 3.2), (2.0, 2.9), (3.1, 2.69), (4, 2.66)]),
        best_fixed=Fixed(6, 2.735, (5, 7), 0.8),
        layout="depth_indexed",
    )


def lens(text: str = TEXT, *, hostile: bool = True) -> Lens:
    words = [w for line in text.splitlines(keepends=True) for w in line.replace(" ", "\0 ").split("\0")]
    pieces = words + [HOSTILE] * hostile + words
    rng = np.random.default_rng(0)
    n, half = len(pieces), len(words)
    rate = rng.gamma(3, 0.3, n)[:, None]
    depth = np.arange(1, 33)[None]
    signals = {
        name: scale * np.exp(-rate * depth) + floor
        for name, scale, floor in (("kl", 1.0, 1e-7), ("rel_change", 0.6, 1e-4))
    }
    for values in signals.values():
        values[:, 0] = np.nan
    nll = rng.gamma(2, 1.2, n)[:, None] * (1 + np.exp(-rate * depth))
    guess = [[[1, 0], [4, 1 + i]] for i in range(len(pieces))]
    passages = [Passage(title="Albania", start=0, stop=half), Passage(title="<Hostile> & puzzle", start=half, stop=n)]
    return Lens(
        pieces=pieces,
        types=["word_start"] * n,
        passages=passages,
        signals=signals,
        nll=nll,
        guess=guess,
        guess_pieces=[" the", *pieces],
        starts={"kl": 1e-3, "rel_change": 0.05},
    )


def sample() -> Sample:
    pieces = [" the", " sea", ",", " and", " hills", "\n", HOSTILE]
    return Sample(
        policy="rel_change<0.05",
        prompt="Albania\nTerrain: ",
        pieces=pieces,
        depths=[1, 4, 2, 3, 8, 1, 32],
        max_depth=32,
        readouts=7,
    )


def run() -> Run:
    about = [
        ("model", "tiny (1.6M parameters)"),
        ("text", "factbook"),
        ("tokens", "20,000"),
        ("commit", "0123456789ab"),
        ("hardware", "<Some> CPU, 2 cores"),
        ("date", "2026-12-01 00:00 UTC"),
        ("seed", "0"),
    ]
    return Run(
        title="tiny on factbook", about=about, measure=measure(), allocation=allocation(), lens=lens(), sample=sample()
    )
