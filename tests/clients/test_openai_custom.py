"""Tests custom tools with the official Python SDK over chat and responses, whole and streamed, and with only some tools allowed."""

import re

from openai.types.responses import ResponseCustomToolCall

DATE = r"[0-9]{4}-[01][0-9]-[0-3][0-9]"
QUESTION = "Use the tool for the first day of 2024."
FORM = {"syntax": "regex", "definition": DATE}
NESTED = {"type": "custom", "custom": {"name": "day", "description": "Takes a date.", "format": {"type": "grammar", "grammar": FORM}}}
FLAT = {"type": "custom", "name": "day", "description": "Takes a date.", "format": {"type": "grammar", **FORM}}
LAMP = {"type": "function", "name": "lamp", "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}}, "strict": False}


def test_a_chat_calls_a_custom_tool_in_two_steps(client, coder):
    messages = [{"role": "user", "content": QUESTION}]
    choice = {"type": "custom", "custom": {"name": "day"}}
    fields = dict(model=coder, messages=messages, tools=[NESTED], temperature=0)
    message = client.chat.completions.create(tool_choice=choice, **fields).choices[0].message
    (call,) = message.tool_calls
    assert call.type == "custom" and call.custom.name == "day" and re.fullmatch(DATE, call.custom.input)
    chunks = client.chat.completions.create(tool_choice=choice, stream=True, **fields)
    pieces = [piece.custom for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or []]
    assert pieces[0]["name"] == "day" and "".join(piece["input"] for piece in pieces) == call.custom.input
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "A Monday."}]
    assert client.chat.completions.create(**fields, max_tokens=40).choices[0].finish_reason


def test_a_response_calls_a_custom_tool_in_two_steps(client, coder):
    fields = dict(model=coder, tools=[FLAT, LAMP], temperature=0, max_output_tokens=60)
    response = client.responses.create(input=QUESTION, tool_choice={"type": "custom", "name": "day"}, **fields)
    (call,) = response.output
    assert isinstance(call, ResponseCustomToolCall) and re.fullmatch(DATE, call.input) and response.tools[0].format.definition == DATE
    with client.responses.stream(input=QUESTION, tool_choice={"type": "custom", "name": "day"}, **fields) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done.input == call.input
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "A Monday."}
    assert client.responses.create(input=[result], previous_response_id=response.id, **fields).usage.input_tokens > 0


def test_a_response_may_call_some_of_its_tools(client, coder):
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "lamp"}]}
    fields = dict(model=coder, tools=[FLAT, LAMP], tool_choice=choice, parallel_tool_calls=False, temperature=0, max_output_tokens=60)
    response = client.responses.create(input=QUESTION, **fields)
    assert [item.name for item in response.output] == ["lamp"] and response.tool_choice.tools == choice["tools"]


def test_a_tool_of_a_namespace_is_called_in_two_steps(client, coder):
    space = {"type": "namespace", "name": "hall", "description": "What stands in the hall.", "tools": [LAMP]}
    fields = dict(model=coder, tools=[space, {"type": "web_search"}], temperature=0, max_output_tokens=60)
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "namespace": "hall", "name": "lamp"}]}
    response = client.responses.create(input="Switch on the lamp.", tool_choice=choice, parallel_tool_calls=False, **fields)
    (call,) = response.output
    assert (call.type, call.namespace, call.name) == ("function_call", "hall", "lamp")
    assert [tool.type for tool in response.tools] == ["namespace"] and response.tools[0].tools[0].name == "lamp"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It is on."}
    items = [{"role": "user", "content": "Switch on the lamp."}, call, result]
    assert client.responses.create(input=items, **{**fields, "max_output_tokens": 1}).status == "incomplete"
