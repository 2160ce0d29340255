"""Colours of the page as CSS variables, light and dark, and one class per depth."""

from loopwise.report.palette import BLUE, GREEN, INK, ORANGE, PAPER, PURPLE, RULE, SKY, SOFT, VERMILLION, depth_shade

LIGHT: dict[str, str] = {
    "paper": PAPER, "ink": INK, "muted": SOFT, "line": RULE, "grid": "#e6eaee", "card": "#f8f9fb", "soft-bg": "#eef1f4",
    "link": "#0a58a8", "focus": "#0b6bcb", "edge": "#0000001f", "good": "#0a6b4f", "bad": "#b23a00",
    "a0": SOFT, "kl": VERMILLION, "probe": BLUE, "rel": GREEN, "accel": PURPLE, "cos": SKY, "ent": ORANGE,
}  # fmt: skip
DARK: dict[str, str] = {
    "paper": "#101418", "ink": "#e8ebee", "muted": "#9aa5b1", "line": "#2b333b", "grid": "#222a31", "card": "#171c21",
    "soft-bg": "#1f262d", "link": "#7ab8ff", "focus": "#5aa9f8", "edge": "#ffffff2e", "good": "#3ecf9e",
    "bad": "#ff9a62", "a0": "#9aa5b1", "kl": "#f07f35", "probe": "#4aa3df", "rel": "#27c497", "accel": "#dc93b8",
    "cos": "#7cc8f2", "ent": "#efb53a",
}  # fmt: skip


def theme_css(max_depth: int, deep: int) -> str:
    """Variables for both themes (system preference, or the reader's choice in `data-theme`) and `.d1` … `.dN`.

    `deep` is the depth from which on all have the same shade.
    """
    light, dark = _block(LIGHT, deep, False), _block(DARK, deep, True)
    classes = "".join(_classes(d, min(d, deep)) for d in range(1, max_depth + 1))
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"@media print{{:root:root:root{{color-scheme:light;{light}}}}}{classes}"
    )


def _classes(depth: int, shade: int) -> str:
    """`.dN` colours text, `.cN` the curve of a chart."""
    back, text = f"var(--b{shade})", f"var(--f{shade})"
    line = f".c{depth}:is(.line,.dot,.hollow){{stroke:{back}}}.c{depth}:is(.dot,.fill){{fill:{back}}}"
    return f".d{depth}{{background:{back};color:{text}}}{line}"


def _block(colours: dict[str, str], deep: int, dark: bool) -> str:
    shades = [(d, depth_shade(d, deep, dark=dark)) for d in range(1, deep + 1)]
    parts = [f"--{name}:{value}" for name, value in colours.items()]
    parts += [f"--b{d}:{shade.back};--f{d}:{shade.text}" for d, shade in shades]
    return ";".join(parts)
