"""Whatever comes over the wire, the server stays up and answers /health."""

import json
import random
import socket
import time

import httpx
import pytest


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
