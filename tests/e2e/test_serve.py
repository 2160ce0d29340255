"""`loopwise serve` as a process: it serves, drains at SIGTERM, and says what is wrong with its arguments."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from loopwise.cli.main import main


@pytest.fixture(autouse=True)
def loggers_as_before():
    """`serve` sends its logs to the standard error of its process; other tests have another one."""
    names = ("loopwise", "uvicorn.error")
    before = {name: (logging.getLogger(name).handlers, logging.getLogger(name).propagate) for name in names}
    yield
    for name, (handlers, propagate) in before.items():
        logging.getLogger(name).handlers, logging.getLogger(name).propagate = handlers, propagate


def test_serve_and_drain(tmp_path):
    log = (tmp_path / "log").open("w+")
    command = [sys.executable, "-m", "loopwise", "serve", "tiny", "--port", "0", "--threads", "1", "--json"]
    environment = {**os.environ, "LOOPWISE_API_KEYS": "secret-key"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    until, url = time.monotonic() + 120, ""
    while not url:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
        url = next((w for w in (tmp_path / "log").read_text().split() if w.startswith("http://127.0.0.1:")), "")
    headers = {"authorization": "Bearer secret-key"}
    with httpx.Client(base_url=url, timeout=60, trust_env=False, headers=headers) as client:
        assert client.get("/health").status_code == 200
        assert "<title>Loopwise playground" in client.get("/").text
        body = {"model": "tiny:economy", "prompt": "The sea", "max_tokens": 60, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"  # what ran is finished
    out, _ = process.communicate(timeout=60)
    found = json.loads(out)
    assert process.returncode == 0 and found["requests"] == found["finished"] == 1 and found["output_tokens"] == 60
    text = (tmp_path / "log").read_text()
    assert "secret-key" not in text and "The sea" not in text and "/v1/completions 200" in text
    log.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tier", "quick"], "NAME=POLICY"), (["--tier", "quick=nope<1"], "unknown signal"),
        (["--default-tier", "cheap"], "tier 'cheap'"), (["--api-key", "short"], "8 characters"),
        (["--name", "a:b"], "colon"),
        (["--tier", "deep=depth=99"], "max depth 99"), (["--max-waiting", "0"], "max_waiting"),
        (["--port", "99999"], "port"),
        (["--chat-template", "absent"], "absent"), (["--threads", "0"], "threads"), (["--context", "0"], "context"),
    ],
)  # fmt: skip
def test_wrong_arguments(capsys, arguments, said):
    assert main(["serve", "tiny", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and said in error


def test_a_port_that_is_taken(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "tiny", "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another" in capsys.readouterr().err
