"""Tests LiteLLM's proxy against the real binary, through each of its providers that speaks one of the server's dialects."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest
from harness import MODEL, free_port, wait_until

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
# The provider's names, and whether its address ends with /v1.
PROVIDERS = {
    "openai": True,
    "openai/responses": True,
    "hosted_vllm": True,
    "lm_studio": True,
    "llamafile": True,
    "anthropic": False,
    "ollama_chat": False,
    "ollama": False,
}
# The tokens of the question. The provider `ollama` writes the conversation as one text.
TOKENS = {provider: 37 for provider in PROVIDERS} | {"ollama": 42}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"], "additionalProperties": False}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]},
    },
}


def answers(address: str) -> bool:
    try:
        return urllib.request.urlopen(address, timeout=1).status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def proxy(server, tmp_path_factory):
    """A client of the proxy, which offers the model once per provider."""

    def offered(provider: str, name: str, path: str) -> dict:
        return {"model_name": name, "litellm_params": {"model": f"{provider}/{MODEL}", "api_base": server.url + path, "api_key": "none"}}

    models = [offered(provider, provider, "/v1" if versioned else "") for provider, versioned in PROVIDERS.items()]
    models.append(offered("text-completion-openai", "text", "/v1"))
    folder = tmp_path_factory.mktemp("litellm")
    # the configuration is YAML, which JSON is a part of
    (folder / "config.yaml").write_text(json.dumps({"model_list": models, "router_settings": {"num_retries": 0}}))
    port = free_port()
    allowed = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    command = [Path(sys.executable).with_name("litellm"), "--config", folder / "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(command, cwd=folder, env=os.environ | allowed, stdout=log, stderr=log)
    try:
        wait_until(lambda: child.poll() is not None or answers(f"http://127.0.0.1:{port}/health/liveliness"), 170, "the proxy is ready")
        assert child.poll() is None, (folder / "log").read_text()
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60)
    finally:
        child.terminate()
        child.wait(20)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_chat_is_answered_and_streamed(proxy, provider):
    ask = {"model": provider, "messages": QUESTION, "temperature": 0, "max_tokens": 12}
    answer = proxy.chat.completions.create(**ask)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (ANSWER, "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (TOKENS[provider], 7)
    pieces = list(proxy.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    choices = [choice for piece in pieces for choice in piece.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == ANSWER
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    usage = next(piece.usage for piece in reversed(pieces) if piece.usage)
    assert (usage.prompt_tokens, usage.completion_tokens) == (TOKENS[provider], 7)


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "lm_studio", "anthropic", "ollama_chat"])
def test_a_schema_is_followed(proxy, provider):
    schema = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
    answer = proxy.chat.completions.create(model=provider, messages=QUESTION, response_format=schema, temperature=0, max_tokens=200)
    assert list(json.loads(answer.choices[0].message.content)) == ["city"]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_a_tool_that_must_be_called_is_called(proxy, provider):
    ask = {"model": provider, "messages": QUESTION, "tools": [WEATHER], "tool_choice": "required", "temperature": 0, "max_tokens": 200}
    ask["parallel_tool_calls"] = False
    choice = proxy.chat.completions.create(**ask).choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and call.function.name == "get_weather"
    assert list(json.loads(call.function.arguments)) == ["city"]
    pieces = [choice.delta.tool_calls for piece in proxy.chat.completions.create(**ask, stream=True) for choice in piece.choices]
    deltas = [delta for calls in pieces for delta in calls or []]
    assert "".join(delta.function.arguments or "" for delta in deltas) == call.function.arguments


def test_texts_are_continued_and_become_vectors(proxy):
    text = proxy.completions.create(model="text", prompt="The capital of France is", max_tokens=3, temperature=0).choices[0]
    assert text.text and text.finish_reason in ("stop", "length")
    vectors = proxy.embeddings.create(model="openai", input=["a", "b"]).data
    assert [vector.index for vector in vectors] == [0, 1] and len(vectors[0].embedding) == len(vectors[1].embedding)


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
def test_a_prompt_that_is_too_long_is_recognised(proxy, provider):
    """Only then does the proxy try the models that `context_window_fallbacks` names. It never recognises this error of Ollama's API."""
    with pytest.raises(openai.BadRequestError) as refused:
        proxy.chat.completions.create(model=provider, messages=[{"role": "user", "content": "x " * 60_000}])
    assert "ContextWindowExceededError" in str(refused.value)
