"""The repository itself: links resolve, no machine leaks into it, the package stays small."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import loopwise
from loopwise.exit.signals import SIGNALS

ROOT = Path(__file__).parents[2]
# Each with an empty group after its first letters, so that this file does not contain what it looks for.
FORBIDDEN = (
    r"(?<![\w.~])/wo()rk/",
    r"(?<![\w.~])/ro()ot/",
    r"/tm()p/lw",
    r"(?i:index[-_]u()rl)",
    r"pyp()i\.org",
    r"python()hosted",
    r"download\.py()torch",
    r"far()m-(bench|studio)",
)
TEXT = {"", *".md .py .toml .txt .cfg .sh .yaml .yml .cff .html .svg .js .css .json .jsonl".split()}


def tracked() -> list[Path]:
    run = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True)
    if run.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in run.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", page.read_text("utf-8")):
        link = (target[0] or target[1]).split("#")[0]
        if link and not re.match(r"[a-z]+:", link):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_no_path_of_a_workplace():
    """Absolute paths of the machine this was written on, and package hosts, have no place in the project."""
    bad = re.compile("|".join(FORBIDDEN))
    found = []
    for path in tracked():
        if path.suffix in TEXT and path.stat().st_size < 2_000_000 and "golden" not in path.parts:
            found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in bad.finditer(path.read_text("utf-8", "ignore"))]
    assert not found


def test_modules_can_be_read_in_one_sitting():
    """All but the code that an export carries: the loader of other people's tools wants it in one file."""
    found = [p for p in ROOT.glob("src/**/*.py") if p.parent.name != "hf"]
    lines = {str(p.relative_to(ROOT)): len(p.read_text("utf-8").splitlines()) for p in found}
    assert not {name: n for name, n in lines.items() if n > 330}


def test_nothing_is_unpickled():
    """safetensors only: no loader that can execute code."""
    bad = re.compile(r"\b(torch\.load|pickle\.load|pickle\.loads|joblib\.load|allow_pickle=True)\b")
    assert not [p.name for p in ROOT.glob("src/**/*.py") if bad.search(p.read_text("utf-8"))]


def test_every_make_target_named_in_the_documents_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        assert set(re.findall(r"`make ([a-z-]+)`", page.read_text("utf-8"))) <= targets, page.name


def test_every_signal_stands_in_the_glossary_under_its_cost():
    listed: dict[str, set[str]] = {}
    for cost, names in re.findall(
        r"^\| `(free|probe|readout)` \| ([^|]*) \|", (ROOT / "docs/concepts.md").read_text(), re.M
    ):
        listed[cost] = set(re.findall(r"`(\w+)`", names))
    assert listed == {cost: {s.name for s in SIGNALS.values() if s.cost == cost} for cost in listed}
    assert set.union(*listed.values()) == set(SIGNALS)


def test_help_needs_no_torch(tmp_path):
    """`loopwise --help` is instant, also from a folder that is not the checkout."""
    code = "import sys; from loopwise.cli.main import main; assert main(['--help']) == 0; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "False"


def test_every_exported_name_exists():
    for name in loopwise.__all__:
        assert getattr(loopwise, name) is not None
