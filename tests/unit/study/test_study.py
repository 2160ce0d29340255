"""`loopwise study`: every published row gets a verdict, nothing runs twice, the page is whole."""

import json
from pathlib import Path

import pytest

from loopwise.cli.main import main
from loopwise.study import judge
from loopwise.study.published import published
from loopwise.study.settings import SECTIONS


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judge, "SOURCE", "package:no-such-package")


def test_every_row_of_the_study_has_a_verdict(done: Path):
    found = json.loads((done / "study.json").read_text())["verdicts"]
    assert [v["id"] for v in found] == [row.id for row in published().rows]
    assert {v["verdict"] for v in found} <= {"agrees", "partly", "differs", "missing"}
    assert all(v["sentence"].endswith(".") for v in found)


def test_what_is_missing_is_said_in_a_sentence(done: Path):
    found = json.loads((done / "study.json").read_text())["missing"]
    assert {"joint", "sweep", "engine", "judge"} <= found.keys()
    page = (done / "report.html").read_text()
    for text in found.values():
        assert text.endswith(".") and text.split(" (")[0].split("'")[0] in page


def test_a_second_run_measures_nothing(done: Path, words: list[str], capsys: pytest.CaptureFixture[str]):
    before = (done / "records/random/tales/measure.json").read_bytes()
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["records"]["made"] == 0
    assert (done / "records/random/tales/measure.json").read_bytes() == before


def test_a_lost_record_is_made_again_alone(done: Path, words: list[str], capsys: pytest.CaptureFixture[str]):
    path = done / "records/random/tales/depths.json"
    before = json.loads(path.read_text())["result"]
    path.unlink()
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["records"]["made"] == 1
    assert json.loads(path.read_text())["result"] == before


def test_page_loads_nothing_and_ids_are_unique(done: Path):
    page = (done / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    for name in SECTIONS:
        assert f'id="{name}"' in page


def test_every_figure_has_its_data_and_every_table_its_latex(done: Path):
    figures = {p.stem for p in (done / "figures").glob("*.svg")}
    assert figures and figures == {p.stem for p in (done / "figures").glob("*.csv")}
    for path in (done / "paper").glob("*.tex"):
        lines = path.read_text().splitlines()
        rows = [line for line in lines if line.endswith(r"\\")]
        assert len({line.replace(r"\&", "").count("&") for line in rows}) == 1, path.name


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["nowhere", "--text", "a=factbook"], "nowhere"),
        (["tiny", "--text", "=factbook"], "text '=factbook'"),
        (["tiny", "--text", "a=factbook", "--tokens", "12"], "tokens is 12"),
        (["tiny", "tiny", "--text", "a=factbook"], "same name"),
        (["tiny", "--text", "a=missing.txt"], "missing.txt"),
    ],
)
def test_bad_input_is_one_line(words, names, tmp_path, capsys):
    assert main(["study", *words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and names in said
