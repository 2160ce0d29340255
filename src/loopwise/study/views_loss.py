"""Sections 1 and 2 of the report, from records alone: loss, saturation, change, contraction."""

from collections.abc import Sequence
from typing import Any

from loopwise.report.figure import Figure
from loopwise.report.words import percent
from loopwise.study.book import Book
from loopwise.study.draw import Dot, Line, dots, lines
from loopwise.study.published import Published
from loopwise.study.section import DEPTH, Section, Table, ci, gone, share
from loopwise.study.views_learning import spectrum


def _lines(book: Book, field: str, *, relative: bool = False, ends: str = "") -> list[Line]:
    """One curve per pair from a `X_by_depth` field; `relative` to its smallest value."""
    found = []
    for pair in book.having("measure"):
        record = pair.records["measure"]
        values = record.get(field)
        if not values:
            continue
        base = min(values.values()) if relative else 0.0
        band = [tuple(record[ends][d]) for d in values] if ends else None
        found.append(Line(pair.name, [(float(d), v - base) for d, v in values.items()], band))
    return found


def elasticity(book: Book, study: Published) -> Section:
    """Loss by depth and saturation."""
    pairs = book.having("measure")
    tokens = sum(p.records["measure"]["tokens"] for p in pairs)
    loss = lines(
        "loss",
        "Loss above the best fixed depth, by depth",
        f"Mean loss of {tokens:,} held-out tokens at uniform depth, less that of the best fixed depth of each "
        f"curve. The "
        "study's curve falls to its training mean, 8, and is flat from there to 32 (3.20 nats, another vocabulary, so "
        "only the shape is compared).",
        DEPTH,
        "loss above the best (nats per token)",
        _lines(book, "loss_by_depth", relative=True),
        marks=[(8.0, "the study: flat from 8")],
    )
    rows, points = [], []
    for pair in pairs:
        found = pair.records["measure"]
        by = found["saturation_by_tolerance"]
        about = book.checkpoints[pair.checkpoint]
        rows.append(
            [
                pair.checkpoint,
                pair.corpus,
                found["mean_depth"],
                about["parameters"],
                about.get("trained_tokens"),
                found["tokens"],
                found["documents"],
                *(ci(by[t], "g") for t in ("0.002", "0.005", "0.01", "0.02")),
                ci(found["change_past_mean"], "+.4f"),
            ]
        )
        points.append(Dot(pair.name, by["0.01"][0], by["0.01"][1:], f"training mean {found['mean_depth']:g}"))
    swept = book.whole.get("sweep", {}).get("rows", [])
    for entry in swept:
        points.append(
            Dot(
                f"sweep, {entry['source']}, {entry['sampler']} {entry['mean']:g}",
                entry["depth"],
                [entry["low"], entry["high"]],
                f"training mean {entry['mean']:g}",
            )
        )
    table = Table(
        "saturation",
        "Useful depth: first uniform depth within a tolerance of the best one. Small print: 95% intervals, "
        "bootstrap over documents.",
        (
            "checkpoint",
            "corpus",
            "training mean",
            "parameters",
            "tokens seen",
            "n tokens",
            "n documents",
            "within 0.002",
            "0.005",
            "0.01",
            "0.02 nats",
            "loss from the mean to the last depth",
        ),
        rows,
        (1,),
    )
    useful = dots(
        "saturation",
        "Useful depth against the training mean",
        "First uniform depth within 0.01 nats of the best, with its 95% interval. The study's hypothesis puts "
        "every row at its training mean.",
        "useful depth (core passes)",
        points,
        study=8.0,
        zero=True,
    )
    more = [_difficulty(book)] if any("difficulty" in c for c in book.checkpoints.values()) else []
    return Section(
        key="elasticity",
        title="Elasticity",
        rows=("loss_shape", "saturation"),
        tables=[table, *([_sweep(swept)] if swept else [])],
        figures=[loss, useful, *more],
        missing=gone(book, "sweep"),
    )


def _sweep(rows: Sequence[dict[str, Any]]) -> Table:
    """Training means and samplers, several seeds each."""
    return Table(
        "sweep",
        "Models of the shape of tiny trained for this question: first depth within 0.01 nats of the best, mean over "
        "runs; small print: its 95% interval (runs and held-out windows resampled) and the range of the best loss.",
        (
            *("sampler", "training mean", "corpus", "runs", "useful depth", "of each run", "best loss"),
            *("loss at depth 1 above it", "at the last depth"),
        ),
        [
            [
                *(row["sampler"], row["mean"], row["source"], row["runs"]),
                ci((row["depth"], row["low"], row["high"])),
                ", ".join(map(str, row["depths"])),
                ci(row["best"], ".3f"),
                format(row["first"], "+.4f"),
                format(row["past"], "+.4f"),
            ]
            for row in rows
        ],
        (0, 2, 5),
    )


def _difficulty(book: Book) -> Figure:
    """Depth needed by answers of known difficulty."""
    curves = []
    for name, about in book.checkpoints.items():
        rows = about.get("difficulty", [])
        if rows:
            curves.append(Line(name, [(float(r["k"]), r["depth"]) for r in rows], [tuple(r["depth_ci"]) for r in rows]))
    return lines(
        "difficulty",
        "Where answers settle, by the steps they need",
        "Mean convergence depth of the deciding token of puzzle answers that need k lookups, with 95% intervals "
        "over puzzles: the harder the task, the deeper. The study has no such text.",
        "lookups needed (k)",
        "convergence depth",
        curves,
        x_depth=False,
    )


def dynamics(book: Book, study: Published) -> Section:
    """Successive change, contraction and the spectrum."""
    theirs = [(float(d), v) for d, v in study.row("kl").values.items()]
    kl = lines(
        "kl",
        "Mean successive KL by depth",
        "Mean over tokens of KL(now‖before) of consecutive readouts, in nats. Stars: the study.",
        DEPTH,
        "mean KL (nats, log scale)",
        _lines(book, "kl_by_depth"),
        study=theirs,
        y_log=True,
    )
    back = lines(
        "kl-prev",
        "The other direction: KL(before‖now)",
        "The same for the reverse direction, which the study does not give.",
        DEPTH,
        "mean KL (nats, log scale)",
        _lines(book, "kl_prev_by_depth"),
        y_log=True,
    )
    change = lines(
        "state-change",
        "Relative state change by depth",
        "Mean of ‖s_i − s_{i−1}‖ / ‖s_i‖ over tokens.",
        DEPTH,
        "relative change (log scale)",
        _lines(book, "state_change_by_depth"),
        y_log=True,
    )
    rows = []
    for pair in book.having("measure"):
        found = pair.records["measure"]
        rate, settled = found["token_contraction"], found["settled"]
        q = rate["quantiles"] if rate else {}
        rows.append(
            [
                pair.checkpoint,
                pair.corpus,
                found["tokens"],
                q.get("0.5"),
                q.get("0.05"),
                q.get("0.95"),
                percent(rate["expanding"], 1) if rate else None,
                *(share(settled[n]) for n in ("output", "latent", "output_not_latent")),
            ]
        )
    table = Table(
        "contraction",
        "Per-token contraction of the state per pass (geometric mean from depth 2 to the training mean), "
        "and tokens that settle within the recorded depths: output (KL below 0.001), state (change below 0.01), "
        "output "
        "but not state. Small print: 95% intervals.",
        (
            "checkpoint",
            "corpus",
            "n tokens",
            "median rate",
            "5%",
            "95%",
            "rate of 1 or more",
            "output settles",
            "state settles",
            "output only",
        ),
        rows,
        (1,),
    )
    figures, tables = spectrum(book)
    return Section(
        key="dynamics",
        title="Convergence dynamics",
        rows=("kl",),
        tables=[table, *tables],
        figures=[kl, change, back, *figures],
        missing=gone(book, "dynamics"),
    )
