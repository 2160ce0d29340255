"""Structured output and tools: whatever the model would like to say, the output fits."""

import json
import re

import pytest

pytest.importorskip("llguidance", reason="the optional package llguidance is absent")

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "Who is it?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["celsius", "kelvin"]}},
            "required": ["unit"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("tier", ["economy", "full"])
def test_json_schema(server, tier):
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    answer = server.post(CHAT, messages=ASK, response_format=wanted, n=3, seed=1, model=f"tiny:{tier}").json()
    for choice in answer["choices"]:
        found = json.loads(choice["message"]["content"])
        assert set(found) == {"name", "age"} and 0 <= found["age"] <= 99
        assert choice["finish_reason"] == "stop"


def test_regex_choice_and_grammar(server):
    dated = server.complete(structured_outputs={"regex": r"[0-9]{4}-[0-9]{2}"}, max_tokens=20)["choices"][0]
    assert re.fullmatch(r"[0-9]{4}-[0-9]{2}", dated["text"]) and dated["finish_reason"] == "stop"
    picked = server.complete(structured_outputs={"choice": ["yes", "no (really)"]}, temperature=2, n=4, seed=3)
    assert {c["text"] for c in picked["choices"]} <= {"yes", "no (really)"}
    lark = server.complete(structured_outputs={"grammar": 'start: "a"+ "b"'}, max_tokens=60, seed=2, temperature=1)
    assert re.fullmatch("a+b?", lark["choices"][0]["text"])


def test_json_object(server):
    found = server.complete(response_format={"type": "json_object"}, max_tokens=30)["choices"][0]
    assert found["text"].startswith("{")


@pytest.mark.parametrize(
    "wanted",
    [
        {"structured_outputs": {"regex": "[0-9"}},
        {"structured_outputs": {"grammar": "start: nothing"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wrong"}}}},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        {"structured_outputs": {"regex": "a"}, "ignore_eos": True},
    ],
)
def test_faulty_formats_are_refused(server, wanted):
    assert server.refused(**wanted)["type"] == "invalid_request_error"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tools(server, choice):
    answer = server.post(CHAT, messages=ASK, tools=[TOOL], tool_choice=choice, model="tiny:economy").json()["choices"][
        0
    ]
    assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None
    call = answer["message"]["tool_calls"][0]
    assert call["function"]["name"] == "get_weather" and set(json.loads(call["function"]["arguments"])) == {"unit"}
    said = [*ASK, answer["message"], {"role": "tool", "tool_call_id": call["id"], "content": "12"}]
    assert server.post(CHAT, messages=said, max_tokens=2).status_code == 200


def test_tools_as_a_stream(server):
    body = {"model": "tiny:economy", "messages": ASK, "tools": [TOOL], "tool_choice": "required", "stream": True}
    with server.http.stream("POST", CHAT, json=body) as answer:
        chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    calls = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks]
    assert sum(call is not None for call in calls) == 1 and chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_tools_at_will(server):
    answer = server.post(CHAT, messages=ASK, tools=[TOOL], max_tokens=12, temperature=0).json()["choices"][0]
    assert answer["finish_reason"] in ("stop", "length", "tool_calls")
    none = server.post(CHAT, messages=ASK, tools=[TOOL], tool_choice="none", max_tokens=3).json()["choices"][0]
    assert none["message"]["content"]
    other = {"type": "function", "function": {"name": "other"}}
    assert server.refused(CHAT, messages=ASK, tools=[TOOL], tool_choice=other)["param"] == "tool_choice"
