"""Tools of coding agents that are not functions: namespaces of tools, and tools that only the vendor's own servers or models support."""

import pytest
from harness import CODER, Server
from test_custom_tools import custom, function
from test_responses import events_of

QUESTION = "Switch on the lamp in the hall."
HOSTED = [{"type": "web_search", "external_web_access": False}, {"type": "local_shell"}, {"type": "mcp", "server_label": "x"}]
HALL = {
    "type": "namespace",
    "name": "hall",
    "description": "What stands in the hall.",
    "tools": [function("lamp", flat=True), custom("note", flat=True)],
}
LAMP = {"type": "function", "namespace": "hall", "name": "lamp"}
ANTHROPIC = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "mcp_toolset", "mcp_server_name": "x"}]


@pytest.fixture(scope="module")
def coder():
    with Server({"SERVER__DEFAULT_MODELS": CODER, "ENGINE__KV_TOKENS": "8192"}) as running:
        yield running


def respond(server, **fields):
    body = {"model": CODER, "input": QUESTION, "temperature": 0, "max_output_tokens": 100, **fields}
    reply = server.post("/v1/responses", body)
    assert reply.status == 200, reply.body
    return reply


def test_a_tool_of_a_namespace_is_called_in_two_steps(coder):
    fields = dict(tools=[function("lamp", flat=True), HALL, *HOSTED], parallel_tool_calls=False)
    response = respond(coder, tool_choice=LAMP, **fields).json()
    (item,) = response["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "hall", "lamp"), item
    shown = [(tool["type"], tool["name"]) for tool in response["tools"]]
    assert shown == [("function", "lamp"), ("namespace", "hall")], "tools that the model did not get are not echoed"
    assert [tool["name"] for tool in response["tools"][1]["tools"]] == ["lamp", "note"] and response["tool_choice"] == LAMP
    plain = respond(coder, tool_choice={"type": "function", "name": "lamp"}, **fields).json()["output"]
    assert [item.get("namespace") for item in plain] == [None], "the function outside the namespace has the same name"
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "It is on."}
    fields["tool_choice"] = "none"
    stored = respond(coder, input=[result], previous_response_id=response["id"], **fields).json()
    elsewhere = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "lamps"}}
    sent = respond(coder, input=[{"role": "user", "content": QUESTION}, elsewhere, item, result], **fields).json()
    texts = [answer["output"][0]["content"][0]["text"] for answer in (stored, sent)]
    assert texts[0] and texts[0] == texts[1], "an item that the client sends back equals the stored one"
    assert stored["usage"]["input_tokens"] == sent["usage"]["input_tokens"]


def test_a_stream_names_the_namespace(coder):
    choice = {"type": "custom", "namespace": "hall", "name": "note"}
    events = events_of(respond(coder, stream=True, tools=[HALL], tool_choice=choice, parallel_tool_calls=False))
    items = [event["item"] for event in events if event["type"].startswith("response.output_item.")]
    assert [(item["type"], item["namespace"], item["name"]) for item in items] == [("custom_tool_call", "hall", "note")] * 2


def test_hosted_tools_alone_are_refused(coder):
    question = [{"role": "user", "content": "x"}]
    message = {"messages": question, "max_tokens": 1, "tools": ANTHROPIC}
    for path, fields in (("responses", {"input": "x", "tools": HOSTED}), ("messages", message)):
        reply = coder.post(f"/v1/{path}", {"model": CODER, **fields})
        text = reply.json()["error"]["message"]
        assert reply.status == 400 and "`tools[0].type`" in text and "cannot be offered to a model here" in text, reply.body
    reply = coder.post("/v1/responses", {"model": CODER, "input": "x", "tools": [HALL, *HOSTED], "tool_choice": {"type": "web_search"}})
    assert reply.status == 400 and reply.error["param"] == "tool_choice.type", reply.body


def test_hosted_tools_change_nothing_else(coder):
    def tokens(tools):
        return respond(coder, tools=tools, max_output_tokens=1).json()["usage"]["input_tokens"]

    assert tokens([HALL, *HOSTED]) == tokens([HALL])
    ours = {"name": "lamp", "input_schema": {"type": "object"}}
    counts = []
    for tools in ([ours], [*ANTHROPIC, ours]):
        body = {"model": CODER, "messages": [{"role": "user", "content": QUESTION}], "tools": tools}
        counts.append(coder.post("/v1/messages/count_tokens", body).json()["input_tokens"])
    assert counts[0] == counts[1]


def test_input_may_be_left_out_if_something_is_continued(coder):
    first = respond(coder, max_output_tokens=4).json()
    assert respond(coder, input=None, previous_response_id=first["id"], max_output_tokens=4).json()["output"]
    assert respond(coder, input=[], instructions="Say hello.", max_output_tokens=4).json()["output"]
    reply = coder.post("/v1/responses", {"model": CODER})
    assert reply.status == 400 and reply.error["param"] == "input"
