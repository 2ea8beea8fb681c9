"""The responses of all endpoints fit the schemas of /openapi.json."""

import json

import jsonschema
import pytest
from harness import MODEL, chunks_of

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
TEXT = {"prompt": "Hi there", "max_tokens": 3, "temperature": 0}
WHOLE = [
    ("/v1/chat/completions", CHAT, "ChatCompletion"),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2, "n": 2}, "ChatCompletion"),
    ("/v1/completions", TEXT, "Completion"),
    ("/v1/completions", {**TEXT, "echo": True, "logprobs": 2, "best_of": 2}, "Completion"),
    ("/v1/embeddings", {"input": ["a", "b"]}, "EmbeddingList"),
    ("/v1/embeddings", {"input": [1, 2], "encoding_format": "base64"}, "EmbeddingList"),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 3}, "ResponseObject"),
    ("/v1/responses", {"input": "Hi", "include": ["message.output_text.logprobs"], "max_output_tokens": 300}, "ResponseObject"),
    ("/tokenize", {"prompt": "Hi", "return_token_strs": True}, "Tokens"),
    ("/tokenize", {"messages": CHAT["messages"]}, "Tokens"),
    ("/tokenize", {"content": "Hi", "with_pieces": True}, "Tokens"),
    ("/detokenize", {"tokens": [1, 2]}, "DetokenizedText"),
    ("/apply-template", {"messages": CHAT["messages"]}, "PromptText"),
    ("/v1/completions", {"prompt": 5}, "ErrorBody"),
]


@pytest.fixture(scope="module")
def document(server):
    return server.get("/openapi.json").json()


def check(document, schema: str, value) -> None:
    """Validates a value against a schema of the document, whose references it resolves."""
    jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{schema}", "components": document["components"]}).validate(value)


@pytest.mark.parametrize("path, fields, schema", WHOLE, ids=[f"{schema}-{number}" for number, (_, _, schema) in enumerate(WHOLE)])
def test_answers_and_requests_fit_their_schemas(server, document, path, fields, schema):
    body = {"model": MODEL, **fields}
    check(document, schema, server.post(path, body).json())
    operation = document["paths"][path]["post"]
    if schema != "ErrorBody":
        check(document, operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2], body)


def test_chunks_and_events_fit_their_schemas(server, document):
    for fields in ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True, "logprobs": True, "top_logprobs": 1}):
        for chunk in chunks_of(server.chat(max_tokens=3, **fields)):
            check(document, "ChatChunk", chunk)
    for chunk in chunks_of(server.complete(max_tokens=3, stream=True, echo=True, logprobs=1, stream_options={"include_usage": True})):
        check(document, "Completion", chunk)
    reply = server.post("/v1/responses", {"model": MODEL, "input": "Hi", "max_output_tokens": 3, "stream": True})
    for block in reply.body.decode().split("\n\n")[:-1]:
        event = json.loads(block.split("\n")[1][6:])
        check(document, "ResponseEvent", event)
        if "response" in event:
            check(document, "ResponseObject", event["response"])


def test_a_stored_response_and_its_deletion_fit_their_schemas(server, document):
    response = server.post("/v1/responses", {"model": MODEL, "input": "Hi", "max_output_tokens": 3}).json()
    path = f"/v1/responses/{response['id']}"
    check(document, "ResponseObject", server.get(path).json())
    check(document, "DeletedResponse", server.request("DELETE", path).json())
    check(document, "ErrorBody", server.get(path).json())
