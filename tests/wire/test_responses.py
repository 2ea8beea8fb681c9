"""/v1/responses on the wire: the whole answer, the events in their order, the store."""

import json

import pytest
from harness import MODEL, Server

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


def respond(server, text=QUESTION, **fields):
    return server.post("/v1/responses", {"model": MODEL, "input": text, "temperature": 0, "max_output_tokens": 12, **fields})


def text_of(response: dict) -> str:
    (message,) = response["output"]
    assert message["type"] == "message" and message["role"] == "assistant" and message["id"].startswith("msg_")
    (part,) = message["content"]
    assert part["type"] == "output_text" and part["annotations"] == []
    return part["text"]


def events_of(reply) -> list[dict]:
    """Each event's name is its type, and they are numbered from 0."""
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in reply.body.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: ")
        events.append(json.loads(data[6:]))
        assert events[-1]["type"] == name[7:]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def test_whole_answer(server):
    response = respond(server).json()
    assert response["object"] == "response" and response["id"].startswith("resp_") and response["model"] == MODEL
    assert response["status"] == "completed" and response["error"] is None and response["incomplete_details"] is None
    assert text_of(response) == ANSWER
    usage = response["usage"]
    assert usage["input_tokens"] == 37 and usage["total_tokens"] == 37 + usage["output_tokens"] and usage["output_tokens"] > 0
    assert usage["input_tokens_details"]["cached_tokens"] >= 0 and usage["output_tokens_details"] == {"reasoning_tokens": 0}
    given = {"temperature": 0, "top_p": 1, "max_output_tokens": 12, "instructions": None, "previous_response_id": None, "store": True,
             "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "truncation": "disabled", "metadata": {}, "background": False}
    assert {name: response[name] for name in given} == given


def test_cut_by_the_limit(server):
    response = respond(server, max_output_tokens=3).json()
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete" and text_of(response) == "The capital of"


def test_instructions_and_forms_of_input(server):
    system = [{"role": "system", "content": "Answer in French."}]
    chat = server.chat(messages=[*system, {"role": "user", "content": QUESTION}], max_tokens=12).json()
    expected = chat["choices"][0]["message"]["content"]
    as_item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}
    for fields in ({"instructions": "Answer in French."}, {"text": [*system, as_item]}, {"text": [{**system[0], "role": "developer"}, as_item]}):
        response = respond(server, **fields).json()
        assert text_of(response) == expected and response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"], fields


def test_events_come_in_their_order(server):
    whole = respond(server, metadata={"a": "b"}).json()
    events = events_of(respond(server, metadata={"a": "b"}, stream=True))
    types = [event["type"] for event in events]
    deltas = types.count("response.output_text.delta")
    assert types == (
        ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
        + ["response.output_text.delta"] * deltas
        + ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]
    )
    assert deltas > 3 and "".join(event["delta"] for event in events if event["type"].endswith("delta")) == ANSWER
    first, last = events[0]["response"], events[-1]["response"]
    assert first["status"] == "in_progress" and first["output"] == [] and first["usage"] is None and first["metadata"] == {"a": "b"}
    assert text_of(last) == text_of(whole) and last["status"] == "completed" and first["id"] == last["id"]
    assert {**last["usage"], "input_tokens_details": None} == {**whole["usage"], "input_tokens_details": None}
    (message,) = last["output"]
    added, done = (event for event in events if event["type"].startswith("response.output_item"))
    assert added["item"] == {**message, "status": "in_progress", "content": []} and done["item"] == message
    places = {(e["item_id"], e["output_index"], e["content_index"]) for e in events if "content_index" in e}
    assert places == {(message["id"], 0, 0)}
    assert [event["text"] for event in events if event["type"] == "response.output_text.done"] == [ANSWER]
    assert events_of(respond(server, stream=True, max_output_tokens=2))[-1]["type"] == "response.incomplete"


def test_log_probabilities(server):
    chat = server.chat(QUESTION, max_tokens=12, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    assert respond(server, **include).json()["output"][0]["content"][0]["logprobs"] == chat
    events = events_of(respond(server, stream=True, **include))
    assert [token for event in events if event["type"].endswith("delta") for token in event["logprobs"]] == chat
    assert respond(server).json()["output"][0]["content"][0]["logprobs"] == []


def test_a_conversation_goes_on(server):
    first = respond(server, "My name is Ada.", instructions="Be kind.").json()
    second = respond(server, "What is my name?", previous_response_id=first["id"]).json()
    assert second["previous_response_id"] == first["id"]
    messages = [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "What is my name?"}]
    chat = server.chat(messages=messages, max_tokens=12).json()
    assert text_of(second) == chat["choices"][0]["message"]["content"], "instructions do not carry over"
    assert second["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    streamed = events_of(respond(server, "And now?", previous_response_id=second["id"], stream=True))[-1]["response"]
    third = respond(server, "And then?", previous_response_id=streamed["id"])
    assert third.status == 200, "a streamed response is kept, too"
    by_hand = [*messages, {"role": "assistant", "content": text_of(second)}, {"role": "user", "content": "And now?"},
               {"role": "assistant", "content": text_of(streamed)}, {"role": "user", "content": "And then?"}]
    assert third.json()["usage"]["input_tokens"] == server.chat(messages=by_hand, max_tokens=1).json()["usage"]["prompt_tokens"]


def test_stored_responses(server):
    response = respond(server).json()
    path = f"/v1/responses/{response['id']}"
    assert server.get(path).json() == response
    assert server.request("DELETE", path).json() == {"id": response["id"], "object": "response", "deleted": True}
    for reply in (server.get(path), server.request("DELETE", path)):
        assert reply.status == 404 and reply.error["code"] == "response_not_found"
    gone = respond(server, previous_response_id=response["id"])
    assert gone.status == 400 and gone.error["param"] == "previous_response_id" and gone.error["code"] == "previous_response_not_found"
    unstored = respond(server, store=False).json()
    assert unstored["store"] is False and server.get(f"/v1/responses/{unstored['id']}").status == 404
    assert server.post(path, {}).status == 405


def test_the_store_is_bounded():
    with Server({"LIMITS__MAX_STORED_RESPONSES": "2", "ENGINE__KV_TOKENS": "8192"}) as small:
        ids = [respond(small, max_output_tokens=1).json()["id"] for _ in range(4)]
        assert [small.get(f"/v1/responses/{id}").status for id in ids] == [404, 404, 200, 200]


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"include": ["made_up"]}, "include"),
        ({"store": "yes"}, "store"),
        ({"stream": 1}, "stream"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"model": None}, "model"),
    ],
)
def test_wrong_values_are_named(server, fields, param):
    reply = respond(server, **fields)
    assert reply.status == 400 and reply.error["param"] == param, reply.body


def test_overflow_and_unknown_model(server):
    overflow = respond(server, "hello " * 9000, max_output_tokens=None)
    assert overflow.status == 400 and overflow.error["code"] == "context_length_exceeded" and overflow.error["param"] == "input"
    assert respond(server, model="nope").error["code"] == "model_not_found"
