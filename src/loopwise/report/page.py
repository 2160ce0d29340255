"""The page: one HTML file with everything in it. It loads nothing, and its policy forbids it to.

The content security policy allows the page's own script by hash and nothing else, so that text which was measured
could not run or fetch anything even if escaping failed.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources

from loopwise.report.figure import Figure, table
from loopwise.report.figures import figures
from loopwise.report.lens import Lens, lens_html, ramp, token_html
from loopwise.report.run import Run
from loopwise.report.summary import beside_study, sentences, tiles
from loopwise.report.svg import el, escape
from loopwise.report.tables import bounds_note, policy_table, type_table
from loopwise.report.theme import theme_css

HINT = (
    "Each token is coloured by how many core passes it took to predict it. Drag the threshold: exit depths are "
    "recomputed from "
    "the recorded curves (replay). Point at a token, or press Tab and the arrow keys, to see its curves."
)


def page(run: Run) -> str:
    """The whole document."""
    every = figures(run)
    sections = [
        ("summary", "Summary", _summary(run)),
        ("lens", "Depth lens", _lens(run)),
        ("loss", "Loss and change", _figures(every, ("loss_by_depth", "change_by_depth"), "measure")),
        ("convergence", "Convergence", _convergence(run, every)),
        ("policies", "Policies", _figures(every, ("frontier_depth", "frontier_compute"), "allocate")),
        ("cost", "Cost", _cost(run, every)),
        ("difficulty", "Difficulty", _difficulty(every)),
        ("sample", "Sample", _sample(run)),
    ]
    script = _asset("page.js")
    body = "".join((_top(run), _nav(sections), el("main", *(_section(*s) for s in sections), _foot(run))))
    tip = el("div", "", id="tip", hidden="", role="presentation")
    html = el("html", _head(run, script), el("body", body, tip, f"<script>{script}</script>"), lang="en")
    return "<!doctype html>\n" + html + "\n"


def _asset(name: str) -> str:
    return (resources.files("loopwise.report") / name).read_text("utf-8")


def _head(run: Run, script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=rules),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="generator", content="loopwise report"),
        el("link", rel="icon", href="data:,"),
        el("title", escape(f"{run.title} · Loopwise report")),
        f"<style>{theme_css(run.max_depth, run.deep)}{_asset('page.css')}</style>",
    )


def _top(run: Run) -> str:
    bar = el(
        "div",
        el("span", "Loopwise report", class_="brand"),
        el("button", "Dark page", id="theme", type="button", hidden=""),
        class_="bar",
    )
    shown = [(name, value.rpartition("; ")[2].partition(" (")[0]) for name, value in run.about[:5]]
    facts = "".join(el("li", f"{escape(name)} ", el("b", escape(value))) for name, value in shown)
    return el("header", bar, el("h1", escape(run.title)), el("ul", facts, class_="meta"), class_="top")


def _nav(sections: Sequence[tuple[str, str, str]]) -> str:
    return el(
        "nav", el("div", *(el("a", escape(name), href=f"#{key}") for key, name, _ in sections)), aria_label="sections"
    )


def _section(key: str, name: str, inner: str) -> str:
    return el("section", el("h2", escape(name), id=f"{key}-h"), inner, id=key, aria_labelledby=f"{key}-h")


def missing(what: str, remedy: str) -> str:
    """The line that stands where a record is absent."""
    return el("p", escape(f"No {what} in this run: {remedy}."), class_="missing")


_REMEDY = {
    "measure": ("measurement", "run 'loopwise measure' into this folder"),
    "allocate": ("allocation", "run 'loopwise allocate' into this folder"),
}


def _figures(every: Mapping[str, Figure], names: Sequence[str], record: str) -> str:
    shown = [every[name].html() for name in names if name in every]
    return el("div", *shown, class_="pair") if shown else missing(*_REMEDY[record])


def _summary(run: Run) -> str:
    if not (run.measure or run.allocation):
        return missing("measurement or allocation", "run 'loopwise measure' and 'loopwise allocate' into this folder")
    cards = []
    for one in tiles(run.measure, run.allocation):
        inner = (
            el("div", escape(one.name), class_="k"),
            el("div", escape(one.value), class_="v"),
            el("div", escape(one.note), class_="n"),
        )
        cards.append(el("div", *inner, class_=f"tile {one.mood}".strip()))
    words = "".join(el("p", escape(text), class_="lead") for text in sentences(run.measure, run.allocation))
    rows = beside_study(run.measure, run.allocation)
    study = (
        "Beside the study (Per-Token Fixed-Point Convergence in Depth-Recurrent Transformers, arXiv "
        "2607.14427; 135M parameters)"
    )
    beside = table(("quantity", "the study", "here"), rows, caption=study, text=(1, 2)) if rows else ""
    warning = el("p", escape(run.warning), class_="missing") if run.warning else ""
    return warning + el("div", *cards, class_="tiles") + words + beside


def _lens(run: Run) -> str:
    if run.lens is None:
        return missing("recorded passages", "run 'loopwise measure' into this folder")
    return el("p", escape(HINT)) + ramp(run.deep, run.max_depth) + lens_html(_begin(run.lens, run))


def _begin(lens: Lens, run: Run) -> Lens:
    """Start each slider where that policy matched the reference, if an allocation says where."""
    if run.allocation is None:
        return lens
    found = {name: run.allocation.policy(name, "replay") for name in lens.signals}
    starts = {n: p.matched.threshold for n, p in found.items() if p and p.matched and p.matched.threshold}
    return replace(lens, starts={**lens.starts, **starts})


def _convergence(run: Run, every: Mapping[str, Figure]) -> str:
    if run.measure is None or "convergence_by_type" not in every:
        return missing("convergence record", _REMEDY["measure"][1])
    return el("div", every["convergence_by_type"].html(), el("div", type_table(run.measure)), class_="pair")


def _cost(run: Run, every: Mapping[str, Figure]) -> str:
    if run.allocation is None:
        return missing(*_REMEDY["allocate"])
    chart, note = every["savings"].html() if "savings" in every else "", bounds_note(run.allocation)
    return (el("div", chart, el("div", note), class_="pair") if chart else note) + policy_table(run.allocation)


def _difficulty(every: Mapping[str, Figure]) -> str:
    names = [name for name in every if name.startswith("accuracy_")] + ["settle_by_difficulty"]
    shown = [every[name].html() for name in names if name in every]
    return (
        el("div", *shown, class_="pair")
        if shown
        else missing("puzzles", "measure text with labelled puzzles ('loopwise demo' does)")
    )


def _sample(run: Run) -> str:
    sample = run.sample
    if sample is None:
        return missing("generated text", "'loopwise demo' writes one")
    mean = sum(sample.depths) / max(len(sample.depths), 1)
    reads = f", {sample.readouts:,} readouts" if sample.readouts is not None else ""
    words = (
        f"Generated live under {sample.policy}: {len(sample.depths):,} tokens, mean depth {mean:.2f}{reads}. "
        "The prompt is grey; "
        "each new token is coloured by the depth at which it left, in the context that earlier exits left behind."
    )
    tokens = (token_html(p, d) for p, d in zip(sample.pieces, sample.depths, strict=True))
    text = el("div", el("span", escape(sample.prompt), class_="nl"), *tokens, class_="text")
    return el("p", escape(words)) + ramp(run.deep, run.max_depth) + text


def _foot(run: Run) -> str:
    facts = "".join(el("dt", escape(name)) + el("dd", escape(value)) for name, value in run.about)
    words = (
        "Drawn from the run's records alone; every figure is also in figures/ as SVG and CSV. Losses are "
        "in nats per token."
    )
    return el("footer", el("p", words), el("details", el("summary", "Where this comes from"), el("dl", facts), open=""))
