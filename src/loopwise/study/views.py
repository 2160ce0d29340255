"""Sections 1 to 4 of the report, from records alone."""

from collections.abc import Callable

from loopwise.report.frontier import cost_frontier_figure, frontier_figure
from loopwise.report.parse import allocation as parsed
from loopwise.report.savings import savings_figure
from loopwise.report.words import TYPE_NAMES, percent
from loopwise.study.book import Book, matched
from loopwise.study.draw import Dot, Line, dots, lines
from loopwise.study.published import Published
from loopwise.study.section import Section, Table, ci, renamed, slug

DEPTH = "depth (core passes, log scale)"


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
    for entry in book.whole.get("sweep", {}).get("rows", []):
        points.append(
            Dot(
                f"sweep, {entry['source']} ({entry['runs']} runs)",
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
        tables=[table],
        figures=[loss, useful, *more],
        missing=_gone(book, "sweep"),
    )


def _difficulty(book: Book):
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


def _gone(book: Book, *names: str) -> list[str]:
    return [book.missing[n] for n in names if n in book.missing]


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
                *(_share(settled[n]) for n in ("output", "latent", "output_not_latent")),
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
    return Section(
        key="dynamics", title="Convergence dynamics", rows=("kl",), tables=[table], figures=[kl, change, back]
    )


def _share(values: list[float]) -> str:
    return f"{percent(values[0], 1)}\n{percent(values[1], 1)} to {percent(values[2], 1)}"


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
                _share(found["settled"]["moving_at_mean"]),
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
    )


def _types(book: Book):
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


def _bands(book: Book):
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


def allocation(book: Book, study: Published) -> Section:
    """Policies."""
    figures = []
    for pair in book.having("allocation"):
        found, suffix = parsed(pair.records["allocation"]), slug(pair.checkpoint, pair.corpus)
        figures += [
            renamed(make, suffix, f"{make.title}: {pair.name}")
            for make in (
                frontier_figure(found, found.tokens),
                cost_frontier_figure(found, found.tokens),
                savings_figure(found),
            )
        ]
    return Section(
        key="allocation",
        title="Allocation",
        rows=("a1", "a1_shallow", "a2", "reading"),
        lead=_yardstick(book),
        tables=[_matched(book)],
        figures=[_passes(book), *figures],
    )


def _yardstick(book: Book) -> list[str]:
    parts = []
    for pair in book.having("allocation"):
        best = pair.records["allocation"]["best_fixed"]
        ends = best["depth_ci"]
        parts.append(f"{pair.name} {best['depth']} [{ends[0]:g}, {ends[1]:g}]")
    return ["Best fixed depth, the yardstick that checks nothing: " + "; ".join(parts) + "."] if parts else []


def _matched(book: Book) -> Table:
    rows = []
    for pair in book.having("allocation"):
        for row in pair.records["allocation"]["policies"]:
            rows.append([row["label"] or row["name"], pair.name, row["mode"], row["tokens"], *_cells(row["matched"])])
    return Table(
        "policies",
        "Every policy at matched quality (loss at most 0.01 nats above the training mean's). Compute counts "
        "every pass, readout and check. Small print: 95% intervals over documents.",
        (
            "policy",
            "where",
            "mode",
            "n tokens",
            "mean depth",
            "passes saved",
            "compute",
            "passes saved, best fixed",
            "compute, best fixed",
        ),
        rows,
        (1,),
    )


def _cells(found: dict | None) -> list[str | float | None]:
    if found is None:
        return ["never matches", None, None, None, None]
    ends = found["saving_vs_best_fixed_ci"]
    return [
        found["mean_depth"],
        _share([found["saving"], *found["saving_ci"]]),
        ci([found["cost_ratio"], *found["cost_ratio_ci"]], ".2f"),
        _share([found["saving_vs_best_fixed"], *ends]),
        ci([found["cost_ratio_vs_best_fixed"], *found["cost_ratio_vs_best_fixed_ci"]], ".2f"),
    ]


def _passes(book: Book):
    rows = []
    for name, text in (
        ("kl", "A1 kl"),
        ("rel_change", "rel_change"),
        ("accel", "accel"),
        ("distil", "distil"),
        ("fisher", "fisher"),
        ("probe", "A2 probe"),
        ("ponder", "PonderNet head"),
    ):
        for pair in book.having("allocation"):
            record = pair.records.get("halting" if name == "ponder" else "allocation")
            for mode in ("replay", "live") if record else ():
                found = matched(record, name, mode) if record else None
                if found and record:
                    depth_ = record["reference_depth"]
                    ends = sorted(depth_ * (1 - v) for v in found["saving_ci"])
                    rows.append(Dot(f"{text}, {pair.corpus}, {mode}", found["mean_depth"], ends, pair.name))
    return dots(
        "matched-depth",
        "Mean depth at matched quality",
        "Core passes per token at a loss within 0.01 nats of the "
        "training mean's, with 95% intervals. Dashed: A1 in the study, 4.94 of 8. Signals that read the model "
        "stand above those that learn when to stop.",
        "mean depth (core passes)",
        rows,
        study=4.94,
        zero=True,
    )


SECTIONS: dict[str, Callable[[Book, Published], Section]] = {
    "elasticity": elasticity,
    "dynamics": dynamics,
    "depth": depth,
    "allocation": allocation,
}
