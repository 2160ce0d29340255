"""The README's code blocks run. `python` blocks run as they stand; `loopwise` lines of `console` blocks run too,
except those that serve or train (they are checked for a known command); `make` lines must name a target."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from loopwise.cli.main import VERBS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
LONG = {"serve", "train", "study", "bench", "demo"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def commands() -> list[str]:
    lines = "\n".join(blocks("console")).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def test_the_readme_has_examples():
    assert blocks("python") and any(c.startswith("make demo") for c in commands())


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """One folder for all: a later line may read what an earlier one wrote, as for a reader."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize("code", blocks("python"))
def test_python_block(code, workplace):
    run = subprocess.run([sys.executable, "-c", code], cwd=workplace, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


@pytest.mark.parametrize("line", commands())
def test_console_line(line, workplace):
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M)
    elif words[0] == "loopwise":
        assert words[1] in VERBS
        if words[1] not in LONG:
            run = subprocess.run(
                [sys.executable, "-m", *words], cwd=workplace, capture_output=True, text=True, timeout=240
            )
            assert run.returncode == 0, run.stderr
