"""Tests LlamaIndex's OpenAILike against the real binary."""

import asyncio

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@pytest.fixture
def llm(url, model):
    def make(name=model, **fields):
        return OpenAILike(
            **{
                "model": name,
                "api_base": url,
                "api_key": "none",
                "is_chat_model": True,
                "temperature": 0,
                "max_tokens": 12,
                "max_retries": 0,
            }
            | fields
        )

    return make


def test_a_chat_is_answered(llm):
    answer = llm().chat([ChatMessage("You are a helpful assistant.", role="system"), ChatMessage(QUESTION)])
    assert answer.message.role == "assistant" and "Paris" in answer.message.content
    assert answer.raw.object == "chat.completion" and answer.additional_kwargs["completion_tokens"] > 0
    assert llm().chat([ChatMessage(QUESTION)]).message.content == ANSWER


def test_a_completion_is_answered(llm):
    assert llm().complete(QUESTION).text == ANSWER
    plain = llm(is_chat_model=False, max_tokens=6).complete("The capital of France is")
    assert "Paris" in plain.text and plain.raw.object == "text_completion"


def test_chat_and_completion_can_be_streamed(llm):
    pieces = list(llm().stream_chat([ChatMessage(QUESTION)]))
    assert "".join(piece.delta for piece in pieces) == ANSWER and pieces[-1].message.content == ANSWER
    assert (
        [piece.text for piece in llm(is_chat_model=False, max_tokens=6).stream_complete("The capital of France is")][-1]
        .strip()
        .startswith("Paris")
    )


def test_async_calls_are_answered(llm):
    async def both():
        answer = await llm().achat([ChatMessage(QUESTION)])
        stream = await llm().astream_chat([ChatMessage(QUESTION)])
        return answer.message.content, "".join([piece.delta async for piece in stream])

    assert asyncio.run(both()) == (ANSWER, ANSWER)


def test_errors_are_raised(llm):
    with pytest.raises(openai.NotFoundError) as caught:
        llm("nope").complete(QUESTION)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        llm().complete("hello " * 9000)
    assert caught.value.code == "context_length_exceeded"
