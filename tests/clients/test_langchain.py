"""Tests LangChain's ChatOpenAI against the real binary."""

import asyncio

import langchain_openai as langchain
import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def chat(server, model):
    return langchain.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="x", model=model, temperature=0, max_tokens=12, max_retries=0, timeout=60
    )


def test_invoke_answers(chat, model):
    answer = chat.invoke(QUESTION)
    assert isinstance(answer, AIMessage) and answer.content == "The capital of France is Paris."
    assert answer.usage_metadata["input_tokens"] == 37
    assert answer.usage_metadata["total_tokens"] == answer.usage_metadata["input_tokens"] + answer.usage_metadata["output_tokens"]
    assert answer.response_metadata["finish_reason"] == "stop" and answer.response_metadata["model_name"] == model


def test_a_conversation_is_answered(chat):
    messages = [SystemMessage("You answer in one word."), HumanMessage("Hi"), AIMessage("Hello."), HumanMessage(QUESTION)]
    answer = chat.invoke(messages)
    assert answer.content and answer.usage_metadata["input_tokens"] > 37


def test_a_stream_counts_usage_once(chat):
    total = None
    for chunk in chat.stream(QUESTION, stream_usage=True):
        total = chunk if total is None else total + chunk
    assert total.content == "The capital of France is Paris."
    assert total.usage_metadata["input_tokens"] == 37, "usage on every chunk would be summed"
    assert total.response_metadata["finish_reason"] == "stop"


def test_batch_and_async_answer(chat):
    assert [answer.content for answer in chat.batch([QUESTION] * 4)] == ["The capital of France is Paris."] * 4

    async def streamed():
        return "".join([chunk.content async for chunk in chat.astream(QUESTION)])

    assert asyncio.run(streamed()) == "The capital of France is Paris."


def test_a_context_overflow_is_recognised(chat):
    with pytest.raises(ContextOverflowError):
        chat.invoke("hello " * 9000)


def test_an_unknown_model_is_not_found(server):
    unknown = langchain.ChatOpenAI(base_url=f"{server.url}/v1", api_key="x", model="nope", max_retries=0)
    with pytest.raises(openai.NotFoundError) as caught:
        unknown.invoke("Hi")
    assert caught.value.code == "model_not_found"


def test_completions_are_answered(server, model):
    llm = langchain.OpenAI(base_url=f"{server.url}/v1", api_key="x", model=model, temperature=0, max_tokens=6, max_retries=0)
    assert "Paris" in llm.invoke("The capital of France is")
