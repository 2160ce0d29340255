"""The page and its sentences, whatever the figures are; records, whatever is missing or damaged."""

import csv
import dataclasses
import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import report_example as example
from records_example import manifest, write_run

from loopwise.cli.main import main
from loopwise.config import InputError
from loopwise.records import write_json
from loopwise.report.figures import figures, headline
from loopwise.report.load import load_run
from loopwise.report.page import page
from loopwise.report.run import Matched
from loopwise.report.summary import beside_study, sentences, tiles
from loopwise.report.words import change, changed, percent, spared
from loopwise.report.write import write_report


def test_page_loads_nothing_and_says_so_to_the_browser() -> None:
    html = page(example.run())
    assert "default-src 'none'" in html.replace("&#39;", "'")
    outside = re.findall(r"""(?:src|href)=["'](?!#|data:)([^"']*)""", html.replace(example.HOSTILE, ""))
    assert outside == []
    assert "@import" not in html and "url(http" not in html


def test_page_holds_measured_text_as_text_only() -> None:
    html = page(example.run())
    assert "<img" not in html
    assert html.count("</script>") == html.count("<script") == 2


def test_ids_are_unique() -> None:
    ids = re.findall(r'\sid="([^"]+)"', page(example.run()))
    assert sorted(ids) == sorted(set(ids))


@pytest.mark.parametrize("width", [340.0, 540.0])
def test_every_figure_is_well_formed_and_described(width: float) -> None:
    drawn = figures(example.run())
    assert set(drawn) == {"loss_by_depth", "change_by_depth", "convergence_by_type", "accuracy_chain",
                          "settle_by_difficulty", "frontier_depth", "frontier_compute", "savings"}  # fmt: skip
    for figure in drawn.values():
        root = ET.fromstring(figure.svg(width))
        names = [node.tag.rpartition("}")[2] for node in root]
        assert names[:2] == ["title", "desc"]
        places = [
            float(n.get(a, 0)) for n in root.iter() for a in ("x", "y", "x1", "y1", "x2", "y2", "width", "height")
        ]
        assert all(map(math.isfinite, places))
        assert not re.search(r"nan|inf", " ".join(n.get("d", "") for n in root.iter()))
        rows = list(csv.reader(figure.csv().splitlines()))
        assert len(rows) == len(figure.rows) + 1 and {len(r) for r in rows} == {len(figure.header)}
        assert len(figure.caption) > 60


def test_headline_is_one_picture() -> None:
    root = ET.fromstring(headline(example.run()))
    assert float(root.get("width", 0)) > 800


def test_missing_records_are_said_not_drawn() -> None:
    html = page(dataclasses.replace(example.run(), measure=None, allocation=None, lens=None, sample=None))
    assert html.count('class="missing"') == 8
    assert "<figure" not in html


def with_matched(found: Matched | None) -> str:
    whole = example.allocation()
    rows = [dataclasses.replace(p, matched=found if p.signal != "depth" else None) for p in whole.policies]
    allocation = dataclasses.replace(whole, policies=rows)
    page(dataclasses.replace(example.run(), allocation=allocation))
    shown = tiles(None, allocation) and beside_study(None, allocation)
    assert shown
    return " ".join(sentences(None, allocation))


def test_sentences_when_nothing_matches() -> None:
    assert "does not come within 0.01 nats of uniform depth 8 (live) at any threshold tried" in with_matched(None)


def test_sentences_when_a_policy_costs_more() -> None:
    text = with_matched(Matched(9.0, -0.125, saving_ci=(-0.2, -0.1), cost_ratio=1.5, cost_ratio_ci=(1.4, 1.6)))
    assert "12% more (95% CI 10% to 20%)" in text
    assert "computes 50% more (95% CI 40% to 60%) in total" in text


def test_sentences_when_an_interval_crosses_zero() -> None:
    text = with_matched(Matched(7.9, 0.0125, saving_ci=(-0.1, 0.2), cost_ratio=1.0, cost_ratio_ci=(0.9, 1.1)))
    assert "1.2% fewer (95% CI 10% more to 20% fewer)" in text
    assert "computes the same (95% CI 10% more to 10% less) in total" in text


def test_words() -> None:
    assert (percent(0.384), percent(0.038), percent(-0.00001), percent(-0.19)) == ("38%", "3.8%", "0.0%", "−19%")
    assert (change(0.0), change(-0.5)) == ("the same", "50% more")
    assert changed(0.5, None) == "50% less"
    assert spared(1.25, (1.0, 1.5)) == (-0.25, [-0.5, 0.0])


def test_report_is_redrawn_from_records_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    assert main(["report", str(folder), "--out", str(tmp_path / "site"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    report = Path(result["report"])
    assert report == tmp_path / "site" / "report.html" and report.is_file()
    assert result["missing"] == [] and len(result["figures"]) == 8
    files = {p.name for p in (tmp_path / "site" / "figures").iterdir()}
    assert files == {"headline.svg"} | {f"{n}.{end}" for n in result["figures"] for end in ("svg", "csv")}
    again = write_report(folder, tmp_path / "again.html")
    assert again.report.read_bytes() == report.read_bytes()


def test_load_reads_what_commands_wrote(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    assert run.title == "tiny on factbook" and run.warning is None and run.deep == 6
    assert run.lens is not None and list(run.lens.signals) == ["kl"]
    assert run.allocation is not None and run.allocation.policy("kl", "live") is not None
    assert dict(run.about)["hardware"] == "CPU, 2 cores"


def test_records_of_different_weights_are_pointed_out(tmp_path: Path) -> None:
    write_json(write_run(tmp_path) / "manifest.json", manifest(measure="one", allocate="two"))
    assert "different weights" in page(load_run(tmp_path))


@pytest.mark.parametrize("name", ["measure.json", "allocate.json", "lens.json", "sample.json"])
def test_part_of_a_run_is_enough(tmp_path: Path, name: str) -> None:
    write_run(tmp_path)
    for file in list(tmp_path.iterdir()):
        if file.name not in (name, "lens.npz"):
            file.unlink()
    assert page(load_run(tmp_path)).startswith("<!doctype html>")


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("measure.json", "{", "cannot be read as JSON"),
        ("measure.json", "{}", "is no such record"),
        ("measure.json", "[]", "is no such record"),
        ("allocate.json", '{"policies": [{}]}', "is no such record"),
        ("sample.json", '{"pieces": ["a"], "depths": []}', "1 pieces for 0 depths"),
        ("lens.json", '{"pieces": [], "max_depth": 8}', "has shape"),
        ("lens.npz", "", "cannot be read as npz"),
        ("manifest.json", "3", "is no such record"),
    ],
)
def test_damaged_records_are_one_line(tmp_path: Path, name: str, content: str, words: str) -> None:
    (write_run(tmp_path) / name).write_text(content)
    with pytest.raises(InputError, match=words) as error:
        load_run(tmp_path)
    assert name in str(error.value)


def test_folders_without_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no record"):
        load_run(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        load_run(tmp_path / "none")
