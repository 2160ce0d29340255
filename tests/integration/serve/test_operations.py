"""What operators rely on: keys, limits, metrics, disconnects, draining, and a fault that takes nothing else down."""

import asyncio
import json
import logging
import socket
import threading
import time

import httpx
import pytest

CHAT = "/v1/chat/completions"


def stream(server, **body):
    given = {"model": "tiny", "prompt": "A", "max_tokens": 100, "stream": True, "ignore_eos": True, **body}
    return server.http.stream("POST", "/v1/completions", json=given)


def until(condition, what):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_probes_and_request_ids(server):
    assert server.http.get("/health").json() == server.http.get("/ping").json() == {"status": "ok"}
    assert server.http.get("/version").json()["version"]
    named = server.http.get("/health", headers={"x-request-id": "abc-1"})
    assert named.headers["x-request-id"] == "abc-1"
    forged = server.http.get("/health", headers={"x-request-id": "a b"})
    assert forged.headers["x-request-id"] != "a b"
    assert server.http.get("/nothing").json()["error"]["type"] == "not_found_error"
    assert server.http.get("/v1/completions").status_code == 405
    load = server.http.get("/load").json()
    assert load["slots"] == 64 and load["reference_depth"] == 8


def test_metrics(server):
    server.complete(model="tiny:economy", max_tokens=4)
    text = server.http.get("/metrics").text
    for name in (
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
        "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total", "request_success_total",
        "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket", "e2e_request_latency_seconds_sum",
        "request_time_per_output_token_seconds_count", "cache_config_info", "core_steps_total", "exit_depth_bucket",
        "saved_core_steps_total", "slot_occupancy", "scheduler_host_seconds_total", "admission_rejections",
    ):  # fmt: skip
        assert f"loopwise:{name}" in text, name
    assert 'loopwise:exit_depth_bucket{le="3.0",model_name="tiny",tier="economy"}' in text
    assert "vllm:" not in text


def test_metrics_under_vllm_names(serve):
    with serve(metrics_compat=True) as server:
        text = server.http.get("/metrics").text
        assert 'vllm:num_requests_running{model_name="tiny"}' in text and "vllm:exit_depth" not in text


def test_keys(serve):
    with serve(keys=("secret-one", "secret-two"), rate=3, per_key=1) as server:
        assert server.refused(status=401)["code"] == "invalid_api_key"
        assert server.http.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 401
        assert server.http.get("/v1/models", headers={"authorization": "Basic secret-one"}).status_code == 401
        assert server.http.get("/health").status_code == server.http.get("/metrics").status_code == 200
        server.http.headers["authorization"] = "Bearer secret-two"
        with stream(server):  # one is under way: another one is too many
            assert server.refused(status=429)["code"] == "rate_limit_exceeded"
        server.idle()
        codes = [server.post("/v1/completions", prompt="A", max_tokens=1).status_code for _ in range(4)]
        assert codes == [200, 200, 429, 429]
        answer = server.post("/v1/completions", prompt="A", max_tokens=1)
        assert int(answer.headers["retry-after"]) >= 1 and int(answer.headers["retry-after-ms"]) > 0
        server.http.headers["authorization"] = "Bearer secret-one"  # the other key has a limit of its own
        server.complete(max_tokens=1)


def test_full_queue(serve):
    with serve(max_waiting=2, engine={"max_rows": 1, "places": 1}) as server:
        with stream(server, n=2):
            until(lambda: server.service.engine.running == 1, "the stream never started")
            with stream(server, n=1):
                until(lambda: server.service.engine.waiting == 2, "nothing waits")
                answer = server.post("/v1/completions", prompt="A")
                assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
                assert answer.json()["error"]["code"] == "overloaded"
                assert "loopwise:admission_rejections_total" in server.http.get("/metrics").text
        server.idle()


def test_large_and_slow_bodies(serve):
    with serve(body_bytes=1000, body_s=0.3) as server:
        assert server.refused(status=413, prompt="x" * 2000)["message"]

        def pieces():
            for _ in range(3):
                yield b"x" * 500

        unsized = server.http.post("/v1/completions", content=pieces())
        assert unsized.status_code == 413

        def slowly():
            yield b"{"
            time.sleep(1)
            yield b"}"

        late = server.http.post("/v1/completions", content=slowly())
        assert late.status_code == 408 and late.json()["error"]["message"]
        server.complete(max_tokens=1)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_frees_everything(server, streaming):
    server.idle()
    before = server.service.engine.stats()["cancelled"]

    async def leave():
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
            body = {"model": "tiny", "prompt": "A", "max_tokens": 120, "ignore_eos": True, "stream": streaming}
            asked = asyncio.ensure_future(client.post("/v1/completions", json=body, timeout=60))
            while server.service.engine.running == 0:
                await asyncio.sleep(0.005)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(leave())
    server.idle()
    assert server.service.engine.stats()["cancelled"] == before + 1


def test_a_request_that_takes_too_long(serve):
    with serve(request_s=0.05) as server:
        asked = dict(prompt="A", max_tokens=120, ignore_eos=True, n=30)
        assert server.post("/v1/completions", **asked).status_code == 504
        with stream(server, n=30) as answer:
            last = [line for line in answer.iter_lines() if line][-1]
        assert json.loads(last[6:])["error"]["code"] == "timeout"
        server.idle()


def test_draining(serve):
    with serve(drain_s=60) as server, httpx.Client(base_url=server.url, trust_env=False) as other:
        assert other.get("/health").status_code == 200
        with stream(server, max_tokens=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.call(server.server.drain)
            sick = other.get("/health")
            assert sick.status_code == 503 and sick.json()["error"]["code"] == "draining"
            assert other.post("/v1/completions", json={"model": "tiny", "prompt": "A"}).status_code == 503
            assert list(lines)[-2] == "data: [DONE]"  # what ran was finished
        server.thread.join(60)
        assert not server.thread.is_alive()


def test_a_fault_of_the_engine(serve):
    with serve() as server:

        def fail():
            raise RuntimeError("out of order")

        with stream(server) as answer:
            lines = answer.iter_lines()
            next(lines)
            logging.getLogger("loopwise.engine.async_engine").disabled = True
            server.service.engine.engine.step = fail
            ended = [line for line in lines if line]
        logging.getLogger("loopwise.engine.async_engine").disabled = False
        error = json.loads(ended[-1][6:])["error"]
        assert error["code"] == "engine_error" and "out of order" in error["message"] and "data: [DONE]" not in ended
        assert server.http.get("/health").status_code == 503
        assert server.refused(status=503)["code"] == "engine_unavailable"
        assert 'loopwise:engine_up{model_name="tiny"} 0.0' in server.http.get("/metrics").text


def test_the_access_log_keeps_prompts_to_itself(server, caplog):
    with caplog.at_level(logging.INFO, logger="loopwise.access"):
        server.complete("a very private matter", max_tokens=1)
        server.http.get("/health%0Aforged%20200")
    lines = [record.getMessage() for record in caplog.records if record.name == "loopwise.access"]
    assert "POST /v1/completions 200" in lines[0] and "tier=full" in lines[0]
    assert all("private" not in line and "\n" not in line for line in lines)


@pytest.mark.slow
def test_slow_readers_hold_little(serve):
    """A client that reads nothing: its answer ends up in bounded buffers and the connection is cut."""
    with serve(stall_s=0.5) as server:
        before = threading.active_count()
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        body = json.dumps({"model": "tiny", "prompt": "A", "max_tokens": 120, "n": 60,
                           "ignore_eos": True, "stream": True,
                           "logprobs": 20, "depth": {"policy": "depth=1"}}).encode()  # fmt: skip
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n" % len(body) + body)  # fmt: skip
        until(lambda: server.service.engine.stats()["requests"] == 1, "the request never came")
        server.idle()
        until(
            lambda: (
                not server.server.server_state.connections
                or all(c.cycle is None or c.cycle.response_complete for c in server.server.server_state.connections)
            ),
            "still held",
        )
        raw.close()
        assert threading.active_count() <= before + 1
        server.complete(max_tokens=1)
