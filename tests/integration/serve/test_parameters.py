"""Every parameter does what it says, or is refused by name."""

import json

import pytest

from loopwise.serve.schema import UNSUPPORTED

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def test_list_and_token_prompts(server):
    one = server.complete("The capital of")["choices"][0]["text"]
    ids = server.post("/tokenize", prompt="The capital of").json()["tokens"]
    assert server.complete(ids)["choices"][0]["text"] == one
    answer = server.complete(["The capital of", "Once upon"], n=2)
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert texts[0] == texts[1] == one and texts[2] == texts[3] != one
    assert answer["usage"]["prompt_tokens"] == len(ids) + 2 or answer["usage"]["prompt_tokens"] > len(ids)
    assert [c["text"] for c in server.complete([ids, ids])["choices"]] == [one, one]


def test_tokenize_and_back(server):
    answer = server.post("/tokenize", prompt="Größe 12", return_token_strs=True).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert server.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": "Größe 12"}
    assert server.post("/tokenize", messages=HELLO).json()["count"] >= 1
    assert server.refused("/tokenize")["param"] == "prompt"
    assert "range" in server.refused("/detokenize", tokens=[10**6])["message"]


def test_seeds_and_n(server):
    asked = dict(temperature=1.0, seed=5, n=3, max_tokens=12)
    first, again = (server.complete(**asked)["choices"] for _ in range(2))
    assert [c["text"] for c in first] == [c["text"] for c in again]
    assert len({c["text"] for c in first}) > 1
    # Choice i draws what a request with seed + i draws.
    alone = server.complete(temperature=1.0, seed=7, max_tokens=12)["choices"][0]["text"]
    assert first[2]["text"] == alone


def test_stop_strings_across_tokens(server):
    text = server.complete(max_tokens=20)["choices"][0]["text"]
    stop = text[7:12]
    found = server.complete(max_tokens=20, stop=[stop])["choices"][0]
    assert found["text"] == text[: text.find(stop)] and found["finish_reason"] == "stop"
    assert found["stop_reason"] == stop
    kept = server.complete(max_tokens=20, stop=stop, include_stop_str_in_output=True)["choices"][0]
    assert kept["text"] == text[: text.find(stop)] + stop
    with server.http.stream(
        "POST", "/v1/completions", json={"model": "tiny", "prompt": "The capital of", "temperature": 0,
                                         "max_tokens": 20, "stop": stop, "stream": True},
    ) as answer:  # fmt: skip
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1]) == found["text"]


def test_stop_tokens_and_least_length(server):
    ids = server.complete(max_tokens=6, return_token_ids=True)["choices"][0]
    assert len(ids["token_ids"]) == 6 and ids["prompt_token_ids"]
    third = ids["token_ids"][2]
    ended = server.complete(max_tokens=6, stop_token_ids=[third], return_token_ids=True)["choices"][0]
    assert ended["finish_reason"] == "stop" and ended["token_ids"][-1] == third and ended["stop_reason"] == third
    longer = server.complete(max_tokens=6, stop_token_ids=[third], min_tokens=5, return_token_ids=True)
    assert len(longer["choices"][0]["token_ids"]) >= 5


def test_bias_and_penalties(server):
    plain = server.complete(return_token_ids=True)["choices"][0]["token_ids"]
    banned = server.complete(return_token_ids=True, logit_bias={str(plain[0]): -100})["choices"][0]["token_ids"]
    assert banned[0] != plain[0]
    varied = server.complete(return_token_ids=True, max_tokens=16, repetition_penalty=5.0)["choices"][0]["token_ids"]
    assert len(set(varied)) > len(set(server.complete(return_token_ids=True, max_tokens=16)["choices"][0]["token_ids"]))
    assert server.refused(logit_bias={"99999": 1})["param"] == "logit_bias"


def test_logprobs_and_echo(server):
    prompt = "The capital of"
    choice = server.complete(prompt, logprobs=3, echo=True, max_tokens=4)["choices"][0]
    found = choice["logprobs"]
    assert choice["text"].startswith(prompt) and "".join(found["tokens"]) == choice["text"]
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    assert all(value <= 0 for value in found["token_logprobs"][1:])
    pairs = zip(found["text_offset"], found["tokens"], strict=True)
    assert all(choice["text"][at:].startswith(token) for at, token in pairs)
    scored = server.complete(prompt, logprobs=3, echo=True, max_tokens=0)
    assert scored["choices"][0]["text"] == prompt and scored["usage"]["completion_tokens"] == 0
    assert scored["choices"][0]["logprobs"]["token_logprobs"] == found["token_logprobs"][: len(found["tokens"]) - 4]
    plain = server.complete(prompt, echo=True)["choices"][0]
    assert plain["text"].startswith(prompt) and plain["logprobs"] is None


def test_prompts_are_scored_under_the_tier(server):
    text = "The capital of the island"
    full, cheap = (
        server.post("/v1/completions", model=model, prompt=text, echo=True, logprobs=0, max_tokens=0)
        for model in ("tiny:full", "tiny:economy")
    )
    a, b = (found.json()["choices"][0]["logprobs"]["token_logprobs"][1:] for found in (full, cheap))
    assert a != b and max(abs(x - y) for x, y in zip(a, b, strict=True)) < 2
    generated = server.complete(text, logprobs=0, max_tokens=1, prompt_logprobs=1)["choices"][0]
    assert [max(e.values(), key=lambda v: v["logprob"])["rank"] for e in generated["prompt_logprobs"][1:]]


def test_depth_control(server):
    answer = server.complete(depth={"policy": "depth=3"}, return_depths=True)
    assert answer["choices"][0]["depths"][1:] == [3] * 7  # the first comes with the prompt
    compute = answer["usage"]["compute"]
    assert compute["loops"] == 8 + 21 and compute["loops_saved"] == 8 * 8 - compute["loops"]
    bounded = server.post("/v1/completions", model="tiny:economy", prompt="A", max_tokens=8, depth={"min": 4, "max": 5},
                          return_depths=True).json()  # fmt: skip
    assert set(bounded["choices"][0]["depths"][1:]) <= {4, 5} and bounded["usage"]["compute"]["tier"] == "custom"
    same = server.complete(depth={"max": 8})
    assert same["usage"]["compute"]["tier"] == "full"
    for depth in ({"policy": "kl<"}, {"policy": "depth=99"}, {"min": 5, "max": 2}, {"policy": "replay:/etc/passwd"}):
        assert "passwd" not in server.refused(depth=depth)["message"]


def test_tiers_by_name_and_effort(server):
    tiers = {m["id"]: m["tier"] for m in server.http.get("/v1/models").json()["data"]}
    efforts = [effort for name in tiers if ":" in name for effort in tiers[name]["efforts"]]
    assert sorted(efforts) == sorted(["none", "minimal", "low", "medium", "high", "xhigh", "max"])
    error = server.refused(model="tiny:cheap")
    assert error["code"] == "unknown_tier" and all(name.partition(":")[2] in error["message"] for name in tiers)
    assert server.refused(model="tiny:economy", reasoning_effort="max")["param"] == "reasoning_effort"
    assert server.refused(status=404, model="gpt-4")["code"] == "model_not_found"


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_parameters_are_refused_by_name(server, name):
    error = server.refused(CHAT, messages=HELLO, **{name: 3})
    assert error["param"] == name and name in error["message"]
    for neutral in UNSUPPORTED[name][:1]:
        assert server.post(CHAT, messages=HELLO, max_tokens=1, **{name: neutral}).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("n", 0), ("n", 65), ("stop", [""]),
        ("max_tokens", -1),
        ("stop", ["a"] * 17), ("logprobs", 21), ("seed", 1.5), ("presence_penalty", 3), ("max_tokens", 10**6),
        ("logit_bias", {"x": 1}), ("stream_options", {"include_usage": True}), ("reasoning_effort", "huge"),
        ("made_up", 1), ("prompt", []), ("prompt", [[]]), ("prompt", [-1]), ("prompt", [99999]), ("prompt", None),
        ("cache_salt", 5), ("response_format", {"type": "xml"}), ("depth", {"depth": 3}), ("stream", "yes"),
    ],
)  # fmt: skip
def test_wrong_values_name_their_field(server, field, value):
    error = server.refused(**{field: value})
    assert error["type"] == "invalid_request_error" and field in f"{error['param']} {error['message']}"


def test_chat_takes_its_own_answers_back(server):
    first = server.post(CHAT, messages=HELLO, max_tokens=4, temperature=0).json()["choices"][0]["message"]
    again = server.post(CHAT, messages=[*HELLO, first, {"role": "user", "content": "More"}], max_tokens=4)
    assert again.status_code == 200, again.text
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    assert "image_url" in server.refused(CHAT, messages=image)["message"]


def test_continue_final_message_and_truncation(server):
    said = [*HELLO, {"role": "assistant", "content": "The sea"}]
    answer = server.post(CHAT, messages=said, continue_final_message=True, max_tokens=3, temperature=0)
    assert answer.status_code == 200
    assert server.refused(CHAT, messages=said, continue_final_message=True, add_generation_prompt=True)
    cut = server.complete("word " * 500, truncate_prompt_tokens=20, max_tokens=2)
    assert cut["usage"]["prompt_tokens"] == 20


def test_cached_prompts_are_reported_and_kept_apart(server):
    prompt = list(range(300, 380))
    assert server.complete(prompt, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    warm = server.complete(prompt, max_tokens=1, model="tiny:economy")["usage"]
    assert warm["prompt_tokens_details"]["cached_tokens"] > 0
    salted = server.complete(prompt, max_tokens=1, cache_salt="other")["usage"]
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0


def test_trace_shows_each_depth(server):
    ids = server.post("/tokenize", prompt="The capital of the").json()["tokens"]
    found = server.post("/v1/trace", tokens=ids, last=2).json()
    assert found["depths"] == list(range(1, 9)) and len(found["choices"]) == 2
    assert all(len(row) == 8 and row[0] is None for rows in found["signals"].values() for row in rows)
    assert server.refused("/v1/trace", tokens=[1])
