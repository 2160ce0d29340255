"""The report of a study: one HTML file, drawn from records alone; it loads nothing, and its policy forbids it to."""

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from importlib import resources

from loopwise.report.figure import table
from loopwise.report.svg import el, escape
from loopwise.report.theme import theme_css
from loopwise.study.published import Published
from loopwise.study.section import Section
from loopwise.study.verdict import Verdict

CSS = """
.verdict{font-weight:650}.v-agrees{color:var(--good)}.v-differs{color:var(--bad)}.v-partly{color:var(--ink)}
.v-missing{color:var(--muted)}
table.verdicts td,table.verdicts th{white-space:normal;text-align:left;min-width:9em}
table.verdicts td:nth-child(3){min-width:18em}table.verdicts td:nth-child(5){min-width:18em}
table.verdicts td:nth-child(4){min-width:5em}
@media (max-width:720px){table.verdicts thead{display:none}
 table.verdicts tr{display:block;border-bottom:1px solid var(--line);padding:8px 0}
 table.verdicts th,table.verdicts td{display:block;border:0;padding:2px 0;min-width:0!important}
 table.verdicts td[data-k]::before{content:attr(data-k) ": ";color:var(--muted);font-weight:400}}
"""


def page(
    title: str,
    about: Sequence[tuple[str, str]],
    study: Published,
    found: Sequence[Verdict],
    sections: Sequence[Section],
) -> str:
    """The whole document."""
    script = (resources.files("loopwise.report") / "page.js").read_text("utf-8")
    names = [("verdicts", "Verdicts"), *((s.key, s.title) for s in sections)]
    nav = el("nav", el("div", *(el("a", escape(name), href=f"#{key}") for key, name in names)), aria_label="sections")
    parts = [_verdicts(study, found), *(_section(i, s, found) for i, s in enumerate(sections, 1)), _foot(about)]
    tip = el("div", "", id="tip", hidden="", role="presentation")
    body = el("body", _top(title, about), nav, el("main", *parts), tip, f"<script>{script}</script>")
    return "<!doctype html>\n" + el("html", _head(title, script), body, lang="en") + "\n"


def _head(title: str, script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    css = (resources.files("loopwise.report") / "page.css").read_text("utf-8")
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=rules),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("link", rel="icon", href="data:,"),
        el("title", escape(f"{title} · Loopwise study")),
        f"<style>{theme_css(8, 8)}{css}{CSS}</style>",
    )


def _top(title: str, about: Sequence[tuple[str, str]]) -> str:
    bar = el(
        "div",
        el("span", "Loopwise study", class_="brand"),
        el("button", "Dark page", id="theme", type="button", hidden=""),
        class_="bar",
    )
    facts = "".join(el("li", f"{escape(name)} ", el("b", escape(value))) for name, value in about[:5])
    return el("header", bar, el("h1", escape(title)), el("ul", facts, class_="meta"), class_="top")


def _verdicts(study: Published, found: Sequence[Verdict]) -> str:
    counts = Counter(v.verdict for v in found)
    words = (
        f"{counts['agrees']} of {len(found)} published rows agree, {counts['partly']} in part, {counts['differs']} "
        f"differ, {counts['missing']} could not be measured in this run. "
    )
    words += (
        f"The study: {study.title} ({study.source}); {study.setting}. Verdicts are computed by fixed rules from the "
        "records."
    )
    rows = "".join(_row(v) for v in found)
    head = "".join(el("th", name, scope="col") for name in ("quantity", "the study", "ours", "verdict", "why"))
    grid = el("table", el("thead", el("tr", head)), el("tbody", rows), class_="verdicts", aria_label="verdicts")
    inner = el("p", escape(words), class_="lead") + el(
        "div", grid, class_="scroll", tabindex="0", role="region", aria_label="verdicts"
    )
    return el(
        "section",
        el("h2", "The study, ours, verdict", id="verdicts-h"),
        inner,
        id="verdicts",
        aria_labelledby="verdicts-h",
    )


def _row(v: Verdict) -> str:
    ours = "<br>".join(escape(part) for part in v.ours.split("; "))
    word = el("span", escape(v.verdict), class_=f"verdict v-{v.verdict}")
    cells = [
        el("td", escape(v.study), data_k="the study"),
        el("td", ours, data_k="ours"),
        el("td", word, data_k="verdict"),
        el("td", escape(v.sentence), data_k="why"),
    ]
    return el("tr", el("th", escape(v.quantity), scope="row"), *cells)


def _section(number: int, section: Section, found: Sequence[Verdict]) -> str:
    parts = [el("p", escape(text), class_="lead") for text in section.lead]
    for v in found:
        if v.id in section.rows:
            word = el("span", escape(v.verdict), class_=f"verdict v-{v.verdict}")
            parts.append(
                el(
                    "p",
                    el("b", escape(v.quantity)),
                    ". The study: ",
                    escape(v.study),
                    ". ",
                    word,
                    ". ",
                    escape(v.sentence),
                )
            )
    parts += [el("p", escape(text), class_="missing") for text in section.missing]
    if section.figures:
        parts.append(el("div", *(figure.html() for figure in section.figures), class_="pair"))
    for one in section.tables:
        if one.rows:
            parts.append(table(one.header, one.rows, caption=one.caption, text=one.words))
    heading = el("h2", f"{number}. {escape(section.title)}", id=f"{section.key}-h")
    return el("section", heading, *parts, id=section.key, aria_labelledby=f"{section.key}-h")


def _foot(about: Sequence[tuple[str, str]]) -> str:
    facts = "".join(el("dt", escape(name)) + el("dd", escape(value)) for name, value in about)
    words = (
        "Drawn from records alone. Every figure is also in figures/ as SVG with its data as CSV, every table in "
        "paper/ "
        "as LaTeX. Losses are in nats per token."
    )
    return el("footer", el("p", words), el("details", el("summary", "Where this comes from"), el("dl", facts), open=""))
