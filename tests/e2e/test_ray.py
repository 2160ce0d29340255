"""The Ray Serve example with two replicas on one machine: they share the work, a beginning keeps its replica, and one
that is killed is passed over and replaced."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("ray.serve", reason="the optional package ray[serve] is absent")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_serve.py"


@pytest.fixture
def client(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(EXAMPLE), "tiny", "--replicas", "2", "--port", str(port)]
    # Ray gives its workers a low priority (nice 15): beside other work they would hardly start.
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            until = time.monotonic() + 600
            while "serving tiny" not in Path(log.name).read_text():
                assert process.poll() is None and time.monotonic() < until, Path(log.name).read_text()[-2000:]
                time.sleep(0.5)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600, trust_env=False) as found:
                yield found
        finally:
            process.terminate()
            process.wait(60)


def ask(client, number):
    """Complete a prompt of its own; how many of its tokens were cached."""
    body = {"model": "tiny:economy", "prompt": [300 + number] * 90, "max_tokens": 2}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_replicas(client):
    before = client.get("/replicas").json()
    assert len(before) == 2
    for number in range(12):
        assert ask(client, number) == 0 and ask(client, number) > 0, "a repeated prompt went to another replica"
    for name in before:  # 1 in 2,048 that all twelve go to one
        made = httpx.get(name + "/load", timeout=60, trust_env=False).json()["output_tokens"]
        assert 0 < made < 48, "one replica had nothing to do"
    body = {"model": "tiny:economy", "prompt": "The sea", "max_tokens": 2, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as streamed:
        assert [line for line in streamed.iter_lines() if line][-1] == "data: [DONE]"
    assert client.post("/v1/completions", json={"model": "other", "prompt": "x"}).status_code == 404

    lost, *_ = before
    os.kill(before[lost]["pid"], signal.SIGKILL)
    for number in range(12):
        ask(client, number)
    until = time.monotonic() + 400
    while len(now := client.get("/replicas").json()) < 2 or lost in now:
        assert time.monotonic() < until, "the lost replica was not replaced"
        time.sleep(1)
    assert [ask(client, number) for number in range(12)]
