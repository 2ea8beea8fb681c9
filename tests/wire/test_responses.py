"""/v1/responses over HTTP: whole answers, events and their order, and stored responses."""

import json

import pytest
from harness import MODEL, Server

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}}, "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": "get_weather", "description": "The weather of a city", "parameters": CITY}]
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


def respond(server, input=QUESTION, **fields):
    return server.post("/v1/responses", {"model": MODEL, "input": input, "temperature": 0, "max_output_tokens": 12, **fields})


def text_of(response: dict) -> str:
    (message,) = response["output"]
    assert message["type"] == "message" and message["role"] == "assistant" and message["id"].startswith("msg_")
    (part,) = message["content"]
    assert part["type"] == "output_text" and part["annotations"] == []
    return part["text"]


def events_of(reply) -> list[dict]:
    """Parses the events of a stream. The name of each event is its type, and events are numbered from 0."""
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


def test_an_answer_has_every_field(server):
    response = respond(server).json()
    assert response["object"] == "response" and response["id"].startswith("resp_") and response["model"] == MODEL
    assert response["status"] == "completed" and response["error"] is None and response["incomplete_details"] is None
    assert text_of(response) == ANSWER
    usage = response["usage"]
    assert usage["input_tokens"] == 37 and usage["total_tokens"] == 37 + usage["output_tokens"] and usage["output_tokens"] > 0
    assert usage["input_tokens_details"]["cached_tokens"] >= 0 and usage["input_tokens_details"]["cache_write_tokens"] == 0
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    given = {
        "temperature": 0,
        "top_p": 0.9,  # the model's own default
        "max_output_tokens": 12,
        "instructions": None,
        "previous_response_id": None,
        "store": True,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "metadata": {},
        "background": False,
    }
    assert {name: response[name] for name in given} == given


def test_an_answer_that_reaches_the_limit_is_incomplete(server):
    response = respond(server, max_output_tokens=3).json()
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete" and text_of(response) == "The capital of"


def test_instructions_are_a_system_message(server):
    system = [{"role": "system", "content": "Answer in French."}]
    chat = server.chat(messages=[*system, {"role": "user", "content": QUESTION}], max_tokens=12).json()
    expected = chat["choices"][0]["message"]["content"]
    as_item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}
    for fields in (
        {"instructions": "Answer in French."},
        {"input": [*system, as_item]},
        {"input": [{**system[0], "role": "developer"}, as_item]},
    ):
        response = respond(server, **fields).json()
        assert text_of(response) == expected and response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"], fields


def test_events_come_in_order(server):
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


def call_of(response: dict) -> dict:
    (call,) = response["output"]
    assert (
        call["type"] == "function_call"
        and call["id"].startswith("fc_")
        and call["call_id"].startswith("call_")
        and call["name"] == "get_weather"
    )
    assert set(json.loads(call["arguments"])) == {"city"}
    return call


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}], ids=["required", "named"])
def test_a_call_is_an_item(server, choice):
    fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "max_output_tokens": 200}
    response = respond(server, "Weather in Oslo?", **fields).json()
    assert response["status"] == "completed" and response["tool_choice"] == choice and response["parallel_tool_calls"] is False
    assert [(tool["name"], tool["strict"]) for tool in response["tools"]] == [("get_weather", True)]
    call = call_of(response)
    events = events_of(respond(server, "Weather in Oslo?", stream=True, **fields))
    types = [event["type"] for event in events]
    deltas = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert types == (
        ["response.created", "response.in_progress", "response.output_item.added"]
        + ["response.function_call_arguments.delta"] * len(deltas)
        + ["response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    )
    streamed = call_of(events[-1]["response"])
    assert "".join(event["delta"] for event in deltas) == streamed["arguments"] == call["arguments"] and len(deltas) > 1
    added, done = (event["item"] for event in events if event["type"].startswith("response.output_item"))
    assert added == {**streamed, "status": "in_progress", "arguments": ""} and done == streamed
    whole = next(event for event in events if event["type"] == "response.function_call_arguments.done")
    assert (whole["arguments"], whole["name"]) == (streamed["arguments"], "get_weather")
    assert {(event["item_id"], event["output_index"]) for event in [*deltas, whole]} == {(streamed["id"], 0)}


def test_results_of_calls_give_the_same_prompt_as_in_a_chat(server):
    """With the call and its result as input items, or with the stored response's id, the prompt equals that of the same chat."""
    asked = respond(
        server, "Weather in Oslo?", tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_output_tokens=200
    ).json()
    call = call_of(asked)
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "21 degrees"}
    question = {"role": "user", "content": "Weather in Oslo?"}
    tool = {"type": "function", "function": {key: value for key, value in TOOLS[0].items() if key != "type"}}
    function = {"name": call["name"], "arguments": call["arguments"]}
    messages = [
        question,
        {"role": "assistant", "content": None, "tool_calls": [{"id": call["call_id"], "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call["call_id"], "content": "21 degrees"},
    ]
    expected = server.chat(messages=messages, tools=[tool], max_tokens=1).json()["usage"]["prompt_tokens"]
    by_items = respond(server, [question, *asked["output"], result], tools=TOOLS).json()
    by_id = respond(server, [result], previous_response_id=asked["id"], tools=TOOLS).json()
    by_reference = respond(server, [question, {"type": "item_reference", "id": call["id"]}, result], tools=TOOLS).json()
    assert by_reference["usage"]["input_tokens"] == expected
    assert by_items["usage"]["input_tokens"] == by_id["usage"]["input_tokens"] == expected


def test_a_format_of_the_text_is_followed(server):
    schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"], "additionalProperties": False}
    asked = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": schema}}
    response = respond(server, "Is it so?", text=asked, max_output_tokens=40).json()
    assert isinstance(json.loads(text_of(response))["sure"], bool) and response["text"] == asked
    assert isinstance(
        json.loads(text_of(respond(server, "Is it so?", text={"format": {"type": "json_object"}}, max_output_tokens=200).json())), dict
    )


def test_log_probabilities_are_those_of_a_chat(server):
    chat = server.chat(QUESTION, max_tokens=12, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    assert respond(server, **include).json()["output"][0]["content"][0]["logprobs"] == chat
    events = events_of(respond(server, stream=True, **include))
    assert [token for event in events if event["type"].endswith("delta") for token in event["logprobs"]] == chat
    assert respond(server).json()["output"][0]["content"][0]["logprobs"] == []


def test_a_conversation_continues_from_a_stored_response(server):
    first = respond(server, "My name is Ada.", instructions="Be kind.").json()
    second = respond(server, "What is my name?", previous_response_id=first["id"]).json()
    assert second["previous_response_id"] == first["id"]
    messages = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "What is my name?"},
    ]
    chat = server.chat(messages=messages, max_tokens=12).json()
    assert text_of(second) == chat["choices"][0]["message"]["content"], "instructions are not carried over"
    assert second["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    streamed = events_of(respond(server, "And now?", previous_response_id=second["id"], stream=True))[-1]["response"]
    third = respond(server, "And then?", previous_response_id=streamed["id"])
    assert third.status == 200, "a streamed response is stored, too"
    by_hand = [
        *messages,
        {"role": "assistant", "content": text_of(second)},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": text_of(streamed)},
        {"role": "user", "content": "And then?"},
    ]
    assert third.json()["usage"]["input_tokens"] == server.chat(messages=by_hand, max_tokens=1).json()["usage"]["prompt_tokens"]


def test_a_stored_response_can_be_read_and_deleted(server):
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
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input"),
        ({"input": [{"type": "compaction", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": 3}]}, "input[0].output"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "strin"}, "strict": True}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"reasoning": {"effort": "a lot"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "strin"}}}}, "text"),
        ({"text": {"format": {"type": "json_object"}}, "min_tokens": 3}, "min_tokens"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].image_url"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"include": ["made_up"]}, "include"),
        ({"store": "yes"}, "store"),
        ({"stream": 1}, "stream"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"background": True, "store": False}, "background"),
        ({"truncation": "some"}, "truncation"),
        ({"conversation": 1}, "conversation"),
        ({"model": None}, "model"),
    ],
)
def test_an_error_names_the_field(server, fields, param):
    reply = respond(server, **fields)
    assert reply.status == 400 and reply.error["param"] == param, reply.body


def test_an_input_beyond_the_context_and_an_unknown_model_are_errors(server):
    overflow = respond(server, "hello " * 9000, max_output_tokens=None)
    assert overflow.status == 400 and overflow.error["code"] == "context_length_exceeded" and overflow.error["param"] == "input"
    assert respond(server, model="nope").error["code"] == "model_not_found"
