"""A process that serves `tiny`, for tools that others wrote."""

import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.fixture
def url(tmp_path):
    """Address of a process that serves `tiny`."""
    with (tmp_path / "log").open("w+") as log:
        command = [sys.executable, "-m", "loopwise", "serve", "tiny", "--port", "0", "--threads", "1"]
        process = subprocess.Popen(command, stderr=log, text=True)
        until, found = time.monotonic() + 200, ""
        while not found:
            assert process.poll() is None and time.monotonic() < until, Path(log.name).read_text()[-2000:]
            time.sleep(0.2)
            found = next((w for w in Path(log.name).read_text().split() if w.startswith("http://127.0.0.1:")), "")
        yield found
        process.terminate()
        process.wait(60)
