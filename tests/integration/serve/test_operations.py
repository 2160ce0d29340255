"""What operators rely on: keys, limits, metrics, disconnects, draining, and a fault that takes nothing else down."""

import asyncio
import fnmatch
import json
import logging
import re
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

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


GAUGES = "num_requests_running num_requests_waiting kv_cache_usage_perc cache_config_info".split()
COUNTERS = (
    "num_preemptions prompt_tokens generation_tokens prefix_cache_queries prefix_cache_hits request_success "
    "admission_rejections"
).split()
HISTOGRAMS = (
    "time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds "
    "e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds "
    "request_inference_time_seconds iteration_tokens_total request_prompt_tokens request_generation_tokens"
).split()  # the names and kinds that dashboards for vLLM know
OWN = {
    "core_steps": "counter", "exit_depth": "histogram", "slot_occupancy": "gauge", "exits": "counter",
    "saved_core_steps": "counter", "coda_batch_size": "histogram", "scheduler_host_seconds": "counter",
}  # fmt: skip


def families(server):
    """Kinds and samples by family, read as Prometheus reads them (`_created` are times that its library adds)."""
    found = text_string_to_metric_families(server.http.get("/metrics").text)
    return {family.name: family for family in found if not family.name.endswith("_created")}


def value(families, name, suffix="", **labels):
    """One sample of ours."""
    found = families["loopwise:" + name]
    return next(s.value for s in found.samples if s.name == found.name + suffix and labels.items() <= s.labels.items())


@pytest.mark.parametrize("compat", [False, True])
def test_every_metric_has_its_name_and_kind(serve, compat):
    shared = {**dict.fromkeys(GAUGES, "gauge"), **dict.fromkeys(COUNTERS, "counter")}
    shared |= dict.fromkeys(HISTOGRAMS, "histogram")
    with serve(metrics_compat=compat) as server:
        server.complete(model="tiny:economy", max_tokens=4)
        found = {name: family.type for name, family in families(server).items()}
    wanted = {"loopwise:" + name: kind for name, kind in (shared | OWN).items()}
    wanted |= {"vllm:" + name: kind for name, kind in shared.items()} if compat else {}
    assert wanted.items() <= found.items(), wanted.items() - found.items()
    assert {name for name in found if name.startswith("vllm:")} == {n for n in wanted if n.startswith("vllm:")}


def test_the_documentation_lists_every_metric(server):
    text = (Path(__file__).parents[3] / "docs" / "serve.md").read_text()
    listed = set(re.findall(r"`([a-z0-9_*]+)[`{]", text.partition("`GET /metrics` has")[2].partition("\n\n")[0]))
    for name in families(server):
        name = name.removeprefix("loopwise:")
        assert any(fnmatch.fnmatch(name, pattern) for pattern in listed), f"docs/serve.md does not name {name}"


def test_times_add_up_and_exits_are_counted(serve):
    with serve() as server:
        for tier in ("economy", "full"):
            server.complete(model=f"tiny:{tier}", max_tokens=9, n=2, ignore_eos=True)
        with stream(server, n=3):
            pass  # the client leaves at once, perhaps before the engine has heard of it
        until(
            lambda: value(families(server), "request_success", "_total", finished_reason="abort") == 3,
            "the client has left, but its choices are not counted as ended",
        )
        server.idle()
        found = families(server)
    spans = {name: value(found, f"request_{name}_time_seconds", "_sum") for name in ("queue", "prefill", "decode")}
    assert all(span > 0 for span in spans.values())
    inference, whole = (
        value(found, name, "_sum") for name in ("request_inference_time_seconds", "e2e_request_latency_seconds")
    )
    assert spans["prefill"] + spans["decode"] == pytest.approx(inference)
    assert spans["queue"] + inference == pytest.approx(whole)
    assert value(found, "request_queue_time_seconds", "_count") == 4
    assert value(found, "request_success", "_total", finished_reason="length") == 4
    exits = {(tier, reason): value(found, "exits", "_total", tier=tier, reason=reason)
             for tier in ("economy", "full") for reason in ("prompt", "max_depth")
             if (tier, reason) != ("economy", "max_depth")}  # fmt: skip
    assert exits[("economy", "prompt")] == 2 and exits[("full", "max_depth")] >= 16
    assert value(found, "exits", "_total", tier="economy", reason="converged") >= 1
    turns = value(found, "coda_batch_size", "_sum")
    assert value(found, "iteration_tokens_total", "_sum") >= turns >= 36


def test_the_queue_shows_in_its_time(serve):
    with serve(engine={"max_rows": 1, "places": 1}) as server, stream(server, max_tokens=40) as first:
        lines = first.iter_lines()  # held on to: a generator that is collected closes its connection
        next(lines)
        server.complete(max_tokens=1)
        found = families(server)
    assert value(found, "request_queue_time_seconds", "_sum") > value(found, "request_prefill_time_seconds", "_sum")


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
        scored = {"model": "tiny:economy", "prompt": [[7] * 120] * 30, "echo": True, "logprobs": 1, "max_tokens": 1}
        assert server.post("/v1/completions", **scored).status_code == 504
        server.idle()
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
