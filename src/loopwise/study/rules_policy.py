"""Verdict rules for sections 4 to 7: policies, reading against learning, wall clock, ceiling."""

from typing import Any

from loopwise.report.words import percent
from loopwise.study.book import Book, matched
from loopwise.study.published import Row
from loopwise.study.verdict import Case, Verdict, judge

NEARLY_FULL = 0.10  # a saving below this is called none
REALISED = 0.9  # share of the FLOP bound from which on an estimate counts as realised
COLLAPSED = 0.95  # share of tokens at one depth from which on a joint model has collapsed


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
    if sum(r["difference"] for r in here) < 0:
        return "better on average, but not at every point of the frontier"
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
        auc = f", AUC {pooled['auc']:.2f}" if pooled.get("auc") else ""
        ours = f"live {_passes(live)}, replay {_passes(replay)}{auc}"
        kl = matched(found, "kl", "live")
        behind = f"; it needs {live['mean_depth'] - kl['mean_depth']:+.2f} passes against A1" if live and kl else ""
        best = found["best_fixed"]["depth"]
        why = "" if ok else f"it does save passes, since this text needs few (best fixed depth {best}){behind}"
        cases.append(Case(pair.name, ours, ok, why))
    return judge(row, cases, "There was no text to train the probe on.")


def wall_clock(row: Row, book: Book) -> Verdict:
    """The study realises 0% with masking and estimates the speed-up that depth-wise batching would give. Agrees for a
    benchmark if the engine realises at least `REALISED` of its FLOP bound: then the estimate is what a clock shows."""
    found = book.whole.get("engine")
    if not found:
        return judge(row, [], book.missing.get("engine", book.missing.get("efficiency", "")))
    cases = []
    for entry in found["ratios"]:
        share = entry["value"] / entry["bound"]
        at = f" at {entry['mean_depth']:.2f} passes" if entry.get("mean_depth") else ""
        ours = f"{entry['value']:.2f} times{at}, bound {entry['bound']:.2f}"
        why = f"a working engine realises {percent(share)} of the bound"
        cases.append(Case(entry["name"], ours, share >= REALISED, why))
    return judge(row, cases)


def plain(row: Row, book: Book) -> Verdict:
    """Rows that state a fact about the study: what this run has instead."""
    seeds = max((len(v.get("seeds", [])) for v in book.whole.get("joint", {}).get("arms", {}).values()), default=0)
    runs = book.whole.get("sweep", {}).get("runs", 0)
    ours = f"{len(book.checkpoints)} checkpoint(s), {len({p.corpus for p in book.pairs})} corpora"
    ours += f", {runs} sweep runs" if runs else ""
    ours += f", {seeds} seeds of each small model trained here" if seeds else ""
    spoken = "intervals speak of text, not of training again" + (", but for those of the sweep" if runs else "")
    sentence = f"The same limit holds here: small models; {spoken}."
    return Verdict(row.id, row.section, row.quantity, row.text, ours, "agrees", sentence)


def reading(row: Row, book: Book) -> Verdict:
    """Agrees for a checkpoint on a corpus if, live at matched quality, the best signal that reads saves more passes
    than the best learned one (A2, a PonderNet head), its interval's lower end above the learned one's estimate. A
    jointly trained model agrees if it collapses: 95% of tokens at one depth in every seed."""
    cases = []
    for pair in book.having("halting"):
        found, learned = pair.records["allocation"], pair.records["halting"]
        if not learned["policies"]:
            continue
        read = _best([(n, matched(found, n, "live")) for n in ("kl", "rel_change", "accel")])
        learn = _best([("A2", matched(found, "probe", "live")), ("PonderNet head", matched(learned, "ponder", "live"))])
        if read is None:
            cases.append(Case(pair.name, "no reading signal matches", False, "none of them matches live"))
            continue
        ours = f"{read[0]} {read[1]['mean_depth']:.2f} passes, "
        ours += f"{learn[0]} {learn[1]['mean_depth']:.2f}" if learn else "no learned exit matches"
        ok = learn is None or read[1]["saving_ci"][0] > learn[1]["saving"]
        less = learn is not None and read[1]["mean_depth"] < learn[1]["mean_depth"]
        why = "reading needs fewer passes" if ok or less else "learning needs no more passes than reading"
        cases.append(
            Case(pair.name, ours, ok, why + ("" if ok or not less else ", but the intervals do not exclude luck"))
        )
    return judge(row, cases + _joint(book), book.missing.get("joint", ""))


def _best(found: list[tuple[str, dict[str, Any] | None]]) -> tuple[str, dict[str, Any]] | None:
    kept = [(name, one) for name, one in found if one is not None]
    return min(kept, key=lambda entry: entry[1]["mean_depth"]) if kept else None


def _joint(book: Book) -> list[Case]:
    arms, cases = book.whole.get("joint", {}).get("arms", {}), []
    for arm, runs in arms.items():
        if not arm.startswith(("ponder", "tuned", "router")):
            continue
        seeds = runs["seeds"]
        largest, depth = [max(run["share"]) for run in seeds], [run["mean_depth"] for run in seeds]
        ok = all(share >= COLLAPSED for share in largest)
        ours = f"mean depth {', '.join(f'{d:.2f}' for d in depth)}, {percent(min(largest))} of tokens at one depth"
        what = "it collapses to one depth" if ok else "it does not collapse"
        cases.append(Case(f"{arm} trained here", ours, ok, what + _worth(arm, arms)))
    return cases


def _worth(arm: str, arms: dict[str, Any]) -> str:
    """The control: what depth is worth to a model trained without halting (to the tuned one: to itself)."""
    own = arm.startswith("tuned") or "random" not in arms
    runs = arms[arm if own else "random"]["seeds"]
    gain = sum(run["loss_by_depth"][0] - min(run["loss_by_depth"]) for run in runs) / len(runs)
    whose = "its own passes are" if own else "to the model trained without halting depth is"
    return f" ({whose} worth {gain:.3f} nats in all)"


def ceiling(row: Row, book: Book) -> Verdict:
    """Agrees if the ceiling needs fewer bits per byte than the checkpoint, its interval below the checkpoint's."""
    cases = []
    for pair in book.having("ceiling"):
        found = pair.records["ceiling"]
        last = list(found["ours"])[-1]
        ours, top = found["ours"][last], found["ceiling"]
        said = f"SmolLM2 {top[0]:.3f} bits per byte [{top[1]:.3f}, {top[2]:.3f}], ours {ours[0]:.3f} at depth {last}"
        ok = top[2] < ours[1]
        why = f"ours needs {ours[0] / top[0]:.2f} times the ceiling's bits"
        if not ok:
            why += ": this text is closer to what ours was trained on than to what SmolLM2 read"
        cases.append(Case(pair.name, said, ok, why))
    return judge(row, cases, book.missing.get("judge", ""))
