"""Verdict rules for sections 1 to 3: loss, saturation, successive change, convergence depth, order of types."""

import math

from loopwise.study.book import Book
from loopwise.study.published import Row
from loopwise.study.verdict import Case, Verdict, interval, judge

FLAT = 0.01  # nats: a loss that moves by less is called flat
ALPHA = 0.05


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
        why = "" if ok else f"{side} than its mean{_task(book, pair.checkpoint)}"
        cases.append(Case(pair.name, f"{interval(useful)} at mean {mean}", ok, why))
    for entry in book.whole.get("sweep", {}).get("rows", []):
        if entry["sampler"] == "fixed":  # the hypothesis is about sampled depths
            continue
        ok = entry["low"] <= entry["mean"] <= entry["high"]
        where = f"sweep, {entry['source']} at mean {entry['mean']:g} ({entry['runs']} runs)"
        ours = interval((entry["depth"], entry["low"], entry["high"]))
        side = "shallower" if entry["depth"] < entry["mean"] else "deeper"
        cases.append(Case(where, ours, ok, "" if ok else f"{side} than its mean"))
    return judge(row, cases)


def _task(book: Book, checkpoint: str) -> str:
    """The control: with the weights fixed, depth follows the difficulty of the answer."""
    rows = book.checkpoints[checkpoint].get("difficulty", [])
    if len(rows) < 2:
        return ""
    first, last = rows[0], rows[-1]
    return (
        f"; with the same weights puzzle answers settle at {first['depth']:.1f} if they need {first['k']} lookup, at "
        f"{last['depth']:.1f} if they need {last['k']}, so depth follows the task rather than the mean"
    )


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
        found = pair.records["measure"]
        useful, mean = found["saturation"]["useful_depth"], round(found["mean_depth"])
        why = f"our interval lies {side}; the loss of this text is flat from depth {useful} on, of a mean of {mean}"
        cases.append(Case(pair.name, interval(values, form), ok, "" if ok else why))
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
