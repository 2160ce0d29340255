"""Parts of sections 2 and 4 of the report: the spectrum of a pass, and what learning to halt does."""

from itertools import pairwise

from loopwise.report.figure import Figure
from loopwise.report.words import percent
from loopwise.study.book import Book
from loopwise.study.draw import Line, lines
from loopwise.study.section import Table


def spectrum(book: Book) -> tuple[list[Figure], list[Table]]:
    """Spectral radius of a pass at the fixed point."""
    pairs = book.having("jacobian")
    curves, rows = [], []
    for pair in pairs:
        found = pair.records["jacobian"]
        middles = [(a + b) / 2 for a, b in pairwise(found["edges"])]
        curves.append(
            Line(pair.name, [(x, n / found["tokens"]) for x, n in zip(middles, found["histogram"], strict=True)])
        )
        rate = (pair.records["measure"]["token_contraction"] or {}).get("quantiles", {})
        rows.append([pair.checkpoint, pair.corpus, found["tokens"], found["radius"]["0.5"], found["radius"]["0.95"],
                     found["radius"]["max"], percent(found["attracting"], 1), found["singular"]["0.5"],
                     found["residual"]["0.5"], rate.get("0.5")])  # fmt: skip
    if not pairs:
        return [], []
    depth = pairs[0].records["jacobian"]["depth"]
    figure = lines(
        "spectrum",
        "Spectral radius of one pass at the fixed point",
        f"Share of sampled tokens by the spectral radius of their own block of the Jacobian after pass {depth}, "
        f"by power "
        "iteration through autograd. Below 1 the fixed point attracts. The study gives no spectrum.",
        "spectral radius",
        "share of tokens",
        curves,
        x_depth=False,
        marks=[(1.0, "1")],
    )
    table = Table(
        "spectrum",
        "Spectrum of a token's block at the deepest pass: spectral radius, largest singular value (which may exceed 1 "
        "while the radius does not), relative change left in that pass, beside the observed contraction per pass.",
        (
            "checkpoint",
            "corpus",
            "n tokens",
            "median radius",
            "95%",
            "largest",
            "attracting",
            "median singular value",
            "median last change",
            "observed rate",
        ),
        rows,
        (1,),
    )
    return [figure], [table]


def learning(book: Book) -> tuple[list[Figure], list[Table]]:
    """Halting heads on the frozen backbone, and the small models trained here."""
    rows: list[list] = []
    for pair in book.having("halting"):
        record = pair.records["halting"]
        for beta, found in record.get("natural", {}).items():
            rows.append([f"frozen, β {beta}", pair.name, record["training_tokens"], found["mean_depth"],
                         found["spread"], found["loss"], found["loss"] - found["loss_at_last"]])  # fmt: skip
    tables = [
        Table(
            "halting",
            "A PonderNet-style head on the frozen backbone, left to itself: expected depth over tokens, its standard "
            "deviation between tokens, expected loss, and that loss less the loss at the training mean.",
            ("head", "where", "n training tokens", "expected depth", "spread", "loss", "above the mean's"),
            rows,
            (1,),
        )
    ]
    figures = []
    found = book.whole.get("joint")
    if found:
        rows, curves = [], []
        for arm, runs in found["arms"].items():
            seeds = runs["seeds"]
            share = [sum(s["share"][i] for s in seeds) / len(seeds) for i in range(found["depths"])]
            rows.append([arm, len(seeds), seeds[0]["tokens"], _seeds(seeds, "mean_depth"), _seeds(seeds, "loss"),
                         sum(s["loss_by_depth"][-1] for s in seeds) / len(seeds), percent(max(share), 0)])  # fmt: skip
            curves.append(Line(arm, [(float(i + 1), v) for i, v in enumerate(share)]))
            if arm == "random":
                read = [s["reading"] for s in seeds]
                rows.append(["random, read", len(seeds), seeds[0]["tokens"], _seeds(read, "mean_depth"),
                             _seeds(read, "loss"), None, None])  # fmt: skip
        tables.append(_arms(rows, found))
        figures.append(
            lines(
                "arms",
                "Depth of tokens in models trained here",
                f"Share of held-out tokens at each depth, mean of the seeds, after {found['tokens']:,} training "
                f"tokens "
                f"({found['tuned_tokens']:,} for the tuned checkpoint). A joint arm whose tokens all sit at one depth "
                "has collapsed.",
                "depth (core passes)",
                "share of tokens",
                [c for c in curves if c.name not in ("random", "fixed")],
                x_depth=False,
            )
        )
    return figures, tables


def _arms(rows: list[list], found: dict) -> Table:
    return Table(
        "arms",
        f"Small models trained here on the same {found['tokens']:,} tokens (tuned: {found['tuned_tokens']:,} "
        f"more of the "
        f"checkpoint's own), at most {found['depths']} passes, sampled and fixed arms with mean "
        f"{found['mean']}. Several "
        "seeds: mean and range over seeds. Largest share: of tokens at one depth.",
        ("arm", "seeds", "n held-out tokens", "mean depth", "loss", "loss at the last depth", "largest share"),
        rows,
    )


def _seeds(runs: list[dict], name: str) -> str:
    values = [run[name] for run in runs]
    mean = f"{sum(values) / len(values):.3f}"
    return mean if len(values) < 2 else f"{mean}\n{min(values):.3f} to {max(values):.3f}"
