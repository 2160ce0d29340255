"""`loopwise calibrate` refuses what cannot be promised in one line, with status 2."""

import pytest

from loopwise.cli.main import main


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--text", "factbook", "--tokens", "2000"], "needs at least 40"),
        (["--text", "factbook", "--confidence", "1"], "confidence is 1"),
        (["--text", "factbook", "--tolerance", "0"], "tolerance is 0"),
        (["--text", "factbook", "--signal", "kl<1"], "without a threshold"),
        (["--text", "factbook", "--signal", "lk"], "did you mean 'kl'"),
        (["--text", "factbook", "--signal", "argmax"], "no threshold to find"),
        (["--text", "factbook", "--mode", "replay", "--layout", "shared"], "needs mode live"),
    ],
)
def test_refusals(argv, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", "tiny", "--quiet", *argv]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert not list(tmp_path.iterdir())
