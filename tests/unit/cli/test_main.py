"""The command line: statuses, one-line errors, help."""

import json
import subprocess
import sys

import pytest

from loopwise.cli.main import VERBS, main


def test_help_is_quick_and_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in VERBS)


def test_help_does_not_import_torch():
    code = "import sys; from loopwise.cli.main import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "example:" in out and f"loopwise {verb}" in out.split("example:")[1] and "--json" in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["mesure", "tiny"], "did you mean 'measure'"),
        (["info"], "CKPT"),
        (["info", "/no/such/folder"], "does not exist"),
        (["info", "tiny", "--wrong"], "--wrong"),
        (["generate", "tiny", "--prompt", "x", "--policy", "lk<1"], "did you mean 'kl'"),
        (["generate", "tiny", "--prompt", "x", "--policy", "depth=999"], "out of range"),
        (["generate", "tiny", "--prompt", "x", "--policy", "kl<1,patience=" + "9" * 5000], "patience"),
        (["generate", "tiny", "--prompt", ""], "no tokens"),
        (["generate", "tiny", "--prompt", "x", "--layout", "shard"], "did you mean 'shared'"),
        (["generate", "tiny", "--prompt", "x", "--max-tokens", "0"], "max_tokens"),
        (["generate", "tiny", "--prompt", "x", "--tier", "nosuch"], "tier 'nosuch'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(argv, says, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1 and "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(("length", "warned"), [("140", True), ("20", False)])
def test_generating_past_the_context_is_said(length, warned, capsys):
    asked = ["generate", "tiny", "--prompt", "Once", "--max-tokens", length, "--policy", "depth=1", "--json"]
    assert main(asked) == 0
    out, err = capsys.readouterr()
    assert ("context is 128" in err) == warned and len(json.loads(out)["tokens"]) <= int(length)
