"""Tests OpenAI's Agents SDK against the real binary."""

import asyncio

import openai
import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from pydantic import BaseModel

set_tracing_disabled(True)

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel], ids=["chat", "responses"])
def agent(request, url, model):
    def make(name=model, **fields):
        chat = request.param(name, openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0))
        settings = ModelSettings(temperature=0, max_tokens=12 if name == model else 120, include_usage=True)
        return Agent(name="Guide", model=chat, model_settings=settings, **fields)

    return make


def test_an_agent_answers_with_text(agent):
    result = Runner.run_sync(agent(), QUESTION)
    assert result.final_output == ANSWER
    usage = result.context_wrapper.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1, 37, 7, 44)


def test_instructions_and_earlier_turns_are_used(agent):
    guide = agent(instructions="You answer in one word.")
    first = Runner.run_sync(guide, QUESTION)
    second = Runner.run_sync(guide, [*first.to_input_list(), {"role": "user", "content": "And of Italy?"}])
    assert second.final_output and second.context_wrapper.usage.input_tokens > first.context_wrapper.usage.total_tokens


def test_an_answer_is_streamed(agent):
    async def streamed():
        result = Runner.run_streamed(agent(), QUESTION)
        events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        return events, result

    events, result = asyncio.run(streamed())
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == ANSWER and result.final_output == ANSWER
    assert events[-1].type == "response.completed" and events[-1].response.usage.input_tokens == 37


def test_errors_are_those_of_the_sdk(agent):
    with pytest.raises(openai.NotFoundError) as caught:
        Runner.run_sync(agent("nope"), QUESTION)
    assert caught.value.code == "model_not_found"


class City(BaseModel):
    name: str
    country: str


@pytest.mark.real_models
def test_an_answer_has_the_type_that_is_asked_for(agent, coder):
    result = Runner.run_sync(agent(coder, output_type=City), "Paris is the capital of France. Give the city's name and country as JSON.")
    assert result.final_output == City(name="Paris", country="France")


@pytest.mark.real_models
def test_a_tool_is_called_and_its_result_used(agent, coder):
    asked = []

    @function_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return f"In {city} it is sunny, 24 degrees."

    result = Runner.run_sync(agent(coder, tools=[get_weather]), "What is the weather in Paris?")
    assert asked == ["Paris"] and "sunny" in result.final_output and result.context_wrapper.usage.requests == 2

    asked.clear()

    async def streamed():
        result = Runner.run_streamed(agent(coder, tools=[get_weather]), "What is the weather in Paris?")
        kinds = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
        return kinds, result.final_output

    kinds, output = asyncio.run(streamed())
    assert kinds == ["tool_called", "tool_output", "message_output_created"] and "sunny" in output and asked == ["Paris"]
