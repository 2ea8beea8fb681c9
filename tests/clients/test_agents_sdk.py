"""OpenAI's Agents SDK against the real binary."""

import asyncio

import openai
import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled

set_tracing_disabled(True)

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@pytest.fixture
def agent(url, model):
    def make(name=model, **fields):
        chat = OpenAIChatCompletionsModel(name, openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0))
        settings = ModelSettings(temperature=0, max_tokens=12, include_usage=True)
        return Agent(name="Guide", model=chat, model_settings=settings, **fields)

    return make


def test_text(agent):
    result = Runner.run_sync(agent(), QUESTION)
    assert result.final_output == ANSWER
    usage = result.context_wrapper.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1, 37, 7, 44)


def test_instructions_and_turns(agent):
    guide = agent(instructions="You answer in one word.")
    first = Runner.run_sync(guide, QUESTION)
    second = Runner.run_sync(guide, [*first.to_input_list(), {"role": "user", "content": "And of Italy?"}])
    assert second.final_output and second.context_wrapper.usage.input_tokens > first.context_wrapper.usage.total_tokens


def test_streaming(agent):
    async def streamed():
        result = Runner.run_streamed(agent(), QUESTION)
        events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        return events, result

    events, result = asyncio.run(streamed())
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == ANSWER and result.final_output == ANSWER
    assert events[-1].type == "response.completed" and events[-1].response.usage.input_tokens == 37


def test_errors(agent):
    with pytest.raises(openai.NotFoundError) as caught:
        Runner.run_sync(agent("nope"), QUESTION)
    assert caught.value.code == "model_not_found"
