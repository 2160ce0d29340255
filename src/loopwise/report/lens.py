"""The depth lens: text coloured by exit depth, and the recorded curves from which the page recomputes it.

The page needs `[tokens, depth]` values of several signals. They travel as 12-bit codes on a log scale, two in three
bytes, base64, and exit depths are computed here from the *decoded* values, so that page and Python agree by token.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from loopwise.report.svg import el, escape
from loopwise.report.words import TYPE_NAMES

LEVELS = 4094  # 12-bit codes: on the log scale neighbours are 0.7% apart
LOG_RANGE = (-9.0, 3.0)  # decades of a signal that are kept; smaller values are shown as 1e-9

NAMES: dict[str, tuple[str, str, int]] = {  # label, cost of a check in words, first depth where it is defined
    "kl": ("KL(now‖before)", "Costs a readout (coda and head) at every pass: the study's signal.", 2),
    "rel_change": ("state change", "Free: two vector norms per pass.", 2),
    "accel": ("acceleration", "Free: second difference of the state.", 3),
    "entropy": ("entropy", "Costs a readout at every pass; says unsure, not unsettled.", 1),
    "probe": ("probe", "Nearly free: a linear probe trained to foresee a change of the first choice.", 1),
}
STEPS = 240  # of the threshold slider
PASSAGE_TOKENS = 192  # of each passage, on the page


@dataclass(frozen=True, kw_only=True)
class Passage:
    """Tokens `start` to `stop` of the lens, from one held-out document."""

    title: str
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Lens:
    """Recorded curves of a few hundred tokens.

    `pieces` are the predicted tokens' text, `types` their token types, `signals` and `nll` `[tokens, depth]`. `guess`
    holds the model's first choice, as `[depth, number]` wherever it changes with depth; the number points into
    `guess_pieces`; both may be empty. `starts` is where each signal's slider begins.
    """

    pieces: Sequence[str]
    types: Sequence[str]
    passages: Sequence[Passage]
    signals: Mapping[str, Float[np.ndarray, "tokens depth"]]
    nll: Float[np.ndarray, "tokens depth"] | None
    guess: Sequence[Sequence[Sequence[int]]]
    guess_pieces: Sequence[str]
    starts: Mapping[str, float]

    @property
    def max_depth(self) -> int:
        """Depths recorded."""
        return next(iter(self.signals.values())).shape[1]


def pack(values: Float[np.ndarray, "tokens depth"], *, log: bool) -> dict[str, Any]:
    """12-bit codes, 0 for NaN, two in three bytes; see `unpack`."""
    values = np.asarray(values, dtype=np.float64)
    if log:
        lo, hi = LOG_RANGE
        shown = np.log10(np.clip(np.nan_to_num(values, nan=1.0), 10.0**lo, 10.0**hi))
    else:
        finite = values[np.isfinite(values)]
        lo, hi = (0.0, max(float(finite.max()) if finite.size else 1.0, 1e-6))
        shown = np.clip(np.nan_to_num(values, nan=0.0, posinf=hi), lo, hi)
    codes = np.where(np.isnan(values), 0, 1 + np.rint((shown - lo) / (hi - lo) * LEVELS)).astype(np.uint16).ravel()
    left, right = np.append(codes, [0] * (len(codes) % 2)).reshape(-1, 2).T.astype(np.uint16)
    triples = np.stack([left & 255, left >> 8 | (right & 15) << 4, right >> 4], axis=1).astype(np.uint8)
    return {"data": base64.b64encode(triples.tobytes()).decode(), "lo": lo, "hi": hi, "log": log}


def unpack(packed: Mapping[str, Any], depth: int) -> Float[np.ndarray, "tokens depth"]:
    """What the page sees of packed values."""
    triples = np.frombuffer(base64.b64decode(packed["data"]), dtype=np.uint8).reshape(-1, 3).astype(np.int64)
    left, right = triples[:, 0] | (triples[:, 1] & 15) << 8, triples[:, 1] >> 4 | triples[:, 2] << 4
    codes = np.stack([left, right], axis=1).ravel()
    codes = codes[: len(codes) // depth * depth].reshape(-1, depth).astype(np.float64)
    at = packed["lo"] + (codes - 1) / LEVELS * (packed["hi"] - packed["lo"])
    return np.where(codes == 0, np.nan, 10.0**at if packed["log"] else at)


def exit_depths(values: Float[np.ndarray, "tokens depth"], threshold: float, first: int) -> np.ndarray:
    """First depth, from `first` on, with a value under the threshold; the last depth if there is none."""
    depth = values.shape[1]
    below = values[:, : depth - 1] < threshold
    below[:, : first - 1] = False
    return np.where(below.any(axis=1), below.argmax(axis=1) + 1, depth)


def payload(lens: Lens) -> dict[str, Any]:
    """What the page's script reads."""
    signals = {}
    for name, values in lens.signals.items():
        label, cost, first = NAMES.get(name, (name, "", 2))
        start = lens.starts.get(name, 1e-2)
        about = {"label": label, "cost": cost, "first": first, "start": start}
        signals[name] = {**about, "range": _range(values[:, first - 1 :], start), **pack(values, log=True)}
    kinds = [TYPE_NAMES.get(kind, kind) for kind in lens.types]
    names = sorted(set(kinds))
    found: dict[str, Any] = {"depths": lens.max_depth, "signals": signals, "types": names}
    found["type"] = [names.index(kind) for kind in kinds]
    if lens.nll is not None:
        found["nll"] = pack(lens.nll, log=False)
    if lens.guess:
        found |= {"guess": lens.guess, "pieces": lens.guess_pieces}
    return found


def _range(values: Float[np.ndarray, "tokens depth"], start: float) -> list[float]:
    """Ends of the slider in log10, moved a little so that `start` is one of its steps."""
    low, high = _span(values)
    low, high = math.log10(min(low, start / 2)), math.log10(max(high, start * 2))
    step = (high - low) / STEPS
    shift = math.log10(start) - low - round((math.log10(start) - low) / step) * step
    return [low + shift, high + shift]


def _span(values: Float[np.ndarray, "tokens depth"]) -> tuple[float, float]:
    """Slider range: from where tokens leave at the first check to where nearly all stay for most of the passes."""
    shown = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    late = shown[:, min(shown.shape[1] - 1, max(2, shown.shape[1] // 2))]
    late, first = late[np.isfinite(late)], shown[:, 0][np.isfinite(shown[:, 0])]
    low = float(np.quantile(late, 0.05)) if late.size else 1e-4
    high = float(np.quantile(first, 0.98)) if first.size else 1.0
    return max(low, 10.0 ** LOG_RANGE[0]), max(high, low * 10)


def embed(value: Any) -> str:
    """JSON that is safe inside a script element, whatever text it holds."""
    found = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for bad in "<>&\u2028\u2029":
        found = found.replace(bad, f"\\u{ord(bad):04x}")
    return found


def lens_html(lens: Lens) -> str:
    """Controls, text and detail panel; works as still text without scripts."""
    data = payload(lens)
    about = next(iter(data["signals"].values()))
    decoded = unpack(about, lens.max_depth)
    exits = exit_depths(decoded, about["start"], about["first"])
    texts = "".join(_passage(lens, i, p, exits) for i, p in enumerate(lens.passages))
    close = el("button", "×", type="button", id="lens-close", class_="close", aria_label="close")
    detail = close + el("div", "", id="lens-detail")
    panel = el("aside", detail, id="lens-panel", class_="panel needs-js", hidden="", aria_label="the token pointed at")
    still = f"Coloured by exit depth under {about['label']} < {about['start']:.3g} (mean {exits.mean():.2f})."
    return "".join(
        (
            el("noscript", el("p", escape(still + " The slider needs JavaScript."), class_="missing")),
            _controls(lens, data["signals"]),
            _live(lens),
            el("div", el("div", texts, id="lens-text"), panel, class_="lens"),
            el("p", "", id="lens-say", class_="sr", aria_live="polite"),
            el("script", embed(data), type="application/json", id="lens-data"),
        )
    )


def _controls(lens: Lens, signals: Mapping[str, Any]) -> str:
    options = "".join(el("option", escape(about["label"]), value=name) for name, about in signals.items())
    titles = "".join(el("option", escape(p.title), value=str(i)) for i, p in enumerate(lens.passages))
    titles += el("option", "all passages", value="all") if len(lens.passages) > 1 else ""
    rules = el("option", "first time below", value="first") + el(
        "option", "settled for good (hindsight)", value="settled"
    )
    slider = el("input", type="range", id="lens-threshold", min="0", max=STEPS, value=STEPS // 2, step="1")
    return el(
        "div",
        el("label", "Signal", el("select", options, id="lens-signal")),
        el("label", el("span", "Threshold: ", el("b", "", id="lens-limit")), slider, class_="wide"),
        el("label", "Leave", el("select", rules, id="lens-rule")),
        el("label", "Passage", el("select", titles, id="lens-passage")),
        class_="controls needs-js",
        hidden="",
    )


def _live(lens: Lens) -> str:
    mean = el("span", "mean depth ", el("b", "", id="lens-mean"))
    loss = el("span", "loss (nats) ", el("b", "", id="lens-loss")) if lens.nll is not None else ""
    depths = range(1, lens.max_depth + 1)
    bars = "".join(el("i", "", class_=f"d{d}") for d in depths)
    ticks = "".join(el("span", str(d) if d & (d - 1) == 0 else "") for d in depths)
    return el(
        "div",
        el("p", mean, loss, el("span", f"over {len(lens.pieces):,} tokens"), class_="live"),
        el("p", "", id="lens-cost", class_="note"),
        el("div", bars, class_="hist", id="lens-hist", role="img", aria_label="tokens by exit depth"),
        el("div", ticks, class_="ticks", aria_hidden="true"),
        class_="needs-js",
        hidden="",
    )


def _passage(lens: Lens, number: int, passage: Passage, exits: np.ndarray) -> str:
    spans = [token_html(lens.pieces[i], int(exits[i]), focus=i == 0) for i in range(passage.start, passage.stop)]
    text = el("div", *spans, class_="text", role="group", aria_label=f"{passage.title}, coloured by exit depth")
    return el("div", el("h3", escape(passage.title)), text, class_="passage", data_passage=str(number))


def token_html(piece: str, depth: int, *, focus: bool | None = None) -> str:
    """One token as a coloured span; line ends are shown by a faint sign as well. `focus` None: not for the lens."""
    inner = escape(piece).replace("\n", '<span class="nl" aria-hidden="true">⏎</span>\n')
    if focus is None:
        return el("span", inner or " ", class_=f"d{depth}", data_tip=f"depth {depth}")
    return el("span", inner or " ", class_=f"t d{depth}", tabindex="0" if focus else "-1")


def ramp(deep: int, max_depth: int) -> str:
    """The colour key: every depth up to `deep`, a dozen at most."""
    every = -(-deep // 12)
    shown = [*range(1, deep, every), deep]
    name = {deep: f"{deep}+" if deep < max_depth else str(deep)}
    cells = "".join(el("span", name.get(d, str(d)), class_=f"d{d}") for d in shown)
    return el("div", el("span", "depth"), el("span", cells, class_="ramp"), class_="key")
