"""/openapi.json: its examples are answered, and schemathesis finds no contradiction with valid and invalid data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import CODER, MODEL, Server, cli, wait_until
from keep import chat_line, jsonl, upload
from scripted import metadata, strings
from tiny import F16, Tiny

# Replaces the model by a loaded one, so that requests pass the first check.
HOOKS = f"""
import schemathesis

@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body["model"] = "{MODEL}"
    return body
"""
# A check that cannot hold: data that fits the schema may be longer than the context, or name a model that does not exist.
EXCLUDED = "positive_data_acceptance"
# Streams that never end.
ENDLESS = ("/admin/models/events", "/models/sse")
SEED, EXAMPLES = "20261121", "25"


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def resolved(document, schema):
    return document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema


@pytest.fixture(scope="module")
def document(server):
    return server.get("/openapi.json").json()


def test_the_document_is_valid(server, document):
    from openapi_spec_validator import validate

    validate(document)
    assert server.get("/openapi.json").headers["content-type"] == "application/json" and document["openapi"].startswith("3.1")


def test_every_route_is_described(document):
    described = {(path, method) for path, method, _ in operations(document)}
    sources = [path.read_text() for path in (Path(__file__).parents[2] / "src" / "api").rglob("*.rs") if not path.stem.endswith("tests")]
    lines = [line for source in sources for line in source.splitlines() if 'resource("/' in line]
    routes = [line.split('resource("', 1)[1].split('"', 3)[:3] for line in lines]
    for path, _, methods in routes:
        if path in ("/", "/openapi.json") or path.startswith(("/docs", "/page/")):
            continue
        for method in methods.split(", "):
            assert method == "HEAD" or (path.replace("{id:.+}", "{id}"), method) in described, (path, method)
    assert len(routes) > 15
    assert all(
        operation.get("summary") and operation.get("operationId") and operation.get("tags") for *_, operation in operations(document)
    )


def test_the_page_opens_on_chat(document, server):
    path, tag = next(iter(document["paths"])), document["tags"][0]["name"]
    chat = document["paths"][path]["post"]
    assert (path, chat["tags"]) == ("/v1/chat/completions", [tag])
    opened = server.get("/docs")
    assert (opened.status, opened.headers["location"]) == (308, f"/docs/#/{tag}/{chat['operationId']}")


def test_every_example_fits_its_schema(document):
    from jsonschema import Draft202012Validator

    count = 0
    for name, schema in document["components"]["schemas"].items():
        if "example" in schema and schema.get("type") != "string":
            Draft202012Validator({**schema, "components": document["components"]}).validate(schema["example"])
            count += 1
    assert count >= 15, "every request and response body has an example"
    for path, _, operation in operations(document):
        bodies = [operation["requestBody"]] if "requestBody" in operation else []
        bodies += [response for status, response in operation["responses"].items() if status == "200"]
        for media in (body["content"]["application/json"] for body in bodies if "application/json" in body.get("content", {})):
            assert "example" in resolved(document, media["schema"]), (path, media)


def merged(document, schema):
    """Merges a schema with its references and its `allOf`, as Swagger UI does before it builds an example."""
    schema = resolved(document, schema)
    whole = {key: value for key, value in schema.items() if key != "allOf"}
    for part in schema.get("allOf", []):
        part = {**merged(document, part), **{key: value for key, value in part.items() if key not in ("$ref", "allOf")}}
        whole["properties"] = {**whole.get("properties", {}), **part.get("properties", {})}
        whole = {**{key: value for key, value in part.items() if key != "properties"}, **whole}
    return whole


def example_of(document, media):
    """The example that Swagger UI shows: that of the media type, or else one built from the schema, where defaults have priority."""
    if "example" in media:
        return media["example"]
    schema = merged(document, media["schema"])
    for found in (schema.get("examples", [None])[0], schema.get("default"), schema.get("example")):
        if found is not None:
            return found
    return {name: example_of(document, {"schema": part}) for name, part in schema.get("properties", {}).items()}


# The default model cannot fill in gaps, and the server permits no folder of adapters. Other tests ask these endpoints.
ELSEWHERE = {"/infill", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}


@pytest.mark.real_models
def test_every_default_example_of_the_page_succeeds(document, server):
    count, kept = 0, things(server)
    for path, method, operation in operations(document):
        media = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if media is None or path in ELSEWHERE:
            continue
        path = path.replace("{id}", kept.get(path.split("/{id}")[0], "{id}"))
        alone = example_of(document, {"schema": media["schema"]})
        for example in (example_of(document, media), alone):
            # the page cannot know the ids of uploaded files
            if "input_file_id" in example:
                example = example | {"input_file_id": kept["/v1/files"]}
            reply = server.request(method, path, example)
            assert 200 <= reply.status < 300, (path, example, reply.body)
            count += 1
    delete_made()
    assert count > 20


def test_nothing_has_null_as_its_default(document):
    def walk(value):
        if isinstance(value, dict):
            default = value.get("default", 0)
            assert default is not None, value
            assert not isinstance(default, dict) or not default or any(item is not None for item in default.values()), value
            [walk(item) for item in value.values()]
        elif isinstance(value, list):
            [walk(item) for item in value]

    walk(document)


def test_the_examples_name_a_model_that_is_served():
    with Server({"SERVER__DEFAULT_MODELS": CODER, "SERVER__ON_DEMAND": "false", "ENGINE__KV_TOKENS": "4096"}) as server:
        document = server.get("/openapi.json").json()
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank", "/v1/score", "/tokenize"):
            example = example_of(document, document["paths"][path]["post"]["requestBody"]["content"]["application/json"])
            reply = server.post(path, example)
            assert example["model"] == CODER and reply.status == 200, (path, reply.body)


# one example pulls the model, which would replace a short copy
@pytest.mark.real_models
def test_every_request_example_is_answered(document, server):
    kept = things(server)
    for path, method, operation in operations(document):
        if "application/json" in operation.get("requestBody", {}).get("content", {}) and path not in ELSEWHERE:
            example = resolved(document, operation["requestBody"]["content"]["application/json"]["schema"])["example"]
            if "input_file_id" in example:
                example = example | {"input_file_id": kept["/v1/files"]}
            ask = lambda: server.request(method, path.replace("{id}", kept.get(path.split("/{id}")[0], "{id}")), example)
            if path == "/models/unload":
                # a request of another test may not have ended yet
                wait_until(lambda: ask().status != 409, 20, "the model is idle")
            reply = ask()
            assert reply.status == 200, (path, reply.body)
    delete_made()


def delete_made() -> None:
    """Deletes the models that the examples have made."""
    done = cli("rm", "mario", "smollm2-backup")
    assert done.returncode == 0, done.stderr


def things(server) -> dict[str, str]:
    """Stores an object of each kind. Returns their ids by the path of the kind."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "store": True}
    made = {"/v1/conversations": {}, "/v1/chat/completions": chat}
    ids = {path: server.post(path, body | ({"max_tokens": 1} if body else {})).json()["id"] for path, body in made.items()}
    return ids | {"/v1/files": upload(server, jsonl([chat_line(0)])).json()["id"]}


@pytest.mark.timeout(900)
def test_schemathesis_finds_no_contradiction(tmp_path):
    (tmp_path / "hooks.py").write_text(HOOKS)
    # The model's text does not matter, so it has few weights. It is a file of the configuration, so `pull` does not fetch the whole one.
    vocabulary = metadata(json.loads(cli("show", MODEL, "--json").stdout)["path"], lambda key: key.startswith("tokenizer."))
    size = len(strings(vocabulary["tokenizer.ggml.tokens"]))
    Tiny("llama", hidden=32, ffn=32, kind=F16).write(tmp_path / "tiny.gguf", metadata=vocabulary, vocab=size)
    source = f'source = {{ type = "file", path = "{tmp_path / "tiny.gguf"}" }}'
    (tmp_path / "config.toml").write_text(f'[[models]]\nid = "{MODEL}"\n{source}\n')
    # it makes models, too
    config = {"SERVER__MODELS_DIR": str(tmp_path / "store"), "STORAGE__FOLDER": str(tmp_path / "files")}
    config |= {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "64", "LIMITS__MAX_PROMPTS": "4"}
    with Server(config, ("--config", str(tmp_path / "config.toml"))) as server:
        (tmp_path / "openapi.json").write_bytes(server.get("/openapi.json").body)
        command = [
            Path(sys.executable).with_name("schemathesis"),
            "run",
            "openapi.json",
            "--url",
            server.url,
            "--mode",
            "all",
            "--checks",
            "all",
        ]
        command += ["--exclude-checks", EXCLUDED, "--seed", SEED, "--max-examples", EXAMPLES, "--generation-allow-x00", "true"]
        command += [part for path in ENDLESS for part in ("--exclude-path", path)]
        command += [
            "--generation-database",
            "none",
            "--continue-on-failure",
            "--no-shrink",
            "--no-color",
            "--warnings",
            "off",
            "--request-timeout",
            "60",
            "--max-response-time",
            "60",
        ]
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks"}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2000:]
        assert server.get("/health").status == 200
        assert server.text("Once upon a time", max_tokens=4)
