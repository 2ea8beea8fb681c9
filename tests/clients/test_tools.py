"""Tests tools and structured output through OpenAI's SDK and LangChain."""

import json

import pydantic
import pytest
from harness import Server

MODEL = "qwen2.5-coder:0.5b"
QUESTION = "What is the weather in Oslo? Use the tool."
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "A city's name"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "Get the current weather in a city", "parameters": PARAMETERS, "strict": True},
    }
]


def get_weather(city: str) -> str:
    """Get the current weather in a city."""
    return f"It is sunny and 21 degrees in {city}."


@pytest.fixture(scope="module")
def coder():
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "8192"}) as running:
        yield running


@pytest.fixture(scope="module")
def client(coder):
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{coder.url}/v1", api_key="x", max_retries=0, timeout=120)


@pytest.mark.real_models
def test_the_result_of_a_call_is_answered(client):
    messages = [{"role": "user", "content": QUESTION}]
    first = client.chat.completions.create(
        model=MODEL, messages=messages, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, temperature=0
    )
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather" and "Oslo" in arguments["city"]
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": get_weather(**arguments)}]
    second = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, temperature=0, max_tokens=60)
    assert second.choices[0].finish_reason == "stop" and second.usage.prompt_tokens > first.usage.prompt_tokens, second
    assert "sunny" in second.choices[0].message.content and "21" in second.choices[0].message.content, second


def test_choices_that_are_asked_again_differ(client):
    """This model repeats a call that has a result, so the server asks again with only the result."""
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": get_weather("Oslo")},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, n=6, temperature=1.2, seed=5, max_tokens=60)
    assert len({choice.message.content for choice in answer.choices if choice.message.content}) > 1, answer


@pytest.mark.real_models
def test_the_model_decides_to_make_a_call(client):
    auto = dict(model=MODEL, tools=TOOLS, temperature=0, max_tokens=80)
    called = client.chat.completions.create(messages=[{"role": "user", "content": QUESTION}], **auto)
    assert called.choices[0].finish_reason == "tool_calls", called
    assert "Oslo" in json.loads(called.choices[0].message.tool_calls[0].function.arguments)["city"]


def test_a_streamed_call_is_put_together_by_the_sdk(client):
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds and kinds.count("tool_calls.function.arguments.done") == 1
    (call,) = final.choices[0].message.tool_calls
    assert call.function.parsed_arguments["city"]


class City(pydantic.BaseModel):
    name: str
    country: str
    population_in_millions: float


@pytest.mark.real_models
def test_parse_gives_an_object(client):
    parsed = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Describe Paris as JSON."}], response_format=City, temperature=0, max_tokens=120
    )
    city = parsed.choices[0].message.parsed
    assert isinstance(city, City) and city.name == "Paris" and city.country == "France"


@pytest.fixture(scope="module")
def langchain_model(coder):
    langchain = pytest.importorskip("langchain_openai")
    return langchain.ChatOpenAI(
        base_url=f"{coder.url}/v1", api_key="x", model=MODEL, temperature=0, max_tokens=120, max_retries=0, timeout=120
    )


@pytest.mark.real_models
@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_langchain_gets_structured_output(langchain_model, method):
    fields = "name, country and population_in_millions"
    city = langchain_model.with_structured_output(City, method=method).invoke(f"Describe the city of Paris as a JSON object with {fields}.")
    assert isinstance(city, City) and city.name == "Paris"


@pytest.mark.real_models
def test_langchain_gets_a_call(langchain_model):
    answer = langchain_model.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False).invoke(QUESTION)
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather" and "Oslo" in call["args"]["city"] and not answer.invalid_tool_calls
