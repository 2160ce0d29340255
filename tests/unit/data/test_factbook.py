"""The demo's own text: rendering, and which profiles are held out."""

import re
from importlib.util import find_spec

import pytest

from loopwise.config import InputError
from loopwise.data import factbook
from loopwise.data.split import documents_sha256, is_held_out
from loopwise.data.text import iter_documents

PROFILE = {
    "Introduction": {"Background": {"text": "<p>Two&nbsp; words.<br><br>More <em>text</em> &amp; 3 &lt; 4.</p>"}},
    "Geography": {
        "Area": {"total ": {"text": "9 sq km"}, "note": "small"},
        "Coastline": {"text": "1 km", "note": "rocky"},
        "Empty": {"text": " "},
    },
    "Government": {
        "Country name": {
            "conventional short form": {"text": "none"},
            "conventional long form": {"text": "Republic of X"},
        }
    },
    "Nothing": {},
}
RENDERED = """Republic of X

Introduction
Background: Two words.
More text & 3 < 4.

Geography
Area:
- total: 9 sq km
- note: small
Coastline: 1 km
- note: rocky

Government
Country name:
- conventional short form: none
- conventional long form: Republic of X"""

installed = pytest.mark.skipif(find_spec(factbook.PACKAGE) is None, reason="the extra 'demo' is not installed")


def test_render() -> None:
    assert factbook.render(PROFILE, name="x") == RENDERED


def test_profiles_without_a_country_have_a_title() -> None:
    assert factbook.render({}, name="xx") == "World"
    assert factbook.render({}, name="zz") == "zz"


@installed
def test_parts_are_disjoint_and_complete() -> None:
    parts = {name: list(iter_documents(name)) for name in ("factbook", "factbook:train", "factbook:all")}
    assert sorted(parts["factbook"] + parts["factbook:train"]) == sorted(parts["factbook:all"])
    assert all(is_held_out(text) for text in parts["factbook"])
    assert not any(is_held_out(text) for text in parts["factbook:train"])
    assert len(parts["factbook:all"]) == 256
    assert not re.search(r"</|&[a-z]+;", "".join(parts["factbook:all"]))


@installed
def test_held_out_text_is_the_one_the_embedded_model_never_saw() -> None:
    held_out = list(iter_documents("factbook"))
    assert len(held_out) == 15
    assert documents_sha256(held_out) == "55c565ed98cda2b50f2d3a4b4aa1752f64d234de362baeab05acad8fd3ff4de7"


def test_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factbook, "PACKAGE", "no_such_package_here")
    with pytest.raises(InputError, match="install the 'demo' extra"):
        list(iter_documents("factbook"))
