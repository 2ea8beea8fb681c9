"""Tests LangChain's ChatAnthropic against the real binary."""

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"In {city} it is sunny, 24 degrees."


def chat(server, model, **fields):
    wanted = {"max_tokens": 60, "temperature": 0, "max_retries": 0, "timeout": 90, **fields}
    return ChatAnthropic(model=model, base_url=server.url, api_key="none", **wanted)


def test_an_answer_has_its_usage(server, model):
    answer = chat(server, model).invoke([HumanMessage(QUESTION)])
    assert answer.content == ANSWER and answer.response_metadata["stop_reason"] == "end_turn"
    usage = answer.usage_metadata
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (37, 7, 44)
    assert chat(server, model).invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)]).content


def test_a_stream_adds_up(server, model):
    chunks = list(chat(server, model).stream(QUESTION))
    assert len(chunks) > 3
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.text == ANSWER
    usage = whole.usage_metadata
    assert (usage["input_tokens"], usage["output_tokens"]) == (37, 7), "nothing is counted twice"


@pytest.mark.real_models
@pytest.mark.parametrize("streams", [False, True])
def test_tools_in_two_steps(server, coder, streams):
    bound = chat(server, coder, streaming=streams).bind_tools([get_weather], tool_choice="any")
    question = HumanMessage("What is the weather in Paris?")
    call = bound.invoke([question])
    (made,) = call.tool_calls
    assert (made["name"], made["args"]) == ("get_weather", {"city": "Paris"})
    result = ToolMessage(get_weather.invoke(made["args"]), tool_call_id=made["id"])
    answer = chat(server, coder, streaming=streams).bind_tools([get_weather]).invoke([question, call, result])
    assert "24" in answer.text and not answer.tool_calls


def test_structured_output(server, coder):
    class Capital(BaseModel):
        """The capital of a country."""

        city: str

    for method in ("function_calling", "json_schema"):
        found = chat(server, coder).with_structured_output(Capital, method=method).invoke("What is the capital of France? Name the city.")
        assert isinstance(found, Capital) and found.city, method


def test_tokens_are_counted(server, model):
    assert chat(server, model).get_num_tokens_from_messages([HumanMessage(QUESTION)]) == 37
