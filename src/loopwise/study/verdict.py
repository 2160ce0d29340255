"""Verdicts: each published figure against ours, by a rule that could fail, with one sentence that is computed.

A *case* is one checkpoint on one corpus (or one checkpoint). A row `agrees` if every case does, `differs` if none does,
`partly` otherwise, and is `missing` without cases. A number agrees if the published one lies in our 95% interval;
rules for orders and shapes are stated where they are applied.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from loopwise.report.words import percent
from loopwise.study.book import Book, matched
from loopwise.study.published import Row

FLAT = 0.01  # nats: a loss that moves by less is called flat
NEARLY_FULL = 0.10  # a saving below this is called none
ALPHA = 0.05


class Case(NamedTuple):
    """Ours in words, whether it agrees, and why not (or what to know if it does)."""

    where: str
    ours: str
    agrees: bool
    why: str = ""


class Verdict(NamedTuple):
    """One row of the table study / ours / verdict."""

    id: str
    section: str
    quantity: str
    study: str
    ours: str
    verdict: str
    sentence: str

    def to_dict(self) -> dict[str, str]:
        """JSON-ready."""
        return self._asdict()


def interval(values: Sequence[float], form: str = ".3g") -> str:
    """`6 [5, 7]` of (value, low, high)."""
    value, low, high = (format(v, form) for v in values)
    return f"{value} [{low}, {high}]"


def judge(row: Row, cases: Sequence[Case], missing: str = "") -> Verdict:
    """Put cases together."""
    good, bad = [c for c in cases if c.agrees], [c for c in cases if not c.agrees]
    ours = "; ".join(f"{c.where}: {c.ours}" for c in cases) or "not measured"
    if not cases:
        word, sentence = "missing", missing or "Nothing in this run measures it."
    elif not bad:
        word, sentence = "agrees", _because("Agrees", good)
    elif not good:
        word, sentence = "differs", _because("Differs", bad)
    else:
        word = "partly"
        sentence = f"{_because('Agrees', good)} {_because('Differs', bad)}"
    return Verdict(row.id, row.section, row.quantity, row.text, ours, word, sentence)


def _because(word: str, cases: Sequence[Case]) -> str:
    """One sentence; cases with the same reason share it."""
    reasons: dict[str, list[str]] = {}
    for case in cases:
        reasons.setdefault(case.why, []).append(case.where)
    parts = [f"{', '.join(where)}" + (f": {why}" if why else "") for why, where in reasons.items()]
    return f"{word} for " + "; ".join(parts) + "."


def loss_shape(row: Row, book: Book) -> Verdict:
    """Agrees if no pass up to the training mean raises the loss significantly and by more than a quarter of `FLAT`,
    and from there to the last depth it moves by less than `FLAT`. The level, 3.20 nats, belongs to another vocabulary
    and is not compared."""
    cases = []
    for pair in book.having("measure"):
        found = pair.records["measure"]
        rises = [i + 2 for i, step in enumerate(found["steps"]) if step[1] > 0 and step[0] > FLAT / 4]
        flat = found["change_past_mean"]
        useful = found["saturation"]["useful_depth"]
        mean = round(found["mean_depth"])
        ok = not rises and abs(flat[0]) < FLAT
        loss = found["loss_by_depth"]
        ours = f"{loss['1']:.3f} at 1, {loss[str(mean)]:.3f} at {mean}, then {flat[0]:+.4f} to {found['max_depth']}"
        why = f"no pass raises it, and it is already flat from depth {useful} on" if useful < mean else "same shape"
        if rises:
            why = f"passes {', '.join(map(str, rises))} raise it"
        elif not ok:
            why = f"it still moves by {flat[0]:+.4f} nats [{flat[1]:+.4f}, {flat[2]:+.4f}] past the mean"
        cases.append(Case(pair.name, ours, ok, why))
    return judge(row, cases)


def saturation(row: Row, book: Book) -> Verdict:
    """Agrees for a checkpoint on a corpus if the interval of its useful depth (first within 0.01 nats of the best)
    holds its training mean. Sweep records add runs with other means and seeds."""
    cases = []
    for pair in book.having("measure"):
        found = pair.records["measure"]
        useful, mean = found["saturation_by_tolerance"]["0.01"], round(found["mean_depth"])
        ok = useful[1] <= mean <= useful[2]
        side = "shallower" if useful[0] < mean else "deeper"
        cases.append(Case(pair.name, f"{interval(useful)} at mean {mean}", ok, "" if ok else f"{side} than its mean"))
    for entry in book.whole.get("sweep", {}).get("rows", []):
        ok = entry["low"] <= entry["mean"] <= entry["high"]
        where = f"{entry['source']} at mean {entry['mean']:g} ({entry['runs']} runs)"
        ours = interval((entry["depth"], entry["low"], entry["high"]))
        side = "shallower" if entry["depth"] < entry["mean"] else "deeper"
        cases.append(Case(where, ours, ok, "" if ok else f"{side} than its mean"))
    return judge(row, cases)


def successive_kl(row: Row, book: Book) -> Verdict:
    """Agrees if both our means are within a factor of ten of the published ones (another scale and vocabulary: only
    the order of magnitude can be compared)."""
    cases = []
    for pair in book.having("measure"):
        found = pair.records["measure"]["kl_by_depth"]
        if not all(d in found for d in row.values):
            continue
        ratios = {d: found[d] / v for d, v in row.values.items()}
        ok = all(abs(math.log10(max(r, 1e-30))) <= 1 for r in ratios.values())
        ours = ", ".join(f"{found[d]:.1e} at {d}" for d in row.values)
        fall = math.log10(found["2"] / max(found["16"], 1e-30))
        off = [f"{r:.2g} times the study's at {d}" for d, r in ratios.items()]
        cases.append(Case(pair.name, ours, ok, f"{', '.join(off)}; it falls by {fall:.1f} decades, the study's by 4.7"))
    return judge(row, cases)


def median(row: Row, book: Book) -> Verdict:
    """Agrees if the published median lies in our interval."""
    return _number(row, book, "median", row.values["median"], ".0f")


def tail(row: Row, book: Book) -> Verdict:
    """Agrees if the published share lies in our interval."""
    return _number(row, book, "moving_at_mean", row.values["share"], ".3f")


def _number(row: Row, book: Book, field: str, theirs: float, form: str) -> Verdict:
    cases = []
    for pair in book.having("measure"):
        values = pair.records["measure"]["settled"][field]
        ok = values[1] <= theirs <= values[2]
        side = "below" if values[2] < theirs else "above"
        cases.append(Case(pair.name, interval(values, form), ok, "" if ok else f"the interval lies {side} the study's"))
    return judge(row, cases)


def types(row: Row, book: Book) -> Verdict:
    """Agrees if whitespace (or, without any, punctuation) settles before every other type and word starts after every
    other one, both tests of the extremes significant after Holm's correction."""
    cases = []
    for pair in book.having("depths"):
        found = pair.records["depths"]["order"]
        listed, means = found["types"], found["means"]
        if len(listed) < 3:
            continue
        first = "whitespace" if "whitespace" in listed else "punctuation"
        deep = [name for name in listed if name != "other"][-1]
        sure = [t for t in found["tests"] if {t["left"], t["right"]} == {listed[0], deep}]
        ok = listed[0] == first and deep.startswith("word") and bool(sure) and sure[0]["p_holm"] < ALPHA
        ours = " < ".join(f"{name.replace('_', ' ')} {means[name]:.1f}" for name in listed)
        p = f"extremes differ with p = {sure[0]['p_holm']:.2g} after Holm" if sure else "extremes not tested"
        why = p if ok else f"{listed[0].replace('_', ' ')} is earliest and {deep.replace('_', ' ')} deepest, {p}"
        cases.append(Case(pair.name, ours, ok, why))
    return judge(row, cases)


def reversal(row: Row, book: Book) -> Verdict:
    """Agrees if among the corpora of a checkpoint one has digits significantly earlier than words and another one
    significantly later."""
    signs: dict[str, list[tuple[str, float, float]]] = {}
    for pair in book.having("depths"):
        for test in pair.records["depths"]["order"]["tests"]:
            if (test["left"], test["right"]) == ("digits", "word"):
                signs.setdefault(pair.checkpoint, []).append((pair.corpus, test["difference"], test["p_holm"]))
    cases = []
    for name, found in signs.items():
        if len(found) < 2:
            continue
        sure = [(corpus, gap) for corpus, gap, p in found if p < ALPHA]
        ok = any(gap < 0 for _, gap in sure) and any(gap > 0 for _, gap in sure)
        ours = ", ".join(f"{corpus} {gap:+.2f} (p {p:.2g})" for corpus, gap, p in found)
        why = "" if ok else "digits and words keep their order in every corpus where they differ significantly"
        cases.append(Case(name, f"digits minus words: {ours}", ok, why))
    return judge(
        row, cases, "It needs two corpora with digits and words in both, such as stories and educational text."
    )


def a1(row: Row, book: Book) -> Verdict:
    """Agrees if A1, decoded live, saves passes against the training mean at matched quality with an interval that
    holds the published 38% or lies above it. Replay, and the best fixed depth, are stated beside it."""
    cases = []
    for pair in book.having("allocation"):
        found = pair.records["allocation"]
        live, replay = matched(found, "kl", "live"), matched(found, "kl", "replay")
        best = found["best_fixed"]["depth"]
        ours = f"live {_passes(live)}, replay {_passes(replay)}, best fixed depth {best} of {found['reference_depth']}"
        ok = live is not None and live["saving_ci"][1] >= row.values["saving"]
        cases.append(Case(pair.name, ours, ok, _a1_why(live, replay, ok)))
    return judge(row, cases)


def _a1_why(live: dict[str, Any] | None, replay: dict[str, Any] | None, ok: bool) -> str:
    if live is None:
        return "no threshold matches live"
    versus = f"against the best fixed depth it saves {percent(live['saving_vs_best_fixed'])} of the passes"
    cost = f"and computes {live['cost_ratio_vs_best_fixed']:.2f} times as much, readouts included"
    if ok:
        return f"{versus} {cost}"
    if replay is not None and replay["saving"] - live["saving"] > NEARLY_FULL:
        return f"replay, which the study used, saves {percent(replay['saving'])}; live it is {percent(live['saving'])}"
    return f"its saving is smaller; {versus} {cost}"


def _passes(found: dict[str, Any] | None) -> str:
    if found is None:
        return "never matches"
    low, high = found["saving_ci"]
    return f"{found['mean_depth']:.2f} passes ({percent(found['saving'])} fewer [{percent(low)}, {percent(high)}])"


def a1_shallow(row: Row, book: Book) -> Verdict:
    """Agrees if, live, A1's loss lies below that of uniform depth at the same mean depth (interpolated) at every point
    of its frontier at or below half the reference depth, with intervals that leave out zero at one of them at least."""
    cases = []
    for pair in book.having("allocation"):
        found = pair.records["allocation"]
        limit = found["reference_depth"] / 2
        here = [r for r in found["a1_against_a0"] if r["mode"] == "live" and r["mean_depth"] <= limit]
        replay = [r for r in found["a1_against_a0"] if r["mode"] == "replay" and r["mean_depth"] <= limit]
        if not (here or replay):
            continue
        shown = here or replay
        ok = bool(here) and all(r["difference"] < 0 for r in here) and any(r["ci"][1] < 0 for r in here)
        gap = sum(r["difference"] for r in shown) / len(shown)
        mode = "live" if here else "replay only"
        ours = f"{gap:+.4f} nats against A0 at equal mean depth ({mode}, {len(shown)} points)"
        cases.append(Case(pair.name, ours, ok, "" if ok else _shallow_why(here, replay)))
    return judge(row, cases)


def _shallow_why(here: list[dict[str, Any]], replay: list[dict[str, Any]]) -> str:
    if not here:
        return "no point of the live frontier is that shallow"
    better = replay and sum(r["difference"] for r in replay) < 0
    if better and sum(r["difference"] for r in here) > 0:
        return "better in replay, worse live: leaving early changes what later tokens read"
    return "uniform depth is at least as good there"


def a2(row: Row, book: Book) -> Verdict:
    """Agrees if A2's saving, live, has an interval that reaches below `NEARLY_FULL`, or it never matches."""
    cases = []
    for pair in book.having("allocation"):
        found = pair.records["allocation"]
        live, replay = matched(found, "probe", "live"), matched(found, "probe", "replay")
        if live is None and replay is None and not any(p["signal"] == "probe" for p in found["policies"]):
            continue
        ok = live is None or live["saving_ci"][0] < NEARLY_FULL
        pooled = (found.get("probe") or {}).get("pooled") or {}
        auc = f"; AUC {pooled['auc']:.2f}" if pooled.get("auc") else ""
        ours = f"live {_passes(live)}, replay {_passes(replay)}{auc}"
        cases.append(Case(pair.name, ours, ok, "" if ok else "it does save passes here"))
    return judge(row, cases, "There was no text to train the probe on.")


def wall_clock(row: Row, book: Book) -> Verdict:
    """Agrees with `if depth-wise batching existed` if an engine record realises a ratio within the published range or
    above it; the published 0% is what masking gives."""
    found = book.whole.get("engine")
    if not found:
        return judge(row, [], book.missing.get("engine", ""))
    cases = []
    for entry in found["ratios"]:
        ok = entry["value"] >= row.values["low"]
        of = f", {percent(entry['value'] / entry['bound'])} of its bound" if entry.get("bound") else ""
        cases.append(Case(entry["name"], f"{entry['value']:.2f} times{of}", ok,
                          "" if ok else "realised by a working engine, but below the study's estimate"))  # fmt: skip
    return judge(row, cases)


def plain(row: Row, book: Book) -> Verdict:
    """Rows that state a fact about the study: what this run has instead."""
    seeds = max((len(v.get("seeds", [])) for v in book.whole.get("joint", {}).get("arms", {}).values()), default=0)
    runs = sum(r["runs"] for r in book.whole.get("sweep", {}).get("rows", []))
    ours = f"{len(book.checkpoints)} checkpoint(s), {len({p.corpus for p in book.pairs})} corpora"
    ours += f", {runs} sweep runs" if runs else ""
    ours += f", {seeds} seeds of each small model trained here" if seeds else ""
    sentence = "The same limit holds here: small models; intervals speak of text, not of training again."
    return Verdict(row.id, row.section, row.quantity, row.text, ours, "agrees", sentence)


RULES: dict[str, Callable[[Row, Book], Verdict]] = {
    "loss_shape": loss_shape,
    "saturation": saturation,
    "kl": successive_kl,
    "median": median,
    "tail": tail,
    "types": types,
    "reversal": reversal,
    "a1": a1,
    "a1_shallow": a1_shallow,
    "a2": a2,
    "wall_clock": wall_clock,
    "limits": plain,
}


def verdicts(rows: Sequence[Row], book: Book) -> list[Verdict]:
    """A verdict for every published row."""
    return [
        RULES[row.id](row, book) if row.id in RULES else judge(row, [], book.missing.get(row.id, "")) for row in rows
    ]
