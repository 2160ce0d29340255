"""SVG, axes and colours."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_example import HOSTILE

from loopwise.report.axis import depths, linear, log, number, power
from loopwise.report.palette import contrast, depth_shade, luminance, oklch
from loopwise.report.svg import el, escape, marker


@given(st.text())
def test_any_text_is_safe_in_xml(text: str) -> None:
    node = ET.fromstring(el("text", escape(text), data_tip=text))
    assert not list(node)
    if text.isprintable():
        assert node.text == (text or None)


def test_markup_in_text_stays_text() -> None:
    assert ET.fromstring(el("text", escape(HOSTILE))).text == HOSTILE


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_linear_axis_holds_all_values_and_has_ticks(values: list[float]) -> None:
    axis = linear("x", values)
    assert all(-1e-9 <= axis.at(v) <= 1 + 1e-9 for v in values)
    assert all(-1e-6 <= axis.at(t) <= 1 + 1e-6 for t in axis.ticks)
    assert 2 <= len(axis.ticks) <= 14


@given(st.lists(st.floats(1e-11, 1e6), min_size=1, max_size=20))
def test_log_axis_holds_all_values(values: list[float]) -> None:
    axis = log("x", values)
    assert all(-1e-9 <= axis.at(v) <= 1 + 1e-9 for v in values)
    assert 2 <= len(axis.ticks) <= 8


def test_axes_without_data_are_drawable() -> None:
    assert log("x", []).hi > log("x", []).lo
    assert linear("x", [float("nan")]).hi > linear("x", []).lo


def test_depth_axis_ticks_are_powers_of_two() -> None:
    assert depths("d", 32).ticks == (1, 2, 4, 8, 16, 32)
    assert depths("d", 5).ticks == (1, 2, 4)


def test_numbers_are_short() -> None:
    assert (number(0.25), number(12345.0), power(1e-5), power(0.1)) == ("0.25", "12,345", "10⁻⁵", "0.1")


@pytest.mark.parametrize("deep", [2, 8, 32, 64])
@pytest.mark.parametrize("dark", [False, True])
def test_depth_scale_is_monotone_in_lightness_and_its_text_is_legible(deep: int, dark: bool) -> None:
    shades = [depth_shade(d, deep, dark=dark) for d in range(1, deep + 1)]
    bright = [luminance(s.back) for s in shades]
    assert bright == sorted(bright, reverse=not dark)
    assert len(set(bright)) == deep
    assert depth_shade(deep + 5, deep, dark=dark) == shades[-1]
    assert min(contrast(s.back, s.text) for s in shades) >= 4.5


def test_known_colours() -> None:
    assert (oklch(1.0, 0.0, 0.0), oklch(0.0, 0.0, 0.0)) == ("#ffffff", "#000000")
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("shape", ["circle", "square", "diamond", "triangle", "down", "star"])
def test_markers_are_closed_paths(shape: str) -> None:
    assert marker(shape, 5.0, 5.0, 8.0).startswith("M") and marker(shape, 5.0, 5.0, 8.0).endswith("Z")
