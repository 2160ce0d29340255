"""The openai client with strict validation, as its users call it."""

import asyncio

import openai
import pytest

TIERS = ["economy", "kl", "full"]


@pytest.fixture(scope="module")
def client(server):
    made = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True)
    with made:
        yield made


def test_models(client):
    ids = [model.id for model in client.models.list()]
    assert ids[0] == "tiny" and {"tiny:economy", "tiny:full"} <= set(ids)
    assert client.models.retrieve("tiny:economy").id == "tiny:economy"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


@pytest.mark.parametrize("tier", TIERS)
def test_chat(client, tier):
    answer = client.chat.completions.create(
        model=f"tiny:{tier}", messages=[{"role": "user", "content": "Once upon a time"}], max_tokens=6, seed=1,
        logprobs=True, top_logprobs=2,
    )  # fmt: skip
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
    assert choice.logprobs and choice.logprobs.content and len(choice.logprobs.content[0].top_logprobs) == 2
    assert answer.usage and answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    compute = answer.usage.model_extra["compute"]  # type: ignore[index]
    assert compute["tier"] == tier and 1 <= compute["mean_depth"] <= 8


def test_chat_stream(client):
    asked = dict(model="tiny", messages=[{"role": "user", "content": "The sea"}], max_tokens=9, seed=3)
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completion_stream(server):
    # Not strict: the client's own type forbids `finish_reason: null`, which every chunk but the last has.
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    asked = dict(model="tiny", prompt="The capital of", max_tokens=9, seed=3, n=2, logprobs=1)
    whole = client.completions.create(**asked)
    texts, tokens = ["", ""], [[], []]
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]


def test_asynchronous(server):
    async def work():
        base = server.url + "/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", _strict_response_validation=True) as client:
            many = [
                client.completions.create(model="tiny", prompt=f"Chapter {i}", max_tokens=5, temperature=0)
                for i in range(8)
            ]
            answers = await asyncio.gather(*many)
            stream = await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=5, stream=True
            )
            chunks = [chunk async for chunk in stream]
        return answers, chunks

    answers, chunks = asyncio.run(work())
    assert all(answer.usage.completion_tokens >= 1 for answer in answers) and len(chunks) >= 2


def test_errors(client):
    message = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny:cheap", messages=message)
    assert caught.value.param == "model" and "economy" in str(caught.value)
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=message)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="word " * 500)
    assert long.value.code == "context_length_exceeded"


def test_leaving_a_stream_early_frees_everything(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    with client.completions.create(model="tiny", prompt="A", max_tokens=100, stream=True) as stream:
        next(iter(stream))
    server.idle()


def test_raw_response_and_request_id(client):
    raw = client.completions.with_raw_response.create(
        model="tiny", prompt="A", max_tokens=1, extra_headers={"x-request-id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1" and raw.parse().id == "cmpl-mine-1"


def test_depth_and_effort(client):
    asked = dict(model="tiny", messages=[{"role": "user", "content": "The sea"}], max_tokens=4, temperature=0)
    least = client.chat.completions.create(**asked, reasoning_effort="none")
    most = client.chat.completions.create(**asked, reasoning_effort="max")
    assert least.usage.compute["mean_depth"] < most.usage.compute["mean_depth"] == 8
    own = client.chat.completions.create(**asked, extra_body={"depth": {"policy": "depth=2"}, "return_depths": True})
    assert own.usage.compute["tier"] == "custom" and own.choices[0].depths[1:] == [2, 2, 2]
