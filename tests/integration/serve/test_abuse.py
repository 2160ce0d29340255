"""Whatever comes over the wire, the server stays up and answers /health."""

import concurrent.futures
import json
import random
import socket
import time

import httpx
import pydantic
import pytest

from loopwise.serve.schema import ChatRequest, CompletionRequest


@pytest.fixture(autouse=True)
def healthy(server):
    yield
    assert httpx.get(server.url + "/health", timeout=30, trust_env=False).status_code == 200


def raw(server, data=b""):
    found = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    found.sendall(data)
    return found


def post(body: bytes, kind=b"application/json"):
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: %s\r\n"
    head += b"content-length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


def answer(server, data: bytes) -> int:
    with raw(server, data) as link:
        text = b""
        while piece := link.recv(65536):
            text += piece
    return int(text.split()[1])


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"\xff\xfe\x00", b'{"model":"tiny","prompt":"\xc3\x28"}',
        b'{"model":"tiny","prompt":"\\ud800"}',
        b"[" * 100_000, b'{"a":' * 50_000, b'{"model":"tiny","prompt":"x","n":1e400}',
        b'{"model":"tiny","temperature":NaN,"prompt":"x"}',
        b'{"model":"tiny","prompt":"x","seed":' + b"9" * 5000 + b"}", b'{"model":"tiny","prompt":"x","model":7}',
    ],
)  # fmt: skip
def test_malformed_bodies(server, body):
    assert answer(server, post(body)) in (400, 413)


def test_other_content_types(server):
    assert answer(server, post(b"prompt=x&model=tiny", b"application/x-www-form-urlencoded")) == 400
    assert answer(server, post(b'{"model":"tiny","prompt":"x"}', b"text/plain")) == 400


def test_fuzzed_bodies(server):
    rng = random.Random(7)
    values = [
        None,
        True,
        -1,
        0,
        1,
        3.5,
        2**70,
        "",
        "x",
        "\u0000",
        "\U0001f600" * 9,
        [],
        [[]],
        ["a", 1],
        {},
        {"type": "text"},
    ]
    fields = (
        "prompt messages temperature top_p n stop logprobs stream depth logit_bias response_format structured_outputs "
        "tools seed echo max_tokens stream_options"
    ).split()
    for number in range(60):
        path = rng.choice(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/trace"])
        body = {"model": "tiny", "max_tokens": 2} | {
            f: rng.choice(values) for f in rng.sample(fields, rng.randint(1, 4))
        }
        found = server.http.post(path, json=body)
        assert found.status_code in (200, 400), (number, body, found.text)
        if found.status_code == 400:
            assert found.json()["error"]["message"]


def test_mutated_bodies(server):
    rng = random.Random(8)
    good = json.dumps(
        {"model": "tiny", "prompt": "The capital", "max_tokens": 2, "stop": ["a"], "logit_bias": {"5": 1}}
    ).encode()
    for _ in range(30):
        body = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        assert answer(server, post(bytes(body))) in (200, 400, 404)


@pytest.mark.parametrize("text", ["x" * 1_000_000, "word " * 200_000, "\U0001f600" * 250_000])
def test_prompts_of_a_megabyte(server, text):
    begun = time.monotonic()
    assert server.refused(prompt=text)["code"] == "context_length_exceeded"
    assert server.refused("/v1/chat/completions", messages=[{"role": "user", "content": text}])
    assert time.monotonic() - begun < 60


HALF = "\ud800"  # of a surrogate pair: JSON can hold it, UTF-8 cannot


@pytest.mark.parametrize(
    "body",
    [
        {"model": HALF}, {"model": f"tiny:{HALF}"}, {HALF: 1}, {"stop": [HALF]}, {"cache_salt": HALF},
        {"structured_outputs": {"choice": [HALF]}}, {"structured_outputs": {"json": {"const": HALF}}},
        {"depth": {"policy": HALF}}, {"logit_bias": {HALF: 1}}, {"response_format": {"type": HALF}},
    ],
)  # fmt: skip
def test_halves_of_surrogate_pairs_in_any_field(server, body):
    text = json.dumps({"model": "tiny", "prompt": "x", **body}).encode()
    assert answer(server, post(text)) in (400, 404)


def test_halves_of_surrogate_pairs_in_messages(server):
    for message in ({"content": [{"type": HALF}]}, {"content": HALF}, {"role": HALF}, {"content": "", "name": HALF}):
        text = json.dumps({"model": "tiny", "messages": [{"role": "user", **message}]})
        found = server.http.post("/v1/chat/completions", content=text, headers={"content-type": "application/json"})
        assert found.status_code == 400 and found.json()["error"]["message"]


@pytest.mark.parametrize("number", ["9" * 30, "4097"])
@pytest.mark.parametrize("name", ["min", "max", "every", "patience"])
def test_numbers_in_a_policy_that_no_tensor_holds(server, name, number):
    assert "depth.policy" in server.refused(depth={"policy": f"rel_change<0.1,{name}={number}"})["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["a", 1] * 100_000}, {"prompt": [-1] * 200_000}, {"prompt": [[1]] * 100_000},
        {"prompt": ["a"] * 100_000}, {f"x{i}": 1 for i in range(50_000)},
        {"prompt": "a", "logit_bias": {f"x{i}": 1 for i in range(50_000)}},
        {"prompt": "a", "metadata": {f"x{i}": 1 for i in range(50_000)}},
    ],
    ids=lambda body: "-".join(sorted(body))[:20],
)  # fmt: skip
def test_bodies_with_a_hundred_thousand_faults_are_not_described_in_full(server, body):
    with pytest.raises(pydantic.ValidationError) as caught:
        CompletionRequest.model_validate({"model": "tiny", **body})
    assert caught.value.error_count() <= 8
    assert len(server.refused(**body)["message"]) < 300


def test_faults_deep_in_a_conversation(server):
    for message in (
        {"role": "assistant", "tool_calls": [{}] * 100_000}, {"role": "user", f"x{1}": 1},
        {"role": "user", "content": [{"type": "text", "x": ""}] * 50_000},
        {"role": "user", **{f"x{i}": 1 for i in range(50_000)}},
    ):  # fmt: skip
        with pytest.raises(pydantic.ValidationError) as caught:
            ChatRequest.model_validate({"model": "tiny", "messages": [message]})
        assert caught.value.error_count() <= 4
        assert server.refused("/v1/chat/completions", messages=[message])


def test_a_schema_that_would_take_minutes_to_compile(server):
    pytest.importorskip("llguidance", reason="the optional package llguidance is absent")
    schema = {"type": "object", "properties": {f"k{i}": {} for i in range(20_000)}}
    assert "characters" in server.refused(structured_outputs={"json": schema})["message"]


def test_bodies_in_memory_are_bounded(serve):
    with serve(body_bytes=10_000) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n"
        links = [raw(server, head + b" " * 9998) for _ in range(70)]
        statuses = []
        for link in links:
            link.settimeout(0.2)
            try:
                statuses.append(int(link.recv(100).split()[1]))
            except TimeoutError:
                pass
        assert statuses and set(statuses) == {503}
        for link in links:
            link.close()
        until = time.monotonic() + 30
        while server.post("/v1/completions", prompt="A", max_tokens=1).status_code != 200:
            assert time.monotonic() < until, "bodies of clients that left are still counted"


def test_traces_that_wait_are_bounded(server):
    tokens = [5] * 120
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        found = list(
            pool.map(
                lambda _: httpx.post(server.url + "/v1/trace", json={"model": "tiny", "tokens": tokens, "last": 1},
                                     timeout=120, trust_env=False).status_code, range(40),
            )
        )  # fmt: skip
    assert set(found) <= {200, 503} and found.count(200) >= 16


@pytest.mark.parametrize(
    "data",
    [b"\x00" * 500, b"GET", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00" * 9,
     b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
     b"GET /%00%ff/.. HTTP/1.1\r\nhost: x\r\n\r\n",
     b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
     b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 100_000],
)  # fmt: skip
def test_bytes_that_are_no_request(server, data):
    with raw(server, data) as link:
        link.shutdown(socket.SHUT_WR)
        link.settimeout(30)
        try:
            while link.recv(65536):
                pass
        except ConnectionError:
            pass


def test_half_open_and_idle_connections(serve):
    with serve(header_s=1.0) as server:
        links = [raw(server) for _ in range(1000)]
        assert httpx.get(server.url + "/health", timeout=30, trust_env=False).status_code == 200
        slow = raw(server, b"GET /health HTTP/1.1\r\nhost: x\r\n")
        begun = time.monotonic()
        try:  # slowloris: a header now and then does not keep the connection
            while time.monotonic() - begun < 30:
                slow.sendall(b"x-a: b\r\n")
                time.sleep(0.2)
                slow.setblocking(False)
                try:
                    if slow.recv(1) == b"":
                        break
                except BlockingIOError:
                    pass
                slow.setblocking(True)
        except ConnectionError:
            pass
        assert time.monotonic() - begun < 30, "a request that never ends was kept"
        slow.close()
        for link in links:
            link.settimeout(30)
            try:
                assert link.recv(1) == b""
            except ConnectionError:
                pass
            link.close()
        kept = raw(server, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")  # a second, partial request on one connection
        assert b"200" in kept.recv(20)
        kept.sendall(b"GET /health HTTP/1.1\r\n")
        kept.settimeout(30)
        try:
            while kept.recv(65536):
                pass
        except ConnectionError:
            pass
        kept.close()
        assert httpx.get(server.url + "/health", timeout=30, trust_env=False).status_code == 200
