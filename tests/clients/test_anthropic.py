"""Tests Anthropic's Python SDK against the real binary: answers, streams, two-step tools, thinking, counts, models and error classes."""

import asyncio
import json
import tempfile
from pathlib import Path

import anthropic
import pytest
from anthropic.types import OutputConfigParam, beta, message_create_params
from anthropic.types.beta import message_create_params as beta_params
from harness import MODEL, Server, cli

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
# The SDK's newest version has no parameter for the temperature.
GREEDY = {"temperature": 0}
# A template that opens reasoning unless reasoning is switched off.
THINKER = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="not-needed", max_retries=0, timeout=90)


@pytest.fixture(scope="module")
def thinker():
    path = cli("show", MODEL, "--json")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "thinker.jinja").write_text(THINKER)
        config = Path(folder, "models.toml")
        file = json.loads(path.stdout)["path"]
        config.write_text(
            f"[[models]]\nid = 'thinker'\nchat_template = '{folder}/thinker.jinja'\nsource = {{ type = 'file', path = '{file}' }}\n"
        )
        with Server({"SERVER__DEFAULT_MODELS": "thinker", "ENGINE__KV_TOKENS": "4096"}, args=("--config", str(config))) as running:
            yield anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0, timeout=90)


def ask(client, model, **fields):
    wanted = {"model": model, "messages": QUESTION, "max_tokens": 12, "extra_body": GREEDY, **fields}
    return client.messages.create(**wanted)


def test_no_field_of_the_sdk_is_unknown(server, model):
    """Every body field that the SDK can send is known: a wrong value may be refused, but with an error of its own."""
    wanted = {"model": model, "messages": QUESTION, "max_tokens": 1}

    def is_unknown(path: str, **fields) -> bool:
        reply = server.post("/v1/messages", {**wanted, **fields})
        return path in reply.headers.get("penstock-ignored-fields", "").split(", ") or "there is no field" in reply.body.decode()

    # The list of betas is sent as a header.
    params = {*message_create_params.MessageCreateParamsBase.__annotations__, *beta_params.MessageCreateParamsBase.__annotations__}
    assert {"user_profile_id", "fallbacks", "compaction"} < params
    unknown = [name for name in params - {"betas"} if is_unknown(name, **{name: {"type": "x"}})]
    outputs = {*OutputConfigParam.__annotations__, *beta.BetaOutputConfigParam.__annotations__}
    unknown += [name for name in outputs if is_unknown(f"output_config.{name}", output_config={name: 1})]
    for kind in ("Enabled", "Disabled", "Adaptive", "BetweenTools"):
        names = set(getattr(beta, f"BetaThinkingConfig{kind}Param").__annotations__) - {"type"}
        spelt = "between_tools" if kind == "BetweenTools" else kind.lower()
        unknown += [(kind, name) for name in names if is_unknown(f"thinking.{name}", thinking={"type": spelt, name: "x"})]
    unknown += [name for name in beta.BetaToolParam.__annotations__ if is_unknown(f"tools.{name}", tools=[{name: 1}])]
    assert unknown == []


def test_a_message_is_answered(client, model):
    message = ask(client, model)
    assert (message.type, message.role, message.model, message.stop_reason) == ("message", "assistant", model, "end_turn")
    assert [block.type for block in message.content] == ["text"] and message.content[0].text == ANSWER
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == 37 and message.usage.output_tokens == 7
    assert message._request_id


def test_a_message_is_streamed(client, model):
    with client.messages.stream(model=model, messages=QUESTION, max_tokens=12, extra_body=GREEDY) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(texts) > 3 and "".join(texts) == final.content[0].text == ANSWER
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == 7
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens == 37
    events = [event.type for event in ask(client, model, stream=True)]
    assert events[:2] == ["message_start", "content_block_start"] and events[-2:] == ["message_delta", "message_stop"]


def test_the_async_client_streams_too(server, model):
    async def run():
        client = anthropic.AsyncAnthropic(base_url=server.url, auth_token="not-needed", max_retries=0)
        async with client.messages.stream(model=model, messages=QUESTION, max_tokens=12, extra_body=GREEDY) as stream:
            return (await stream.get_final_message()).content[0].text

    assert asyncio.run(run()) == ANSWER


def test_stop_sequences_are_reported(client, model):
    message = ask(client, model, stop_sequences=[" Paris"])
    assert (message.stop_reason, message.stop_sequence, message.content[0].text) == ("stop_sequence", " Paris", "The capital of France is")
    assert ask(client, model, max_tokens=2).stop_reason == "max_tokens"


@pytest.mark.real_models
@pytest.mark.parametrize("streams", [False, True])
def test_a_tool_is_called_and_its_result_answered(client, coder, streams):
    def send(**fields):
        wanted = {"model": coder, "max_tokens": 80, "extra_body": GREEDY, "tools": [WEATHER], **fields}
        if not streams:
            return client.messages.create(**wanted)
        with client.messages.stream(**wanted) as stream:
            return stream.get_final_message()

    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = send(messages=messages, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert call.name == "get_weather" and call.input == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "In Paris it is sunny, 24 degrees."}]}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = send(messages=messages)
    assert second.stop_reason == "end_turn" and "24" in second.content[0].text
    assert second.usage.cache_read_input_tokens > 100, "the second step reads the first one's prompt from the cache"


@pytest.mark.real_models
def test_the_sdks_own_loop_runs_tools(client, coder):
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: The city.
        """
        return f"In {city} it is sunny, 24 degrees."

    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    runner = client.beta.messages.tool_runner(
        model=coder, max_tokens=80, extra_body=GREEDY, tools=[get_weather], messages=messages, max_iterations=3
    )
    final = runner.until_done()
    assert final.stop_reason == "end_turn" and "24" in final.content[0].text


def test_an_answer_is_parsed_into_a_type(client, model):
    import pydantic

    class Capital(pydantic.BaseModel):
        city: str

    message = client.messages.parse(model=model, messages=QUESTION, max_tokens=40, extra_body=GREEDY, output_format=Capital)
    assert isinstance(message.parsed_output, Capital) and message.parsed_output.city


def test_thinking_comes_in_its_own_block(thinker):
    fields = {"model": "thinker", "messages": QUESTION, "max_tokens": 1100, "extra_body": GREEDY}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with thinker.messages.stream(**fields, thinking=thinking) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_message()
    thought = streamed.content[0]
    assert thought.type == "thinking" and thought.thinking and thought.signature
    assert "thinking" in events and "signature" in events
    whole = thinker.messages.create(**fields, thinking=thinking)
    assert [block.model_dump() for block in whole.content] == [block.model_dump() for block in streamed.content]
    answer = {"role": "assistant", "content": [thought, {"type": "text", "text": "Paris."}]}
    more = {**fields, "messages": [*QUESTION, answer, {"role": "user", "content": "Sure?"}], "max_tokens": 4}
    assert thinker.messages.create(**more, thinking={"type": "disabled"}).content[0].type == "text"


def test_tokens_are_counted(client, model, coder):
    assert client.messages.count_tokens(model=model, messages=QUESTION).input_tokens == 37
    plain = client.messages.count_tokens(model=coder, messages=QUESTION).input_tokens
    assert client.messages.count_tokens(model=coder, messages=QUESTION, tools=[WEATHER], system="Be brief.").input_tokens > plain + 20


def test_the_models_are_listed(client, model, coder):
    page = client.models.list(limit=1)
    assert len(page.data) == 1 and page.has_more
    ids = [one.id for one in client.models.list(limit=1)]
    assert {model, coder} <= set(ids) and len(ids) == len(set(ids)), "the SDK walks through the pages"
    one = client.models.retrieve(model)
    assert (one.id, one.type, one.display_name, one.lifecycle) == (model, "model", model, "active") and one.created_at.year >= 2020


def test_each_error_has_its_class(client, model):
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(client, "nope")
    assert caught.value.type == "not_found_error" and "nope" in caught.value.message and caught.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nope")
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, model, extra_body={"temperature": 5})
    assert "temperature" in caught.value.message and caught.value.type == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, model, extra_body={"max_token": 3})
    assert "max_tokens" in caught.value.message
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, model, messages=[{"role": "user", "content": "word " * 9000}])
    assert "prompt is too long" in caught.value.message


def test_keys_and_limits_have_their_classes(tmp_path, model):
    config = {"AUTH__KEYS_FILE": str(tmp_path / "keys.toml")}
    made = [cli("keys", "add", "one", "--requests-per-minute", "1", env=config), cli("keys", "add", "two", "--model", "other", env=config)]
    assert all(done.returncode == 0 for done in made), [done.stderr for done in made]
    key, other = (done.stdout.strip() for done in made)
    with Server({**config, "SERVER__DEFAULT_MODELS": MODEL, "LIMITS__MAX_QUEUE": "1", "ENGINE__MAX_RUNNING": "1"}) as server:
        of = lambda key: anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as caught:
            ask(of("wrong"), model)
        assert caught.value.type == "authentication_error"
        with pytest.raises(anthropic.PermissionDeniedError) as caught:
            ask(of(other), model)
        assert caught.value.type == "permission_error"
        assert ask(of(key), model).content
        with pytest.raises(anthropic.RateLimitError) as caught:
            ask(of(key), model)
        assert caught.value.type == "rate_limit_error" and float(caught.value.response.headers["retry-after"]) >= 1
