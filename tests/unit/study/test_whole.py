"""Records of other commands as the study reads them, and verdicts on made-up books."""

import json
from pathlib import Path

import pytest

from loopwise.config import InputError
from loopwise.study.book import Book, Pair
from loopwise.study.efficiency import engine
from loopwise.study.published import published
from loopwise.study.rules import verdicts
from loopwise.study.rules_measured import tail
from loopwise.study.rules_policy import wall_clock
from loopwise.study.views_loss import elasticity
from loopwise.study.whole import sweep


def test_sweep_pools_seeds_by_sampler_and_mean(tmp_path: Path):
    rows = [
        {
            "depth": {"kind": kind, "mean": 4.0},
            "seed": seed,
            "saturation": {
                "tales": {
                    "depth": d,
                    "low": d,
                    "high": d,
                    "draws": {str(d): 100},
                    "best_loss": 2.0 + seed,
                    "loss": [3.0, 2.0, 2.5],
                }
            },
        }
        for kind, seed, d in (("lognormal", 0, 3), ("lognormal", 1, 5), ("fixed", 0, 9))
    ]
    (tmp_path / "saturation").mkdir()
    (tmp_path / "saturation" / "means.json").write_text(json.dumps({"rows": rows}))
    found = sweep(tmp_path)
    fixed, sampled = found["rows"]
    assert (found["runs"], fixed["sampler"], fixed["depth"], fixed["low"], fixed["high"]) == (3, "fixed", 9, 9, 9)
    assert (sampled["mean"], sampled["depth"], sampled["low"], sampled["high"]) == (4.0, 4.0, 3.0, 5.0)
    assert (sampled["runs"], sampled["best"], sampled["first"], sampled["past"]) == (2, [2.5, 2.0, 3.0], 1.0, 0.5)
    book = Book([], {}, {"sweep": found}, {}, {})
    verdict = next(v for v in verdicts(published().rows, book) if v.id == "saturation")
    assert "4" in verdict.ours and "9" not in verdict.ours  # the hypothesis is about sampled depths
    assert [row[0] for row in elasticity(book, published()).tables[1].rows] == ["fixed", "lognormal"]
    with pytest.raises(InputError, match="make saturation"):
        sweep(tmp_path / "nowhere")


def test_engine_ratio_is_its_share_of_the_bound(tmp_path: Path):
    (tmp_path / "engine").mkdir()
    record = {
        "rows": [{"name": "replay: FLOP bound", "value": 1.8}, {"name": "replay: mean depth", "value": 4.0}],
        "ratios": {"replay: share of the bound": 0.95},
    }
    (tmp_path / "engine" / "decode.json").write_text(json.dumps(record))
    found = engine(tmp_path)
    assert found["ratios"][0]["value"] == pytest.approx(1.71)
    verdict = wall_clock(published().row("wall_clock"), Book([], {}, {"engine": found}, {}, {}))
    assert verdict.verdict == "agrees" and "95%" in verdict.sentence


def test_a_book_without_records_is_missing_everything_but_the_limits():
    found = verdicts(published().rows, Book([], {}, {}, {}, {}))
    assert {v.verdict for v in found if v.id != "limits"} == {"missing"}


@pytest.mark.parametrize(("ends", "word"), [((0.08, 0.12), "agrees"), ((0.01, 0.05), "differs")])
def test_a_number_agrees_if_the_published_one_lies_in_our_interval(ends: tuple[float, float], word: str):
    record = {"settled": {"moving_at_mean": [0.1, *ends]}, "saturation": {"useful_depth": 3}, "mean_depth": 8.0}
    book = Book([Pair("tiny", "tales", {"measure": record})], {"tiny": {}}, {}, {}, {})
    assert tail(published().row("tail"), book).verdict == word
