"""Tests Pydantic AI against the real binary."""

import asyncio

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@pytest.fixture
def agent(url, model):
    chat = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key="none"))
    return Agent(chat, model_settings={"temperature": 0, "max_tokens": 12})


def test_an_agent_answers_with_text(agent, model):
    result = agent.run_sync(QUESTION)
    assert result.output == ANSWER
    usage = result.usage
    assert (usage.input_tokens, usage.output_tokens, usage.requests) == (37, 7, 1)
    answer = result.all_messages()[-1]
    assert isinstance(answer, ModelResponse) and answer.parts == [TextPart(ANSWER)]
    assert answer.model_name == model and answer.finish_reason == "stop" and answer.provider_response_id.startswith("chatcmpl-")


def test_a_conversation_continues(agent):
    first = agent.run_sync(QUESTION)
    second = agent.run_sync("And of Italy?", message_history=first.all_messages())
    assert second.usage.input_tokens > first.usage.total_tokens and len(second.all_messages()) == 4


def test_an_answer_is_streamed(agent):
    async def streamed():
        async with agent.run_stream(QUESTION) as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        return pieces, result.usage

    pieces, usage = asyncio.run(streamed())
    assert "".join(pieces) == ANSWER and len(pieces) > 3
    assert (usage.input_tokens, usage.output_tokens) == (37, 7), "usage on every chunk would be summed"


def test_errors_are_raised(agent, url):
    with pytest.raises(ModelHTTPError) as caught:
        agent.run_sync("hello " * 9000)
    assert caught.value.status_code == 400 and caught.value.body["code"] == "context_length_exceeded"
    unknown = OpenAIChatModel("nope", provider=OpenAIProvider(base_url=url, api_key="none"))
    with pytest.raises(ModelHTTPError) as caught:
        Agent(unknown).run_sync(QUESTION)
    assert caught.value.status_code == 404 and caught.value.body["code"] == "model_not_found"


class City(BaseModel):
    name: str
    country: str


ABOUT_PARIS = "Paris is the capital of France. Give the city's name and country as JSON."


@pytest.fixture
def coding_agent(url, coder):
    chat = OpenAIChatModel(coder, provider=OpenAIProvider(base_url=url, api_key="none"))
    return lambda **fields: Agent(chat, model_settings={"temperature": 0, "max_tokens": 120}, **fields)


@pytest.mark.real_models
@pytest.mark.parametrize("output", [ToolOutput, NativeOutput, PromptedOutput])
def test_output_has_its_type(coding_agent, output):
    assert coding_agent(output_type=output(City)).run_sync(ABOUT_PARIS).output == City(name="Paris", country="France")


@pytest.mark.real_models
def test_structured_output_can_be_streamed(coding_agent):
    async def streamed():
        async with coding_agent(output_type=NativeOutput(City)).run_stream(ABOUT_PARIS) as result:
            return [piece async for piece in result.stream_output(debounce_by=None)]

    assert asyncio.run(streamed())[-1] == City(name="Paris", country="France")


@pytest.mark.real_models
def test_a_tool_is_called_and_its_result_used(coding_agent):
    agent = coding_agent()
    asked = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return f"In {city} it is sunny, 24 degrees."

    result = agent.run_sync("What is the weather in Paris?")
    assert asked == ["Paris"] and "sunny" in result.output and result.usage.requests == 2
