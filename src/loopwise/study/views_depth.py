"""Section 3 of the report, from records alone: what settles when."""

from loopwise.report.figure import Figure
from loopwise.report.words import TYPE_NAMES, percent
from loopwise.study.book import Book
from loopwise.study.draw import Dot, Line, dots, lines
from loopwise.study.published import Published
from loopwise.study.section import DEPTH, Section, Table, ci, gone, share


def depth(book: Book, study: Published) -> Section:
    """Per-token depth."""
    pairs, curves = book.having("measure"), []
    for pair in pairs:
        found = pair.records["measure"]["convergence"]
        curves.append(Line(pair.name, [(float(d), v) for d, v in found["share_after"].items()]))
    moving = lines(
        "moving",
        "Share of tokens still moving after each depth",
        "Share with a KL of at least 0.001 nats between readouts at some deeper pass. Stars: the study (median "
        "at 6; about 10% at 8).",
        DEPTH,
        "share of tokens",
        curves,
        study=[(6.0, 0.5), (8.0, 0.1)],
    )
    rows = []
    for pair in pairs:
        found = pair.records["measure"]
        rows.append(
            [
                pair.checkpoint,
                pair.corpus,
                found["tokens"],
                ci(found["settled"]["median"], "g"),
                found["convergence"]["mean"],
                share(found["settled"]["moving_at_mean"]),
                percent(found["convergence"]["censored"], 1),
            ]
        )
    table = Table(
        "convergence",
        "Convergence depth of the output (KL below 0.001 nats from there on).",
        (
            "checkpoint",
            "corpus",
            "n tokens",
            "median",
            "mean",
            "moving at the training mean",
            "moving at the last depth",
        ),
        rows,
        (1,),
    )
    return Section(
        key="depth",
        title="Per-token depth",
        rows=("median", "tail", "types", "reversal"),
        tables=[table, _tests(book)],
        figures=[moving, _types(book), *_bands(book)],
        missing=gone(book, "depth"),
    )


def _types(book: Book) -> Figure:
    rows = [
        Dot(TYPE_NAMES.get(kind, kind) + f", {pair.name}", row["mean"], row["mean_ci"], pair.name)
        for kind in TYPE_NAMES
        for pair in book.having("measure")
        for name, row in pair.records["measure"]["by_type"].items()
        if name == kind and row["count"] >= 30
    ]
    return dots(
        "types",
        "Mean convergence depth by token type",
        "By the token that is predicted, with 95% intervals over "
        "documents; types with fewer than 30 tokens are left out. In the study whitespace is earliest and content "
        "words are deepest.",
        "mean convergence depth",
        rows,
    )


def _bands(book: Book) -> list[Figure]:
    found = []
    titles = {"surprisal": "surprisal (nats)", "frequency": "token frequency", "position": "position in the window"}
    for kind, title in titles.items():
        rows = [
            Dot(
                f"{band['name'].removesuffix(' nats at the training mean').removesuffix(' occurrences here')}",
                band["mean"],
                band["ci"],
                pair.name,
            )
            for pair in book.having("depths")
            for band in pair.records["depths"]["bands"].get(kind, [])
        ]
        if rows:
            found.append(
                dots(
                    f"by-{kind}",
                    f"Mean convergence depth by {title}",
                    "Bands hold about a fifth of the tokens "
                    "each (positions: powers of two), with 95% intervals over documents." + _rank(book, kind),
                    "mean convergence depth",
                    rows,
                )
            )
    return found


def _rank(book: Book, kind: str) -> str:
    pairs = book.having("depths")
    shown = ", ".join(f"{p.name} {p.records['depths']['rank_correlation'][kind]:+.2f}" for p in pairs)
    return f" Rank correlation: {shown}."


def _tests(book: Book) -> Table:
    rows = []
    for pair in book.having("depths"):
        for test in pair.records["depths"]["order"]["tests"]:
            left, right = (TYPE_NAMES.get(test[n], test[n]) for n in ("left", "right"))
            rows.append([f"{left} − {right}", pair.name, *test["n"], test["difference"], test["p"], test["p_holm"]])
    draws = max((p.records["depths"]["order"]["permutations"] for p in book.having("depths")), default=0)
    return Table(
        "ordering",
        f"Difference of mean convergence depths between types; p from {draws:,} permutations of the "
        "labels within documents, then with Holm's correction over all pairs of a corpus.",
        ("pair", "where", "n left", "n right", "difference (passes)", "p", "p (Holm)"),
        rows,
        (1,),
    )
