"""Tests the official Python SDK against the real binary. Runs with the newest 2.x and the newest 3.x."""

import asyncio
import json

import openai
import pytest
from harness import wait_until

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
CAPITAL_IDS = [504, 3575, 282, 4649, 314]


def ask(client, model, **fields):
    return client.chat.completions.create(**{"model": model, "messages": CAPITAL, "max_tokens": 12, "temperature": 0, **fields})


def test_a_chat_is_answered(client, model):
    answer = ask(client, model)
    assert answer.object == "chat.completion" and answer.model == model and answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert choice.index == 0 and choice.finish_reason == "stop" and choice.logprobs is None
    assert choice.message.role == "assistant" and choice.message.content == "The capital of France is Paris."
    assert choice.message.refusal is None and not choice.message.tool_calls
    usage = answer.usage
    assert usage.prompt_tokens == 37 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0 and usage.completion_tokens_details.reasoning_tokens == 0
    assert answer._request_id


def test_a_chat_is_streamed(client, model):
    with ask(client, model, stream=True) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of France is Paris."
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_the_accumulator_of_the_sdk_works(client, model):
    with client.chat.completions.stream(
        model=model, messages=CAPITAL, max_tokens=12, temperature=0, stream_options={"include_usage": True}
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content == "The capital of France is Paris."
    assert final.choices[0].finish_reason == "stop" and final.usage.prompt_tokens == 37


def test_a_stream_has_usage(client, model):
    chunks = list(ask(client, model, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])
    whole = ask(client, model).usage
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (whole.prompt_tokens, whole.completion_tokens)


def test_completions_accept_every_form_of_prompt(client, model):
    def texts(prompt):
        answer = client.completions.create(model=model, prompt=prompt, max_tokens=6, temperature=0)
        assert answer.object == "text_completion" and [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]

    (text,) = texts("The capital of France is")
    assert "Paris" in text
    assert texts(["The capital of France is"]) == [text]
    assert texts(CAPITAL_IDS) == [text]
    assert texts([CAPITAL_IDS, CAPITAL_IDS]) == [text, text]
    assert texts(["The capital of France is", "Once upon a time"])[0] == text
    streamed = client.completions.create(model=model, prompt="The capital of France is", max_tokens=6, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == text


def test_an_unknown_model_is_not_found(client):
    for call in (lambda: ask(client, "nope"), lambda: ask(client, "nope", stream=True), lambda: client.models.retrieve("nope")):
        with pytest.raises(openai.NotFoundError) as caught:
            call()
        error = caught.value
        assert (error.status_code, error.code, error.param, error.type) == (404, "model_not_found", "model", "invalid_request_error")
        assert "nope" in error.message and error.request_id


def test_a_context_overflow_is_a_bad_request(client, model):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, model, messages=[{"role": "user", "content": "hello " * 9000}], stream=stream)
        error = caught.value
        assert (error.code, error.param, error.type) == ("context_length_exceeded", "messages", "invalid_request_error")
        assert "context_length_exceeded" in error.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt="hello " * 9000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_an_error_names_the_field(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, model, temperature=-1)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"


def test_models_are_listed_and_retrieved(client, model):
    listed = {entry.id: entry for entry in client.models.list()}
    assert listed[model].object == "model" and listed[model].owned_by
    assert client.models.retrieve(model).id == model  # the SDK sends smollm2%3A135m
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("meta-llama/Llama-3.1-8B")
    assert caught.value.code == "model_not_found"


def test_a_null_counts_as_absent(client, model):
    names = "frequency_penalty logit_bias logprobs n presence_penalty seed stop stream top_logprobs top_p stream_options".split()
    answer = ask(client, model, extra_body={name: None for name in names})
    assert answer.choices[0].message.content == "The capital of France is Paris."


def test_the_same_seed_repeats(client, model):
    def tell(seed):
        messages = [{"role": "user", "content": "Tell me a story."}]
        return ask(client, model, messages=messages, temperature=1, seed=seed, max_tokens=16).choices[0].message.content

    assert tell(5) == tell(5)
    assert len({tell(seed) for seed in (5, 6, 7)}) > 1


def test_stop_strings_end_the_text(client, model):
    for stop in (" Paris", ["nothing", " Paris"]):
        choice = ask(client, model, stop=stop).choices[0]
        assert choice.message.content == "The capital of France is" and choice.finish_reason == "stop"
        chunks = list(ask(client, model, stop=stop, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of France is"


def test_closing_a_stream_ends_the_request(client, model, server):
    stream = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    for number, _ in enumerate(stream):
        if number == 3:
            break
    stream.close()
    wait_until(lambda: server.gauge("num_requests_running") == 0, 2, "the aborted stream has ended")
    assert ask(client, model).choices[0].message.content == "The capital of France is Paris."


def test_two_hundred_requests_at_once_are_answered(server, model):
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=150) as client:

            async def whole():
                answer = await client.chat.completions.create(model=model, messages=CAPITAL, max_tokens=12, temperature=0)
                return answer.choices[0].message.content

            async def streamed():
                stream = await client.chat.completions.create(model=model, messages=CAPITAL, max_tokens=12, temperature=0, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(whole() if number % 2 else streamed() for number in range(200)))

    assert set(asyncio.run(all_of_them())) == {"The capital of France is Paris."}


def test_the_raw_response_has_its_headers(client, model):
    raw = client.chat.completions.with_raw_response.create(model=model, messages=CAPITAL, max_tokens=1)
    assert raw.headers["x-request-id"] and raw.headers["content-type"].startswith("application/json")
    assert json.loads(raw.text if isinstance(raw.text, str) else raw.text())["object"] == "chat.completion"
