"""Colours: a sequential scale for depth and fixed hues for policies, both safe for colour-blind readers.

The depth scale is drawn in OKLCH (Ottosson 2020) with lightness strictly monotone in depth, so it also survives grey
printing: on a light page shallow is pale yellow and deep is navy; on a dark page shallow is near black and deep is
pale. Either way shallow sits near the page and deep stands out. Policy hues are those of Okabe and Ito (2008).
"""

import math
from typing import NamedTuple

INK, SOFT, RULE, PAPER = "#1b1f24", "#57606a", "#d8dee4", "#ffffff"

VERMILLION, BLUE, GREEN, ORANGE, PURPLE, SKY = "#D55E00", "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"


class Style(NamedTuple):
    """How a policy is drawn: colour, marker, and the CSS class that lets the page adjust it to its theme."""

    colour: str
    marker: str
    css: str


STYLES: dict[str, Style] = {
    "depth": Style(SOFT, "square", "s-a0"),
    "kl": Style(VERMILLION, "circle", "s-kl"),
    "probe": Style(BLUE, "diamond", "s-probe"),
    "rel_change": Style(GREEN, "triangle", "s-rel"),
    "accel": Style(PURPLE, "down", "s-accel"),
    "cosine": Style(SKY, "triangle", "s-cos"),
    "entropy": Style(ORANGE, "down", "s-ent"),
    "kl_prev": Style(VERMILLION, "diamond", "s-kl"),
    "margin": Style(ORANGE, "square", "s-ent"),
    "argmax": Style(SKY, "diamond", "s-cos"),
    "oracle": Style(INK, "star", "s-oracle"),
}
OTHER = Style(PURPLE, "circle", "s-accel")


class Shade(NamedTuple):
    """Background and text colour for one depth."""

    back: str
    text: str


def depth_shade(depth: float, deep: int, *, dark: bool) -> Shade:
    """Shade of a depth: linear from 1 to `deep`, and the same beyond. `deep` is where a run's tokens have settled."""
    at = min(max((depth - 1) / max(deep - 1, 1), 0.0), 1.0)
    hue = 105 + 165 * at if not dark else 285 - 185 * at
    lightness = 0.975 - 0.66 * at if not dark else 0.29 + 0.63 * at
    chroma = 0.045 + 0.30 * at * (1 - at) + 0.055 * at
    back = oklch(lightness, chroma, hue)
    return Shade(back, max(("#000000", "#ffffff"), key=lambda text: contrast(back, text)))


def oklch(lightness: float, chroma: float, hue: float) -> str:
    """`#rrggbb` of an OKLCH colour (hue in degrees); chroma is lowered until the colour exists in sRGB."""
    rgb = _linear(lightness, chroma, hue)
    while chroma > 0 and not all(-1e-4 <= v <= 1.0001 for v in rgb):
        chroma = max(0.0, chroma - 0.005)
        rgb = _linear(lightness, chroma, hue)
    return "#" + "".join(f"{round(255 * _encode(min(max(v, 0.0), 1.0))):02x}" for v in rgb)


def luminance(colour: str) -> float:
    """Relative luminance (WCAG) of `#rrggbb`."""
    r, g, b = (_decode(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    """WCAG contrast ratio of two colours, 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _linear(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )


def _encode(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055


def _decode(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
