"""Ollama's API: its objects and lines, its options, its lists, and how long models stay loaded."""

import json
import socket
import subprocess
import time
from pathlib import Path

import pytest
from harness import CODER, MODEL, Server, cli, wait_until
from test_keys import Keys, bearer
from test_model_life import entry, files, hold, loaded, serve  # noqa: F401
from test_reasoning import thinker  # noqa: F401

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
ENDS = {
    "done_reason",
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def both():
    """Serves two models, of which one supports tools."""
    with Server({"SERVER__DEFAULT_MODELS": f"{MODEL},{CODER}", "ENGINE__KV_TOKENS": "8192", "ENGINE__CONTEXT": "2048"}) as running:
        yield running


def lines(reply) -> list[dict]:
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/x-ndjson" and reply.body.endswith(b"\n")
    return [json.loads(line) for line in reply.body.splitlines()]


def chat(server, content=QUESTION, **fields):
    options = {"temperature": 0, "num_predict": 12, **fields.pop("options", {})}
    return server.post("/api/chat", {"model": MODEL, "messages": [{"role": "user", "content": content}], "options": options, **fields})


def generate(server, prompt=QUESTION, **fields):
    options = {"temperature": 0, "num_predict": 12, **fields.pop("options", {})}
    return server.post("/api/generate", {"model": MODEL, "prompt": prompt, "options": options, **fields})


def whole(reply) -> dict:
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/json"
    return reply.json()


def error(reply) -> str:
    """Returns the message of an error. Checks that the envelope has no other field."""
    payload = reply.json()
    assert set(payload) == {"error"} and isinstance(payload["error"], str) and payload["error"], payload
    assert reply.headers["content-type"] == "application/json"
    return payload["error"]


def refused(reply, *words: str, status=400) -> str:
    text = error(reply)
    assert reply.status == status and all(word in text for word in words), (reply.status, text)
    return text


# How clients detect Ollama


def test_the_root_announces_ollama_unless_a_page_is_requested(server):
    for accept in ({}, {"accept": "*/*"}, {"accept": "application/json"}):
        reply = server.get("/", headers=accept)
        assert (reply.status, reply.body) == (200, b"Ollama is running") and reply.headers["content-type"].startswith("text/plain")
    page = server.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html") and b"<html" in page.body
    assert server.request("HEAD", "/").status == 200
    assert server.post("/", {}).status == 405


def test_the_version_is_one_that_clients_accept(server):
    version = [int(part) for part in server.get("/api/version").json()["version"].split(".")]
    assert len(version) == 3 and version >= [0, 6, 4]


@pytest.mark.real_models
def test_tags_list_the_models_on_disk(server):
    (tag,) = server.get("/api/tags").json()["models"]
    assert tag["name"] == tag["model"] == MODEL and len(tag["digest"]) == 64 and tag["size"] > 50_000_000
    details = {"parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"]}
    assert tag["details"] == {**details, "parameter_size": "134.52M", "quantization_level": "Q4_1"}
    assert "T" in tag["modified_at"] and tag["modified_at"].endswith("Z")


@pytest.mark.real_models
def test_ps_lists_the_loaded_models(server):
    (model,) = server.get("/api/ps").json()["models"]
    assert model["name"] == MODEL and model["size"] > 50_000_000
    assert model["size_vram"] == (model["size"] if server.backend == "cuda" else 0)
    assert model["expires_at"] == "9999-12-31T23:59:59Z", "nothing unloads it"
    assert model["context_length"] == server.get("/v1/models").json()["data"][0]["max_model_len"]
    assert model["details"]["quantization_level"] == "Q4_1"


@pytest.mark.real_models
def test_show_describes_a_model(both):
    shown = whole(both.post("/api/show", {"model": CODER}))
    info = shown["model_info"]
    assert info["general.architecture"] == "qwen2" and info["qwen2.embedding_length"] == 896
    assert info["qwen2.context_length"] == 2048, "the configured context, not the model's own"
    assert info["general.parameter_count"] > 4e8 and info["tokenizer.ggml.tokens"] is None
    assert shown["capabilities"] == ["completion", "tools", "insert"]
    assert "tool_call" in shown["template"] and shown["details"]["family"] == "qwen2" and shown["modelfile"].startswith(f"FROM {CODER}")
    plain = whole(both.post("/api/show", {"name": MODEL, "system": "", "template": "", "options": {}}))
    assert plain["capabilities"] == ["completion"], "its template does not support tools"
    assert [line.split() for line in plain["parameters"].splitlines()] == [["temperature", "0.2"], ["top_p", "0.9"]]
    verbose = whole(both.post("/api/show", {"model": MODEL, "verbose": True}))["model_info"]
    assert len(verbose["tokenizer.ggml.tokens"]) == verbose["llama.vocab_size"] if "llama.vocab_size" in verbose else True
    assert {key for key, value in verbose.items() if not isinstance(value, list)} <= set(plain["model_info"])


@pytest.mark.real_models
def test_the_calls_of_a_coding_assistant(both):
    """The requests of VS Code's Copilot in order, on one port."""
    assert both.get("/api/version").status == 200
    names = [model["name"] for model in both.get("/api/tags").json()["models"]]
    able = {}
    for name in names:
        shown = whole(both.post("/api/show", {"model": name}))
        family = shown["model_info"]["general.architecture"]
        able[name] = "tools" in shown["capabilities"] and shown["model_info"][f"{family}.context_length"] > 0
    assert able[CODER] and not able[MODEL]
    body = {
        "model": CODER,
        "messages": [{"role": "user", "content": "What is the weather in Paris? Use the tool."}],
        "tools": [TOOL],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 64,
    }
    reply = both.post("/v1/chat/completions", body)
    chunks = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "get_weather"
    assert json.loads("".join(call["function"].get("arguments", "") for call in calls))["city"] == "Paris"


# Chats


@pytest.mark.real_models
def test_a_chat_is_streamed_as_lines(server):
    *pieces, last = lines(chat(server))
    assert "".join(piece["message"]["content"] for piece in pieces) == ANSWER and len(pieces) > 3
    for piece in pieces:
        assert set(piece) == {"model", "created_at", "message", "done"} and piece["done"] is False and piece["model"] == MODEL
        assert piece["message"]["role"] == "assistant"
    assert set(last) == {"model", "created_at", "message", "done"} | ENDS and last["done"] is True
    assert last["message"] == {"role": "assistant", "content": ""} and last["done_reason"] == "stop"
    assert (last["prompt_eval_count"], last["eval_count"]) == (37, 7)
    assert 0 < last["eval_duration"] <= last["total_duration"] < 60e9 and last["load_duration"] < last["total_duration"]


@pytest.mark.real_models
def test_a_chat_is_one_object_without_streaming(server):
    answer = whole(chat(server, stream=False))
    assert answer["message"] == {"role": "assistant", "content": ANSWER} and answer["done"] and ENDS < set(answer)
    cut = whole(chat(server, stream=False, options={"num_predict": 3}))
    assert (cut["done_reason"], cut["eval_count"]) == ("length", 3)
    named = whole(chat(server, stream=False, model="smollm2:latest"))
    assert named["model"] == "smollm2:latest" and named["message"]["content"] == ANSWER


def test_curl_may_leave_the_type_of_the_body_out(server):
    command = ["curl", "-s", f"{server.url}/api/generate", "-d", json.dumps({"model": MODEL, "prompt": "", "stream": False})]
    assert json.loads(subprocess.run(command, capture_output=True).stdout)["done_reason"] == "load"
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps({"model": MODEL}).encode()
    assert server.post("/api/generate", body, headers=form).status == 200
    refused(server.post("/api/generate", body, headers={**form, "origin": "https://evil.example"}), "application/json", status=415)
    refused(server.post("/api/generate", body, headers={"content-type": "text/plain"}), "application/json", status=415)


@pytest.mark.real_models
def test_a_started_answer_is_continued(server):
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "The capital of"}]
    assert whole(chat(server, messages=messages, stream=False))["message"]["content"] == " France is Paris."


@pytest.mark.real_models
def test_a_format_is_followed(server):
    city = {"city": {"type": "string", "maxLength": 8}}
    schema = {"type": "object", "properties": city, "required": ["city"], "additionalProperties": False}
    options = {"num_predict": 60}
    made = json.loads(whole(chat(server, format=schema, stream=False, options=options))["message"]["content"])
    assert set(made) == {"city"}
    streamed = "".join(line["response"] for line in lines(generate(server, format=schema, options=options)))
    assert set(json.loads(streamed)) == {"city"}
    assert whole(generate(server, format="json", stream=False, options=options))["response"].lstrip().startswith("{")
    assert whole(chat(server, format="", stream=False))["message"]["content"] == ANSWER
    refused(chat(server, format="yaml"), "`format`", "`yaml`")
    refused(chat(server, format={"type": "objekt"}), "`format`")


@pytest.mark.real_models
def test_tools_are_called_with_objects_and_results_are_answered(both):
    messages = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
    ask = dict(model=CODER, tools=[TOOL], options={"num_predict": 64})
    message = whole(chat(both, messages=messages, stream=False, **ask))["message"]
    (call,) = message["tool_calls"]
    assert call["id"].startswith("call_") and call["function"] == {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}}
    *pieces, last = lines(chat(both, messages=messages, **ask))
    streamed = [call["function"] for piece in pieces for call in piece["message"].get("tool_calls", [])]
    assert streamed == [call["function"]] and last["done_reason"] == "stop"
    messages += [message, {"role": "tool", "tool_name": "get_weather", "content": "Sunny, 24 degrees."}]
    answer = whole(chat(both, messages=messages, stream=False, **ask))["message"]
    assert "24" in answer["content"] and "tool_calls" not in answer


def test_a_call_that_is_cut_is_left_out(both):
    messages = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
    ask = dict(model=CODER, tools=[TOOL], options={"num_predict": 8}, messages=messages)
    assert "tool_calls" not in whole(chat(both, stream=False, **ask))["message"]
    assert lines(chat(both, **ask))[-1]["done_reason"] == "length"


@pytest.mark.real_models
def test_logprobs_come_with_the_tokens(server):
    answer = whole(chat(server, stream=False, logprobs=True, top_logprobs=2))
    tokens = answer["logprobs"]
    assert "".join(token["token"] for token in tokens) == ANSWER and len(tokens) == 7
    assert all(len(token["top_logprobs"]) == 2 and token["logprob"] <= 0 for token in tokens)
    assert all(bytes(token["bytes"]).decode() == token["token"] for token in tokens)
    streamed = [token["token"] for line in lines(chat(server, logprobs=True)) for token in line.get("logprobs", [])]
    assert "".join(streamed) == ANSWER
    assert "top_logprobs" not in whole(generate(server, stream=False, logprobs=True))["logprobs"][0]
    refused(chat(server, top_logprobs=2), "`top_logprobs`", "`logprobs`")
    refused(chat(server, logprobs=True, top_logprobs=21), "`top_logprobs`")


# Thinking


def test_thinking_is_separate_and_can_be_switched_off(thinker):
    assert "thinking" in whole(thinker.post("/api/show", {"model": "thinker"}))["capabilities"]
    for ask in (chat, generate):
        said = whole(ask(thinker, model="thinker", think=True, stream=False))
        said = said.get("message", said)
        assert said["thinking"] and not said.get("content", said.get("response"))
        off = whole(ask(thinker, model="thinker", think=False, stream=False))
        off = off.get("message", off)
        assert "thinking" not in off and off.get("content", off.get("response"))
        *pieces, _ = lines(ask(thinker, model="thinker"))
        assert "".join(piece.get("message", piece).get("thinking", "") for piece in pieces) == said["thinking"]


def test_thinking_is_refused_if_the_model_does_not_reason(thinker):
    assert whole(chat(thinker, think=False, stream=False))["message"]["content"] == ANSWER
    refused(chat(thinker, think=True), "`think`", MODEL)
    refused(generate(thinker, think="high"), "`think`")
    assert whole(chat(thinker, model="thinker", think="high", stream=False))["message"]["thinking"], "a switch has no levels"
    refused(generate(thinker, model="thinker", think=True, raw=True), "`think`")
    for wrong in ("HIGH", "a" * 33, 1, []):
        refused(chat(thinker, model="thinker", think=wrong), "`think`")


# Generations


@pytest.mark.real_models
def test_a_generation_is_streamed_and_whole(server):
    *pieces, last = lines(generate(server))
    assert "".join(piece["response"] for piece in pieces) == ANSWER and not any("context" in piece for piece in pieces)
    assert set(last) == {"model", "created_at", "response", "done", "context"} | ENDS and last["prompt_eval_count"] == 37
    answer = whole(generate(server, stream=False))
    assert (answer["response"], answer["context"]) == (ANSWER, last["context"])


@pytest.mark.real_models
def test_a_context_continues_the_conversation(server):
    """The ids equal those of the same conversation as a chat, so the answer is the same, too."""
    first = whole(generate(server, stream=False))
    second = whole(generate(server, "And of Italy?", stream=False, context=first["context"]))
    said = [("user", QUESTION), ("assistant", ANSWER), ("user", "And of Italy?")]
    messages = [{"role": role, "content": text} for role, text in said]
    as_chat = whole(chat(server, messages=messages, stream=False))
    assert second["prompt_eval_count"] == as_chat["prompt_eval_count"] > len(first["context"])
    assert second["response"] == as_chat["message"]["content"] and second["context"][: len(first["context"])] == first["context"]
    refused(generate(server, context=[1, 10**6]), "10")
    refused(generate(server, context=["a"]), "`context`")
    refused(generate(server, "", context=[1]), "`prompt`", "`context`")


def test_raw_prompts_are_continued_as_they_are(server):
    raw = whole(generate(server, "The capital of France is", raw=True, stream=False, options={"num_predict": 4}))
    plain = server.complete(max_tokens=4).json()
    assert raw["response"] == plain["choices"][0]["text"] and raw["prompt_eval_count"] == plain["usage"]["prompt_tokens"]
    assert "context" not in raw
    for field, value in (("system", "s"), ("template", "{{ messages }}"), ("context", [1])):
        refused(generate(server, raw=True, **{field: value}), f"`{field}`", "`raw`")


@pytest.mark.real_models
def test_system_and_template_are_those_of_the_request(server):
    messages = [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": QUESTION}]
    of_chat = whole(chat(server, messages=messages, stream=False))
    answer = whole(generate(server, system="Answer in French.", stream=False))
    assert (answer["response"], answer["prompt_eval_count"]) == (of_chat["message"]["content"], of_chat["prompt_eval_count"])
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    bare = whole(generate(server, "The capital of France is", template=template, stream=False))
    assert bare["response"] == whole(generate(server, "The capital of France is", raw=True, stream=False))["response"]
    in_go = whole(generate(server, "The capital of France is", template="{{ .Prompt }}", stream=False))
    assert in_go["response"] == bare["response"], "Go's templates are translated"
    refused(generate(server, template="{{ .Nonsense }} {{ .Prompt }}"), "`template`", "Nonsense")
    assert whole(generate(server, stream=False))["response"] == ANSWER, "the model's own template is unchanged"


def test_a_suffix_needs_a_model_that_fills_in(both):
    ask = dict(model=CODER, suffix="\n    return result\n")
    answer = whole(generate(both, "def add(a, b):\n", stream=False, options={"num_predict": 24}, **ask))
    plain = both.complete("def add(a, b):\n", max_tokens=24, **ask).json()
    assert answer["response"] == plain["choices"][0]["text"] != "" and "context" not in answer
    refused(generate(both, "def f():", suffix="x"), "middle", MODEL)
    refused(generate(both, "def f():", model=CODER, suffix="x", system="s"), "`system`", "`suffix`")


@pytest.mark.real_models
def test_images_are_refused_by_name(server):
    refused(generate(server, images=["aGk="]), "`images[0]`")
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": "x", "images": ["aGk="]}]
    refused(chat(server, messages=messages), "`messages[1].images[0]`")
    assert whole(generate(server, images=[], stream=False))["response"] == ANSWER


# Embeddings


def test_texts_become_vectors(server):
    both = whole(server.post("/api/embed", {"model": MODEL, "input": ["a river", "a mountain"]}))
    assert set(both) == {"model", "embeddings", "total_duration", "load_duration", "prompt_eval_count"} and len(both["embeddings"]) == 2
    one = whole(server.post("/api/embed", {"model": MODEL, "input": "a river", "truncate": False}))
    assert one["embeddings"][0] == pytest.approx(both["embeddings"][0], abs=1e-5)
    assert sum(x * x for x in one["embeddings"][0]) == pytest.approx(1)
    old = whole(server.post("/api/embeddings", {"model": MODEL, "prompt": "a river"}))
    assert set(old) == {"embedding"} and old["embedding"] == pytest.approx(one["embeddings"][0], abs=1e-5)
    short = whole(server.post("/api/embed", {"model": MODEL, "input": "a river", "dimensions": 8}))["embeddings"][0]
    assert len(short) == 8 and sum(x * x for x in short) == pytest.approx(1)
    assert whole(server.post("/api/embed", {"model": MODEL, "input": []}))["embeddings"] == []
    assert whole(server.post("/api/embeddings", {"model": MODEL, "prompt": ""})) == {"embedding": []}
    refused(server.post("/api/embed", {"model": MODEL}), "`input`")
    refused(server.post("/api/embed", {"model": MODEL, "input": [1]}), "`input`")
    refused(server.post("/api/embed", {"model": MODEL, "input": "x", "dimensions": 10**6}), "`dimensions`")
    refused(server.post("/api/embed", {"model": MODEL, "input": "x", "truncates": True}), "`truncate`")


def test_a_long_text_is_truncated_unless_the_request_says_otherwise(both):
    text = "river " * 3000
    cut = whole(both.post("/api/embed", {"model": MODEL, "input": text}))
    assert cut["prompt_eval_count"] == 2048
    refused(both.post("/api/embed", {"model": MODEL, "input": text, "truncate": False}), "2048 tokens")


# Errors


@pytest.mark.parametrize(
    "path", ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show", "/api/pull", "/api/create", "/api/copy"]
)
def test_malformed_bodies_get_the_envelope(server, path):
    for body in (b"", b"{", b"[]", b'{"model": 1}', b"{}", b'{"model": "", "input": "x"}', b'{"model": "m", "modell": 1}', b"\xff"):
        refused(server.post(path, body))
    refused(server.post(path, b'{"model": "a", "model": "b"}'), "twice")
    refused(server.get(path), "GET", status=405)
    if path not in ("/api/pull", "/api/create", "/api/copy"):
        missing = {"model": "smollm3:135m", "input": "x"} if path == "/api/embed" else {"model": "smollm3:135m"}
        refused(server.post(path, missing), "did you mean smollm2:135m?", status=404)


def test_mistyped_fields_are_refused_with_the_nearest_name(server):
    refused(chat(server, keepalive="5m"), "`keepalive`", "did you mean `keep_alive`?")
    refused(chat(server, messages=[{"role": "user", "contents": "x"}]), "`messages[0].contents`", "`content`")
    refused(generate(server, sufix="x"), "`sufix`", "`suffix`")
    refused(chat(server, stream="yes"), "`stream`")
    refused(chat(server, truncate="yes"), "`truncate`")
    refused(chat(server, tools=[{"type": "function", "function": {"name": "a b"}}]), "`tools[0].function.name`")
    refused(chat(server, tools=[{"type": "function", "function": {"name": "f", "parameters": []}}]), "tools[0].function.parameters")
    refused(chat(server, messages="hi"), "`messages`")
    refused(chat(server, "x " * 300_000), "context")


def test_unsupported_endpoints_and_unknown_routes_are_refused(server):
    refused(server.post("/api/push", {"model": MODEL}), "does not upload models", status=501)
    refused(server.get("/api/nope"), "no such route", status=404)
    assert server.get("/health").status == 200


def test_an_error_within_a_stream_is_its_last_line(both):
    """The server shuts down during a stream. The last line is an error."""
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__DRAIN_SECONDS": "0"}) as server:
        body = json.dumps({"model": MODEL, "prompt": "Tell me a long story.", "options": {"num_predict": 4000}}).encode()
        head = f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(head + body)
            got = connection.recv(4096)
            server.process.terminate()
            while piece := connection.recv(65536):
                got += piece
        last = [line for line in got.split(b"\r\n") if line.startswith(b"{")][-1]
        assert json.loads(last) == {"error": "the server is shutting down"}
        server.process.wait(30)


# How long models stay loaded


def running(server) -> dict:
    models = server.get("/api/ps").json()["models"]
    assert all(model["name"] == model["model"] for model in models)
    return {model["name"].removesuffix(":latest"): model["expires_at"] for model in models}


def load(server, model="one", **fields):
    return whole(server.post("/api/generate", {"model": model, **fields}))


def test_an_empty_request_loads_and_unloads(files, tmp_path):
    with serve(files, tmp_path) as server:
        answer = load(server, "two")
        assert answer["done"] and answer["done_reason"] == "load" and answer["response"] == "" and loaded(server) == {"one", "two"}
        empty = whole(server.post("/api/chat", {"model": "three", "messages": [], "stream": True}))
        assert empty["message"] == {"role": "assistant", "content": ""} and empty["done_reason"] == "load"
        assert set(running(server)) == {"one", "two", "three"}
        assert load(server, "two", keep_alive=0)["done_reason"] == "unload" and loaded(server) == {"one", "three"}
        gone = whole(server.post("/api/chat", {"model": "three:latest", "messages": [], "keep_alive": "0s"}))
        assert gone["done_reason"] == "unload" and set(running(server)) == {"one"}
        assert load(server, "two", keep_alive=0)["done_reason"] == "unload", "unloading an unloaded model is no error"
        refused(server.post("/api/generate", {"model": "none", "keep_alive": 0}), "'none'", status=404)


def test_keep_alive_decides_when_a_model_is_unloaded(files, tmp_path):
    with serve(files, tmp_path) as server:
        assert load(server, "two", keep_alive="2s") and "two" in loaded(server)
        assert running(server)["two"] < "9999"
        wait_until(lambda: loaded(server) == {"one"}, 10, "the model is unloaded after two seconds")
        load(server, "two", keep_alive="1h")
        load(server, "three", keep_alive=-1)
        assert running(server)["three"].startswith("9999") and running(server)["two"] < "9999"
        done = whole(generate(server, "abc", model="two", keep_alive=0, stream=False, raw=True, options={"num_predict": 2}))
        assert done["response"] is not None
        wait_until(lambda: loaded(server) == {"one", "three"}, 10, "the model is unloaded after its request")
        time.sleep(1.5)
        assert "three" in loaded(server)
        load(server, "three", keep_alive="1s")
        wait_until(lambda: loaded(server) == {"one"}, 10, "a later keep_alive replaces the earlier one")
        embedded = whole(server.post("/api/embed", {"model": "two", "input": "abc", "keep_alive": 0}))
        assert len(embedded["embeddings"]) == 1
        wait_until(lambda: loaded(server) == {"one"}, 10, "the model is unloaded after embeddings, too")


def test_a_model_in_use_is_unloaded_after_its_last_request(files, tmp_path):
    with serve(files, tmp_path) as server:
        connection = hold(server, "two")
        assert load(server, "two", keep_alive=0)["done_reason"] == "unload" and "two" in loaded(server)
        connection.close()
        wait_until(lambda: loaded(server) == {"one"}, 15, "the model is unloaded after its request")


def test_a_name_without_a_tag_is_listed_and_served_with_one(files, tmp_path):
    """Web pages for Ollama list the loaded models beside those on disk, and request them by the listed names."""
    with serve(files, tmp_path) as server:
        for path in ("/api/tags", "/api/ps"):
            one = server.get(path).json()["models"][0]
            assert one["name"] == one["model"] == "one:latest", path
        shown = whole(server.post("/api/show", {"model": "one:latest"}))
        assert shown["capabilities"]
        done = whole(generate(server, "abc", model="one:latest", stream=False, raw=True, options={"num_predict": 2}))
        assert done["model"] == "one:latest" and done["done"]


def test_a_pinned_model_stays(files, tmp_path):
    with serve(files, tmp_path, entry(files, "one", pinned=True), entry(files, "two")) as server:
        refused(server.post("/api/generate", {"model": "one", "keep_alive": 0}), "pinned", status=409)
        load(server, "one", keep_alive="1s")
        assert running(server)["one"].startswith("9999")
        time.sleep(2.5)
        assert loaded(server) == {"one"}


def test_only_admin_keys_control_how_long_models_stay(files, tmp_path):
    keys = Keys(tmp_path / "keys")
    user, boss = keys.add("user"), keys.add("boss", "--admin")
    with serve(files, tmp_path, **keys.config) as server:
        ask = lambda key, **fields: server.post("/api/generate", {"model": "two", **fields}, headers=bearer(key))
        assert ask(user, keep_alive="1s").status == 200
        time.sleep(2.5)
        assert server.get("/api/ps", headers=bearer(user)).json()["models"][1]["name"] == "two:latest", "the key's keep_alive has no effect"
        refused(ask(user, keep_alive=0), "`keep_alive`", status=403)
        assert ask(boss, keep_alive=0).json()["done_reason"] == "unload"
        refused(server.get("/api/tags"), status=401)
        refused(server.request("DELETE", "/api/delete", {"model": "two"}, headers=bearer(user)), status=403)
        refused(server.post("/api/pull", {"model": MODEL}, headers=bearer(user)), status=403)


@pytest.mark.parametrize("keep", [True, [], "soon", "5 m", "1e400", 1e300])
def test_a_wrong_keep_alive_is_refused(server, keep):
    refused(generate(server, keep_alive=keep), "`keep_alive`")


# Downloads and deletions


def test_a_model_is_fetched_and_deleted(files, tmp_path):
    """The model is first copied into a separate store, so the download only verifies it."""
    store = tmp_path / "store"
    store.mkdir()
    folder = Path(json.loads(cli("show", MODEL, "--json").stdout)["path"]).parent
    subprocess.run(["cp", "-r", folder, store], check=True)
    with serve(files, tmp_path) as server:
        assert MODEL in [tag["name"] for tag in server.get("/api/tags").json()["models"]]
        pulled = lines(server.post("/api/pull", {"model": MODEL}))
        assert pulled[0] == {"status": "pulling manifest"} and pulled[-1] == {"status": "success"}
        assert all(line["status"] == f"pulling {MODEL}" for line in pulled[1:-1])
        assert whole(server.post("/api/pull", {"name": "smollm2:latest", "stream": False})) == {"status": "success"}
        load(server, MODEL)
        reply = server.request("DELETE", "/api/delete", {"model": MODEL})
        assert (reply.status, reply.body) == (200, b"") and not (store / folder.name).exists()
        assert MODEL not in [tag["name"] for tag in server.get("/api/tags").json()["models"]] and loaded(server) == {"one"}
        refused(server.request("DELETE", "/api/delete", {"name": MODEL}), status=404)
        refused(server.request("DELETE", "/api/delete", {"model": "two"}), "file", status=409)
        refused(server.request("DELETE", "/api/delete", {"model": "one"}), status=409)
        refused(server.request("DELETE", "/api/delete", {}), "`model`")
        refused(server.post("/api/pull", {"model": "no-such-model"}), "no-such-model")
        refused(server.post("/api/pull", {"model": "/etc/passwd"}), "path")
        refused(server.post("/api/pull", {"model": MODEL, "insecure": "yes"}), "`insecure`")


@pytest.mark.real_models
def test_a_model_that_the_server_was_started_with_is_not_deleted(server):
    refused(server.request("DELETE", "/api/delete", {"model": MODEL}), "started with it", status=409)
    assert whole(chat(server, stream=False))["message"]["content"] == ANSWER
