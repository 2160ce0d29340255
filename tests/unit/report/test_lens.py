"""The depth lens: packing, exit depths, and text that tries to break out."""

import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from report_example import HOSTILE, lens

from loopwise.exit.policy import Policy
from loopwise.report.lens import STEPS, embed, exit_depths, lens_html, pack, payload, token_html, unpack


@pytest.mark.parametrize("tokens", [1, 3, 4])
@pytest.mark.parametrize("depth", [3, 8])
def test_packed_signals_come_back_within_a_step(tokens: int, depth: int) -> None:
    values = 10.0 ** np.random.default_rng(0).uniform(-8.5, 2.5, (tokens, depth))
    values[0, 0] = np.nan
    back = unpack(pack(values, log=True), depth)
    assert back.shape == values.shape
    assert np.isnan(back[0, 0])
    np.testing.assert_allclose(back[values == values], values[values == values], rtol=4e-3)


def test_packed_losses_come_back_within_a_step() -> None:
    values = np.random.default_rng(0).gamma(2.0, 2.0, (7, 5))
    np.testing.assert_allclose(unpack(pack(values, log=False), 5), values, atol=values.max() / 8000)


def test_extremes_are_clipped_not_lost() -> None:
    back = unpack(pack(np.array([[0.0, 1e-30, 1e30, np.inf]]), log=True), 4)
    assert back.tolist() == [[pytest.approx(1e-9), pytest.approx(1e-9), pytest.approx(1e3), pytest.approx(1e3)]]


@given(st.integers(0, 2**31), st.floats(1e-4, 1.0), st.sampled_from([1, 2, 3]))
def test_exit_depths_are_those_of_the_exit_rule(seed: int, threshold: float, first: int) -> None:
    values = np.random.default_rng(seed).uniform(0, 1, (5, 8)).astype(np.float32)
    signal = {1: "entropy", 2: "kl", 3: "accel"}[first]
    rule = Policy(signal=signal, threshold=threshold).bind(8).rule()
    carry, left = rule.init(5), torch.zeros(5, dtype=torch.long)
    for depth in range(1, 9):
        leave, carry = rule.step(torch.from_numpy(values[:, depth - 1].copy()), depth, carry)
        left[(left == 0) & leave] = depth
    assert exit_depths(values.astype(np.float64), np.float32(threshold).item(), first).tolist() == left.tolist()


def test_slider_passes_through_its_start() -> None:
    for about in payload(lens())["signals"].values():
        low, high = about["range"]
        place = (np.log10(about["start"]) - low) / (high - low) * STEPS
        assert place == pytest.approx(round(place), abs=1e-6)
        assert 0 < place < STEPS


def test_hostile_text_stays_text() -> None:
    html = lens_html(lens())
    assert html.count("<script") == 1 and html.count("</script") == 1
    assert "<img" not in html
    held = re.search(r'<script type="application/json" id="lens-data">(.*?)</script>', html, re.DOTALL)
    assert held is not None
    assert HOSTILE in json.loads(held[1])["pieces"]


@given(st.text())
def test_embedded_json_never_ends_its_script(text: str) -> None:
    shown = embed({"text": text})
    assert not set(shown) & set("<>&")
    assert json.loads(shown) == {"text": text}


def test_line_ends_are_shown() -> None:
    assert token_html("\n", 3) == (
        '<span class="d3" data-tip="depth 3"><span class="nl" aria-hidden="true">⏎</span>\n</span>'
    )
