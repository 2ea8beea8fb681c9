"""Tests what the official Python SDK stores on the server: files, batches, conversations, background responses and chat completions."""

import json
import time

import openai
import pytest
from harness import MODEL, Server


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    config = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "8192", "STORAGE__FOLDER": str(tmp_path_factory.mktemp("kept"))}
    with Server(config) as running:
        yield openai.OpenAI(base_url=f"{running.url}/v1", api_key="not-needed", max_retries=0, timeout=60)


def poll(get, ended: set[str]):
    end = time.monotonic() + 120
    while (thing := get()).status not in ended:
        assert time.monotonic() < end, thing
        time.sleep(0.1)
    return thing


def test_a_batch_goes_from_a_file_to_a_file(kept, model):
    lines = [
        {"custom_id": f"q{i}", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": model, "messages": [{"role": "user", "content": f"Say {i}."}], "max_tokens": 6}}
        for i in range(4)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = kept.files.create(file=("in.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.purpose == "batch" and file.expires_at == file.created_at + 3600
    assert kept.files.retrieve(file.id) == file and kept.files.content(file.id).read() == content
    assert file.id in [one.id for one in kept.files.list(purpose="batch", limit=1)]
    made = kept.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"})
    batch = poll(lambda: kept.batches.retrieve(made.id), {"completed", "failed"})
    assert batch.status == "completed" and batch.request_counts.completed == 4 and batch.metadata == {"a": "b"}
    out = [json.loads(line) for line in kept.files.content(batch.output_file_id).text.splitlines()]
    assert {line["custom_id"] for line in out} == {"q0", "q1", "q2", "q3"}
    assert made.id in [one.id for one in kept.batches.list(limit=1)]
    with pytest.raises(openai.BadRequestError):
        kept.batches.cancel(made.id)
    assert kept.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        kept.files.retrieve(file.id)


def test_a_response_in_the_background(kept, model):
    to_the_limit = {"max_output_tokens": 16, "extra_body": {"ignore_eos": True}}
    queued = kept.responses.create(model=model, input="Count to five.", background=True, **to_the_limit)
    assert queued.status == "queued"
    done = poll(lambda: kept.responses.retrieve(queued.id), {"completed", "incomplete", "failed"})
    assert done.status == "incomplete" and done.output_text
    events = list(kept.responses.retrieve(queued.id, stream=True, starting_after=1))
    assert events[0].type == "response.in_progress" and events[-1].response.output_text == done.output_text
    running = kept.responses.create(model=model, input="x", background=True, extra_body={"ignore_eos": True})
    assert kept.responses.cancel(running.id).status == "cancelled"
    assert [item.content[0].text for item in kept.responses.input_items.list(queued.id)] == ["Count to five."]
    assert kept.responses.input_tokens.count(model=model, input="Count to five.").input_tokens == done.usage.input_tokens


def test_a_conversation_grows(kept, model):
    conversation = kept.conversations.create(metadata={"a": "b"}, items=[{"type": "message", "role": "user", "content": "I am Zork."}])
    answer = kept.responses.create(model=model, conversation=conversation.id, input="Who am I?", max_output_tokens=8)
    assert answer.conversation.id == conversation.id
    items = list(kept.conversations.items.list(conversation.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "user", "assistant"]
    assert kept.conversations.items.retrieve(items[0].id, conversation_id=conversation.id).content[0].text == "I am Zork."
    more = kept.conversations.items.create(conversation.id, items=[{"type": "message", "role": "user", "content": "More."}])
    assert len(more.data) == 1
    assert kept.conversations.items.delete(items[0].id, conversation_id=conversation.id).id == conversation.id
    assert kept.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert kept.conversations.retrieve(conversation.id).metadata == {"c": "d"}
    assert kept.conversations.delete(conversation.id).deleted


def test_a_chat_is_stored(kept, model):
    messages = [{"role": "user", "content": "Say one."}]
    made = kept.chat.completions.create(model=model, messages=messages, max_tokens=6, store=True, metadata={"kind": "x"})
    assert made.id in [chat.id for chat in kept.chat.completions.list(metadata={"kind": "x"}, limit=1)]
    assert kept.chat.completions.retrieve(made.id).choices[0].message.content == made.choices[0].message.content
    assert [message.content for message in kept.chat.completions.messages.list(made.id)] == ["Say one."]
    assert kept.chat.completions.update(made.id, metadata={"kind": "y"}).metadata == {"kind": "y"}
    assert list(kept.chat.completions.list(metadata={"kind": "x"})) == []
    assert kept.chat.completions.delete(made.id).deleted
