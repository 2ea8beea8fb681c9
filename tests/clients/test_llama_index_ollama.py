"""Tests LlamaIndex's Ollama client against the real binary."""

import asyncio

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@pytest.fixture
def llm(server, model):
    def make(name=model, **fields):
        options = {"num_predict": 12, **fields.pop("additional_kwargs", {})}
        fields = {"base_url": server.url, "temperature": 0, "context_window": 1024, "request_timeout": 60, **fields}
        return Ollama(model=name, **fields, additional_kwargs=options)

    return make


def test_a_chat_is_answered(llm):
    answer = llm().chat([ChatMessage(QUESTION)])
    assert answer.message.role == "assistant" and answer.message.content == ANSWER and answer.raw["done_reason"] == "stop"
    assert asyncio.run(llm().achat([ChatMessage(QUESTION)])).message.content == ANSWER


def test_a_text_is_completed(llm):
    assert llm().complete(QUESTION).text == ANSWER


def test_answers_can_be_streamed(llm):
    pieces = list(llm().stream_chat([ChatMessage(QUESTION)]))
    assert "".join(piece.delta for piece in pieces) == ANSWER and pieces[-1].message.content == ANSWER
    assert [piece.text for piece in llm().stream_complete(QUESTION)][-1] == ANSWER


@pytest.mark.real_models
def test_a_tool_is_called(llm, coder):
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"In {city} it is sunny."

    model = llm(coder, additional_kwargs={"num_predict": 64})
    answer = model.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg="What is the weather in Paris? Use the tool.")
    (call,) = model.get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "Paris"})


def test_json_mode_is_followed(llm):
    answer = llm(json_mode=True, additional_kwargs={"num_predict": 60}).complete(QUESTION)
    assert answer.text.lstrip().startswith("{")
