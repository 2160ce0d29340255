"""Sections 5 to 7 of the report, from records alone."""

from loopwise.report.figure import Figure
from loopwise.report.words import percent
from loopwise.study.book import Book, Pair
from loopwise.study.draw import Dot, Line, dots, lines
from loopwise.study.published import Published
from loopwise.study.section import Section, Table, ci, gone


def reading(book: Book, study: Published) -> Section:
    """Reading against generating."""
    pairs = book.having("reading")
    gaps, rows = [], []
    for pair in pairs:
        for row in pair.records["reading"]["layouts"]:
            gaps.append(
                Dot(f"{row['policy']}, {row['layout']}, {pair.corpus}", row["gap"][0], row["gap"][1:], pair.name)
            )
            rows.append([row["policy"], pair.name, row["layout"], row["tokens"], row["depth"], row["replay_depth"],
                         ci(row["gap"], "+.4f")])  # fmt: skip
    figures = []
    if gaps:
        figures.append(
            dots(
                "gap",
                "Loss live less loss in replay, by KV layout",
                "The same policy on the same tokens, paired, with 95% intervals over documents. Right of zero, "
                "leaving "
                "early damaged the context that later tokens read. The study chose depths after one full pass, which "
                "cannot show this.",
                "loss live less replay (nats)",
                gaps,
                study=None,
            )
        )
    figures += [_drift(pair) for pair in pairs if pair.records["reading"]["drift"]["policies"]]
    figures += _tiers(book)
    table = Table(
        "gap",
        "Replay against live decoding. Uniform depth appears only for layouts that share planes.",
        ("policy", "where", "layout", "n tokens", "depth live", "depth in replay", "loss live less replay"),
        rows,
        (1, 2),
    )
    return Section(
        key="reading",
        title="Reading against generating",
        rows=(),
        tables=[table, _drift_table(book), _text_table(book)],
        figures=figures,
        missing=gone(book, "reading", "judge"),
    )


def _drift(pair: Pair) -> Figure:
    found = pair.records["reading"]["drift"]
    curves = [Line(p["name"], list(zip(p["position"], p["kl"], strict=True))) for p in found["policies"]]
    return lines(
        f"drift-{pair.checkpoint}-{pair.corpus}",
        f"Drift along a continuation: {pair.name}",
        f"KL from the full-depth next-token distribution to each policy's on the same greedy continuation, by "
        f"position, "
        f"{found['prompts']} prompts of 32 tokens, bins of {found['bin']}.",
        "tokens after the prompt",
        "KL (nats)",
        curves,
        x_depth=False,
    )


def _drift_table(book: Book) -> Table:
    rows = []
    for pair in book.having("reading"):
        found = pair.records["reading"]["drift"]
        for p in found["policies"]:
            rows.append([p["name"], pair.name, found["prompts"], found["new_tokens"], p["depth"],
                         sum(p["kl"]) / len(p["kl"]), sum(p["agreement"]) / len(p["agreement"]),
                         ci(p["late_less_early"], "+.4f")])  # fmt: skip
    return Table(
        "drift",
        "Drift along a continuation: mean KL from the full-depth distribution, share of equal first choices, "
        "and KL in "
        "the second half less that in the first (95% interval over prompts).",
        (
            "policy",
            "where",
            "n prompts",
            "tokens each",
            "mean depth",
            "KL (nats)",
            "agreement",
            "second half less first",
        ),
        rows,
        (1,),
    )


def _tiers(book: Book) -> list[Figure]:
    rows = [
        Dot(f"{t['name']} ({t['mean_depth']:.2f} passes)", t["bits_per_byte"][0], t["bits_per_byte"][1:], pair.name)
        for pair in book.having("judged")
        for t in pair.records["judged"]["tiers"]
    ]
    if not rows:
        return []
    return [
        dots(
            "tiers",
            "Generated text under a judge, by tier",
            "Bits per byte that SmolLM2-135M-Instruct needs for each tier's continuations of the same prompts (same "
            "random numbers), with 95% intervals over prompts. Less is likelier text.",
            "bits per byte under the judge",
            rows,
        )
    ]


def _text_table(book: Book) -> Table:
    rows = []
    for pair in book.having("reading"):
        judged = {t["name"]: t for t in pair.records.get("judged", {}).get("tiers", [])}
        for tier in pair.records["reading"]["texts"]:
            j = judged.get(tier["name"])
            rows.append([tier["name"], pair.name, len(tier["texts"]), tier["tokens"], tier["mean_depth"],
                         percent(tier["repetition"], 1), percent(tier["agreement"], 1),
                         ci(j["bits_per_byte"], ".3f") if j else None, ci(j["against_full"], "+.3f") if j else None])  # fmt: skip  # noqa: E501
    return Table(
        "texts",
        "Sampled continuations by tier (temperature 0.8, top-p 0.95): repeated 4-grams, tokens equal to the "
        "full-depth "
        "text at the same place, and bits per byte under the judge, alone and less the full-depth tier's (paired).",
        ("tier", "where", "n prompts", "n tokens", "mean depth", "repeated", "agreement", "judge", "judge, less full"),
        rows,
        (1,),
    )


def efficiency(book: Book, study: Published) -> Section:
    """Bounds, realised ratios, energy."""
    rows, points = [], []
    for pair in book.having("bounds"):
        found = pair.records["bounds"]
        for row in found["rows"]:
            rows.append([row["signal"], pair.name, row["mode"], row["mean_depth"], row["bound"], row["with_checks"],
                         row["bound_best_fixed"], row["with_checks_best_fixed"]])  # fmt: skip
            if row["mode"] == "live":
                points.append(
                    Dot(f"{row['signal']}, {pair.corpus}: checks free", row["bound"], None, "FLOP bound, checks free")
                )
                points.append(
                    Dot(f"{row['signal']}, {pair.corpus}: checks paid", row["with_checks"], None, "checks paid for")
                )
    for row in book.whole.get("engine", {}).get("ratios", []):
        points.append(Dot(row["name"], row["value"], None, "realised by the engine"))
        points.append(Dot(f"{row['name']}: bound", row["bound"], None, "FLOP bound, checks free"))
    figures = []
    if points:
        figures.append(
            dots(
                "efficiency",
                "Speed-up over the training mean's depth",
                "FLOPs at uniform depth over FLOPs at matched quality, with checks free and with every readout "
                "and check "
                "paid for; and what the engine realises, where a benchmark record is there. Dashed: the study's best "
                "case, 1.48 times. Below 1 the exit costs more than it saves.",
                "times",
                points,
                study=study.row("wall_clock").values["low"],
                zero=True,
            )
        )
    bound = Table(
        "bounds",
        "Speed-up bound (F0 + r Fr) / (F0 + d Fr) of leaving at the matched mean depth, checks free; and with every "
        "readout and check paid for; against the training mean and against the best fixed depth.",
        (
            "signal",
            "where",
            "mode",
            "mean depth",
            "bound",
            "with checks",
            "bound, best fixed",
            "with checks, best fixed",
        ),
        rows,
        (1,),
    )
    real = Table(
        "engine",
        "The engine's realised speed-up over full depth from benchmark records, and the share of its bound.",
        ("benchmark", "mean depth", "realised", "bound", "share of the bound"),
        [[r["name"], r["mean_depth"], r["value"], r["bound"], percent(r["share"])]
         for r in book.whole.get("engine", {}).get("ratios", [])],
    )  # fmt: skip
    joules = Table(
        "energy",
        "Energy of live decoding, from the processor's own counters.",
        ("policy", "joules per token", "seconds"),
        [[n, r["joules_per_token"], r["seconds"]] for n, r in book.whole.get("energy", {}).get("rows", {}).items()],
    )
    return Section(
        key="efficiency",
        title="Efficiency",
        rows=("wall_clock",),
        tables=[bound, real, joules],
        figures=figures,
        missing=gone(book, "efficiency", "engine", "energy"),
    )


def ceiling(book: Book, study: Published) -> Section:
    """Bits per byte beside SmolLM2."""
    points, rows = [], []
    for pair in book.having("ceiling"):
        found = pair.records["ceiling"]
        for depth, values in found["ours"].items():
            points.append(Dot(f"{pair.name}, depth {depth}", values[0], values[1:], pair.checkpoint))
            rows.append([f"{pair.checkpoint}, depth {depth}", pair.corpus, found["windows"], found["bytes"],
                         ci(values, ".3f")])  # fmt: skip
        points.append(Dot(f"SmolLM2-135M on {pair.corpus}", found["ceiling"][0], found["ceiling"][1:], "ceiling"))
        rows.append([found["judge"], pair.corpus, found["windows"], found["bytes"], ci(found["ceiling"], ".3f")])
    figures = []
    if points:
        figures.append(
            dots(
                "ceiling",
                "Bits per byte beside the ceiling",
                "The same bytes, window by window from an empty context, under both models, with 95% intervals over "
                "windows. Bits per byte do not depend on the vocabulary.",
                "bits per byte",
                points,
                zero=True,
            )
        )
    table = Table(
        "ceiling",
        "Bits per byte on the same windows. SmolLM2-135M-Instruct, Q4_1 weights.",
        ("model", "corpus", "n windows", "n bytes", "bits per byte"),
        rows,
        (1,),
    )
    return Section(
        key="ceiling",
        title="Ceiling",
        rows=("ceiling", "limits"),
        tables=[table],
        figures=figures,
        missing=gone(book, "ceiling", "judge"),
    )
