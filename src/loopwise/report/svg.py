"""Hand-written SVG: elements as strings. Text always passes through `escape`, so measured text cannot become markup.

Colours are presentation attributes, which CSS overrides: the same markup is a finished light figure on its own and
follows the page's theme when inlined, through the class beside each colour.
"""

import math
from collections.abc import Sequence

from loopwise.report.palette import INK, PAPER, RULE, SOFT

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
CHAR_WIDTH = 0.56  # mean advance of a sans-serif letter, in ems
VOID = frozenset(("path", "line", "rect", "circle", "meta", "link", "input", "br"))  # written without an end tag


def escape(text: object) -> str:
    """Make text safe in HTML and XML content and attributes; control characters that XML forbids become U+FFFD."""
    kept = "".join(c if c in "\t\n" or (" " <= c and c not in "\x7f\ufffe\uffff") else "\ufffd" for c in str(text))
    kept = kept.encode("utf-8", "replace").decode("utf-8")
    for bad, good in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        kept = kept.replace(bad, good)
    return kept


def el(tag: str, *inner: str, **attributes: object) -> str:
    """One element. Attribute names have `_` for `-` (and `class_` for `class`); None leaves an attribute out."""
    parts = [tag]
    for name, value in attributes.items():
        if value is not None:
            shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
            parts.append(f'{name.rstrip("_").replace("_", "-")}="{escape(shown)}"')
    return f"<{' '.join(parts)}/>" if tag in VOID else f"<{' '.join(parts)}>{''.join(inner)}</{tag}>"


def label(
    x: float, y: float, text: str, *, size: float = 12, anchor: str = "start", soft: bool = True, **more: object
) -> str:
    """A line of text."""
    colour, css = (SOFT, "soft") if soft else (INK, "ink")
    return el(
        "text",
        escape(text),
        x=float(x),
        y=float(y),
        font_size=float(size),
        text_anchor=anchor,
        fill=colour,
        class_=css,
        **more,
    )


def width_of(text: str, size: float = 12) -> float:
    """Estimated width of a text in pixels."""
    return CHAR_WIDTH * size * len(text)


def path(points: Sequence[tuple[float, float]]) -> str:
    """`d` of a polyline."""
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def marker(shape: str, x: float, y: float, size: float) -> str:
    """`d` of a marker of about `size` pixels across, centred at (x, y)."""
    if shape == "circle":
        r = size / 2
        return f"M{x - r:.1f},{y:.1f}a{r},{r} 0 1 0 {size},0a{r},{r} 0 1 0 {-size},0Z"
    corners = _CORNERS[shape]
    return path([(x + u * size, y + v * size) for u, v in corners]) + "Z"


def _star() -> list[tuple[float, float]]:
    turns = [(math.radians(36 * i - 90), 0.66 if i % 2 == 0 else 0.28) for i in range(10)]
    return [(r * math.cos(a), r * math.sin(a)) for a, r in turns]


_CORNERS: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.45, -0.45), (0.45, -0.45), (0.45, 0.45), (-0.45, 0.45)],
    "diamond": [(0, -0.62), (0.62, 0), (0, 0.62), (-0.62, 0)],
    "triangle": [(0, -0.58), (0.58, 0.46), (-0.58, 0.46)],
    "down": [(0, 0.58), (0.58, -0.46), (-0.58, -0.46)],
    "star": _star(),
}


def document(body: str, *, width: float, height: float, title: str, desc: str, name: str, standalone: bool) -> str:
    """The `<svg>` element with title and description; a standalone one has its own paper and fonts."""
    paper = el("rect", width=width, height=height, fill=PAPER) if standalone else ""
    return el(
        "svg",
        el("title", escape(title), id=f"{name}-t"),
        el("desc", escape(desc), id=f"{name}-d"),
        paper,
        body,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}" if standalone else None,
        height=f"{height:g}" if standalone else None,
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
        font_family=FONT,
    )


def rule_line(
    x1: float, y1: float, x2: float, y2: float, *, colour: str = RULE, css: str = "rule", **more: object
) -> str:
    """A straight thin line."""
    more = {"stroke_width": 1, **more}
    return el("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), stroke=colour, class_=css, **more)
