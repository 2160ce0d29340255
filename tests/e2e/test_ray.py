"""The Ray Serve example with two replicas on one machine: they share the work, and a beginning keeps its replica."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("ray.serve", reason="the optional package ray[serve] is absent")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_serve.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_replicas(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(EXAMPLE), "tiny", "--replicas", "2", "--port", str(port)]
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"})
    try:
        until = time.monotonic() + 600
        while "serving tiny" not in Path(log.name).read_text():
            assert process.poll() is None and time.monotonic() < until, Path(log.name).read_text()[-2000:]
            time.sleep(0.5)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600, trust_env=False) as client:
            assert len(client.get("/replicas").json()) == 2
            cached = []
            for number in range(4):
                for _ in range(2):
                    body = {"model": "tiny:economy", "prompt": [300 + number] * 90, "max_tokens": 2}
                    answer = client.post("/v1/completions", json=body)
                    assert answer.status_code == 200, answer.text
                cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
            assert all(count > 0 for count in cached), "a repeated prompt went to another replica"
            with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as streamed:
                assert [line for line in streamed.iter_lines() if line][-1] == "data: [DONE]"
            assert client.post("/v1/completions", json={"model": "other", "prompt": "x"}).status_code == 404
    finally:
        process.terminate()
        process.wait(60)
        log.close()
