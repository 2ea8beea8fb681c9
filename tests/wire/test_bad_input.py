"""Wrong values get a 400 that names the field, and the server keeps working."""

import time

import pytest
from harness import MODEL, chunks_of

pytestmark = pytest.mark.usefixtures("survives")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def body_of(path: str, **fields) -> dict:
    base = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    return {"model": MODEL, **base, "max_tokens": 2, **fields}


def refused(server, path: str, fields: dict, param: str | None) -> None:
    reply = server.post(path, body_of(path, **fields))
    assert reply.status == 400, (path, str(fields)[:120], reply.status, reply.body[:300])
    error = reply.error
    assert error["type"] == "invalid_request_error", error
    if param is not None:
        named = error["param"] or ""
        assert named == param or named.startswith(f"{param}.") or named.startswith(f"{param}["), (str(fields)[:120], error)


@pytest.mark.parametrize("path, missing", [(CHAT, "messages"), (CHAT, "model"), (COMPLETIONS, "prompt"), (COMPLETIONS, "model")])
def test_a_missing_required_field_is_named(server, path, missing):
    for body in ({k: v for k, v in body_of(path).items() if k != missing}, body_of(path, **{missing: None})):
        reply = server.post(path, body)
        assert reply.status == 400 and reply.error["param"] == missing, reply.body


@pytest.mark.parametrize(
    "path, fields, param",
    [
        (CHAT, {"best_of": 3}, "best_of"),
        (CHAT, {"suffix": "the end"}, "suffix"),
        (COMPLETIONS, {"top_logprobs": 3}, "top_logprobs"),
        (COMPLETIONS, {"suffix": "the end"}, "suffix"),  # its vocabulary has no tokens for it
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_of_another_endpoint_is_refused_by_name(server, path, fields, param):
    refused(server, path, fields, param)


def test_a_wrong_response_format_is_refused(server):
    assert server.chat(response_format={"type": "text"}).status == 200
    refused(server, CHAT, {"response_format": {"type": "xml"}}, "response_format.type")
    refused(server, CHAT, {"response_format": "json"}, "response_format")


def test_no_tools_count_as_absent(server):
    plain = server.chat().json()["choices"]
    assert server.chat(tools=[]).json()["choices"] == server.chat(tool_choice="none").json()["choices"] == plain


def test_nul_and_every_kind_of_text_are_accepted(server):
    for text in ("\x00", "a\x00b", "\x1b[31m", "👩‍👩‍👧", "ﷺ" * 50, "\u202e", "\U0010ffff", "\r\n\r\n"):
        assert server.chat(text, max_tokens=1).status == 200, repr(text)


def test_values_at_the_limits_are_accepted(server):
    assert server.complete(n=1, best_of=1, max_tokens=1).status == 200
    assert server.chat(stop=["a!", "b!", "c!", "d!"], max_tokens=1).status == 200
    for fields in (
        {"temperature": 2},
        {"top_p": 0.01},
        {"top_k": -1},
        {"top_k": 0},
        {"presence_penalty": -2},
        {"frequency_penalty": 2},
        {"min_p": 1},
    ):
        reply = server.chat(max_tokens=2, **fields)
        assert reply.status == 200, (fields, reply.body)


def test_a_bad_request_does_not_disturb_a_stream(server):
    expected = "".join(
        c["choices"][0]["delta"].get("content", "") for c in chunks_of(server.chat("Tell me a story.", stream=True, max_tokens=16))
    )
    refused(server, CHAT, {"temperature": -1}, "temperature")
    again = chunks_of(server.chat("Tell me a story.", stream=True, max_tokens=16))
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in again) == expected


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_prompt_far_beyond_the_context_is_refused_before_it_is_encoded(server, path):
    text = "a" * 15_000_000 + " word" * 3_000_000
    fields = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    start = time.monotonic()
    reply = server.post(path, body_of(path, **fields))
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded", (reply.status, reply.body[:300])
    assert "more than" in reply.error["message"]
    assert time.monotonic() - start < 5, "the refusal takes less time than encoding the whole text"
