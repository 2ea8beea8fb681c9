"""Tests LangChain's structured output, tools and agents against the real binary."""

import asyncio

import langchain_openai
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

ABOUT_PARIS = "Paris is the capital of France. Give the city's name and country as JSON with the keys name and country."
WEATHER = "What is the weather in Paris?"


class City(BaseModel):
    """A city."""

    name: str
    country: str


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"In {city} it is sunny, 24 degrees."


@pytest.fixture(scope="module")
def chat(url, coder):
    return langchain_openai.ChatOpenAI(base_url=url, api_key="x", model=coder, temperature=0, max_tokens=120, max_retries=0, timeout=90)


@pytest.mark.real_models
@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output_has_its_type(chat, method):
    answer = chat.with_structured_output(City, method=method).invoke(ABOUT_PARIS)
    assert answer == City(name="Paris", country="France")


@pytest.mark.real_models
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_strict_output_comes_with_the_raw_message(chat, method):
    answer = chat.with_structured_output(City, method=method, strict=True, include_raw=True).invoke(ABOUT_PARIS)
    assert answer["parsing_error"] is None and answer["parsed"] == City(name="Paris", country="France")
    assert answer["raw"].usage_metadata["output_tokens"] > 5


@pytest.mark.real_models
def test_structured_output_can_be_streamed(chat):
    pieces = list(chat.with_structured_output(City.model_json_schema(), method="json_schema").stream(ABOUT_PARIS))
    assert len(pieces) > 1 and pieces[-1] == {"name": "Paris", "country": "France"}


@pytest.mark.real_models
def test_a_call_is_made_and_its_result_answered(chat):
    bound = chat.bind_tools([get_weather])
    first = bound.invoke(WEATHER)
    (call,) = first.tool_calls
    assert (call["name"], call["args"], call["type"]) == ("get_weather", {"city": "Paris"}, "tool_call") and call["id"]
    assert first.response_metadata["finish_reason"] == "tool_calls" and not first.invalid_tool_calls
    last = bound.invoke([HumanMessage(WEATHER), first, get_weather.invoke(call)])
    assert not last.tool_calls and "sunny" in last.content and "{" not in last.content


@pytest.mark.real_models
@pytest.mark.parametrize("choice", ["any", "get_weather"])
def test_a_call_can_be_streamed(chat, choice):
    total = None
    for chunk in chat.bind_tools([get_weather], tool_choice=choice).stream(WEATHER, stream_usage=True):
        total = chunk if total is None else total + chunk
    (call,) = total.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"}) and call["id"]
    assert total.usage_metadata["input_tokens"] > 50 and not total.invalid_tool_calls


@pytest.mark.real_models
def test_an_agent_uses_its_tool(chat):
    messages = create_agent(chat, [get_weather]).invoke({"messages": [("user", WEATHER)]})["messages"]
    assert [type(message) for message in messages] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert messages[2].content == "In Paris it is sunny, 24 degrees." and "sunny" in messages[3].content


@pytest.mark.real_models
def test_an_agent_can_be_streamed(chat):
    async def streamed():
        agent = create_agent(chat, [get_weather])
        return [chunk async for chunk, _ in agent.astream({"messages": [("user", WEATHER)]}, stream_mode="messages")]

    pieces = asyncio.run(streamed())
    (result,) = [piece for piece in pieces if isinstance(piece, ToolMessage)]
    assert result.content == "In Paris it is sunny, 24 degrees."
    answer = [piece for piece in pieces[pieces.index(result) + 1 :] if isinstance(piece, AIMessage)]
    assert len(answer) > 2 and "sunny" in "".join(piece.content for piece in answer)


@pytest.mark.real_models
def test_an_agent_works_over_responses(chat, url, coder):
    """Runs the agent over the Responses API."""
    model = langchain_openai.ChatOpenAI(
        base_url=url, api_key="x", model=coder, temperature=0, max_tokens=120, max_retries=0, timeout=90, use_responses_api=True
    )
    messages = create_agent(model, [get_weather]).invoke({"messages": [("user", WEATHER)]})["messages"]
    assert [type(message) for message in messages] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert messages[1].tool_calls[0]["args"] == {"city": "Paris"} and "sunny" in messages[3].text
    assert model.with_structured_output(City).invoke(ABOUT_PARIS) == City(name="Paris", country="France")


@pytest.mark.real_models
def test_the_answer_of_an_agent_has_its_type(chat):
    from langchain.agents.structured_output import ProviderStrategy

    agent = create_agent(chat, [], response_format=ProviderStrategy(City))
    assert agent.invoke({"messages": [("user", ABOUT_PARIS)]})["structured_response"] == City(name="Paris", country="France")
