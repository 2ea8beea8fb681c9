"""The log has one line per request, written when the request ends: what it asked for, what it cost, and how it ended. The tests read the
log as JSON."""

import json
import signal
import socket
import tempfile
import time
import uuid
from pathlib import Path

import pytest
from harness import MODEL, Server, cli, open_stream, raw, wait_until
from keep import chat_line, ended, make_batch, results

SECRET = "xyzzyplugh"


class Logged:
    """A server with a JSON log. Gives access to the log's lines."""

    def __init__(self, config=None, *args: str):
        self.file = tempfile.NamedTemporaryFile("w+b", prefix="penstock-", suffix=".json")
        config = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "4096", **(config or {})}
        self.server = Server(config, ("--log-format", "json", *args), stderr=self.file)

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *error):
        self.server.__exit__(*error)

    def all(self) -> list[dict]:
        """Parses every line. Each must be an object."""
        return [json.loads(line) for line in Path(self.file.name).read_text().splitlines()]

    def of(self, id: str) -> list[dict]:
        return [line for line in self.all() if line["target"] == "penstock::access" and line.get("id") == id]

    def one(self, id: str) -> dict:
        """Returns the only line of a request."""
        wait_until(lambda: self.of(id), 5, "the line is written")
        lines = self.of(id)
        assert len(lines) == 1, lines
        return lines[0]

    def post(self, path: str, body, id: str, **headers):
        return self.server.post(path, body, headers={"x-request-id": id, **headers})


@pytest.fixture(scope="module")
def logged():
    with Logged() as running:
        yield running


@pytest.fixture
def id() -> str:
    return f"test-{uuid.uuid4().hex}"


def read_until(stream: socket.socket, mark: bytes) -> None:
    got = b""
    while mark not in got:
        piece = stream.recv(4096)
        assert piece, got
        got += piece


def completion(**fields) -> dict:
    return {"model": MODEL, "prompt": f"{SECRET} once upon a time", "max_tokens": 6, "temperature": 0, **fields}


def test_a_line_describes_a_request_and_its_cost(logged, id):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    reply = logged.post("/v1/completions", completion(), id, traceparent=trace)
    assert (reply.headers["x-request-id"], reply.headers["traceparent"]) == (id, trace)
    usage, line = reply.json()["usage"], logged.one(id)
    assert (line["level"], line["outcome"], line["status"], line["finish"]) == ("INFO", "ok", 200, "length")
    assert (line["method"], line["path"], line["route"], line["model"]) == ("POST", "/v1/completions", "/v1/completions", MODEL)
    assert line["traceparent"] == trace and line["peer"].startswith("127.0.0.1:")
    assert (line["prompt_tokens"], line["generated_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert 0 <= line["queue_ms"] <= line["ttft_ms"] <= line["total_ms"] < 60_000
    assert not {"reason", "field", "tenant", "trace"} & set(line)


def test_cached_tokens_are_counted_and_those_of_several_choices_are_summed(logged, id):
    prompt = "The quick brown fox jumps over the lazy dog. " * 20
    logged.post("/v1/completions", completion(prompt=prompt), "first" + id)
    usage = logged.post("/v1/completions", completion(prompt=prompt, n=3), id).json()["usage"]
    line = logged.one(id)
    assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] > 100
    assert (line["prompt_tokens"], line["generated_tokens"]) == (usage["prompt_tokens"], 18)


def test_the_line_of_a_stream_is_written_at_its_end(logged, id):
    body = json.dumps(completion(stream=True, max_tokens=200, ignore_eos=True)).encode()
    with socket.create_connection(("127.0.0.1", logged.server.port), timeout=60) as stream:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-request-id: {id}\r\nConnection: close\r\n"
        stream.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        assert stream.recv(100)
        assert logged.of(id) == [], "the stream has only started"
        while stream.recv(65536):
            pass
    line = logged.one(id)
    assert (line["outcome"], line["status"], line["finish"], line["generated_tokens"]) == ("ok", 200, "length", 200)
    assert line["ttft_ms"] < line["total_ms"]


@pytest.mark.parametrize(("stream", "status"), [(True, 200), (False, 499)])
def test_a_client_that_disconnects_has_its_line(logged, id, stream, status):
    body = json.dumps(completion(stream=stream, max_tokens=2000, ignore_eos=True)).encode()
    with socket.create_connection(("127.0.0.1", logged.server.port), timeout=60) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-request-id: {id}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        if stream:
            read_until(connection, b"data: ")
        wait_until(lambda: logged.server.gauge("num_requests_running") == 1, 10, "the request runs")
        time.sleep(0.2)
    line = logged.one(id)
    assert (line["level"], line["outcome"], line["status"], line["reason"]) == ("INFO", "left", status, "client_left")
    assert 0 < line["generated_tokens"] < 2000 and line["prompt_tokens"] > 0 and "finish" not in line
    assert (line["route"], line["model"]) == ("/v1/completions", MODEL)
    labels = (("model_name", MODEL), ("route", "/v1/completions"), ("status", str(status)))
    assert logged.server.metrics()[("penstock_http_requests_total", labels)] >= 1


REFUSED = [
    (completion(temperature=9), 400, "invalid_value", "temperature"),
    (completion(model="nope"), 404, "model_not_found", "model"),
    (completion(prompt="a " * 9000), 400, "context_length_exceeded", "prompt"),
    (completion(logit_bias={"x": 1}), 400, "invalid_value", None),
    (b"{", 400, "invalid_json", None),
]


@pytest.mark.parametrize(("body", "status", "reason", "field"), REFUSED)
def test_a_refusal_names_its_reason_and_field(logged, id, body, status, reason, field):
    reply = logged.post("/v1/completions", body, id)
    line = logged.one(id)
    assert (reply.status, line["status"], line["level"], line["outcome"]) == (status, status, "WARN", "refused")
    assert (line["reason"], line.get("field")) == (reason, reply.error["param"]) and (field is None or field == line["field"])
    assert "generated_tokens" not in line


def test_a_refused_schema_has_its_line(logged, id):
    schema = {"type": "object", "properties": {"a": {"$ref": "http://a/b"}}}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "response_format": schema}
    reply = logged.post("/v1/chat/completions", body, id)
    line = logged.one(id)
    assert (reply.status, line["status"], line["outcome"]) == (400, 400, "refused")
    assert line["field"].startswith("response_format") and line["model"] == MODEL


def test_unknown_routes_and_malformed_heads_have_a_line(logged, id):
    logged.server.get("/no/such\x1b[31m".replace("\x1b", "%1b"), headers={"x-request-id": id})
    line = logged.one(id)
    assert (line["status"], line["reason"], line["path"]) == (404, "unknown_url", "/no/such%1b[31m") and "route" not in line
    before = len(logged.all())
    answer = raw(logged.server, b"GET / HTTP/9.9\r\n\r\n")
    id = next(line.split(b": ")[1] for line in answer.split(b"\r\n") if line.startswith(b"x-request-id")).decode()
    line = logged.one(id)
    assert (line["status"], line["reason"], line["outcome"]) == (400, "invalid_http", "refused") and len(logged.all()) == before + 1


def test_embeddings_have_a_line(logged, id):
    reply = logged.post("/v1/embeddings", {"model": MODEL, "input": ["one", "two"]}, id)
    line = logged.one(id)
    assert (line["status"], line["prompt_tokens"], line["generated_tokens"]) == (200, reply.json()["usage"]["prompt_tokens"], 0)
    assert line["queue_ms"] >= 0 and "ttft_ms" not in line


def test_responses_have_a_line(logged, id):
    reply = logged.post("/v1/responses", {"model": MODEL, "input": "hi", "max_output_tokens": 4}, id)
    line = logged.one(id)
    assert (line["status"], line["generated_tokens"]) == (200, reply.json()["usage"]["output_tokens"])


def test_an_id_that_is_not_a_plain_word_is_replaced(logged):
    for bad in ("x" * 200, "two words", "ümlaut".encode("latin-1").decode("latin-1")):
        given = logged.server.get("/v1/models", headers={"x-request-id": bad}).headers["x-request-id"]
        assert len(given) == 32 and logged.one(given)["route"] == "/v1/models"


def test_probes_and_the_start_of_the_framework_are_silent_below_debug(logged):
    for path in ("/health", "/ready", "/metrics", "/version"):
        assert logged.server.get(path).status == 200
    logged.server.complete(max_tokens=1)
    lines = logged.all()
    assert not [line for line in lines if line.get("path") in ("/health", "/ready", "/metrics", "/version")]
    assert not [line for line in lines if line["target"].startswith("actix")]
    with Logged(None, "-v") as loud:
        wait_until(lambda: [line for line in loud.all() if line.get("path") == "/ready" and line["level"] == "DEBUG"], 5, "a probe's line")
        assert [line for line in loud.all() if line["target"].startswith("actix_server") and line["level"] == "INFO"]


def test_a_request_that_the_server_fails_is_logged_as_an_error(tmp_path):
    import shutil

    path = Path(json.loads(cli("show", MODEL, "--json").stdout)["path"])
    shutil.copy(path, tmp_path / "broken.gguf")
    listed = json.loads(cli("inspect", tmp_path / "broken.gguf", "--json").stdout)["tensors"]
    with open(tmp_path / "broken.gguf", "r+b") as file:
        file.seek(next(entry["offset"] for entry in listed if entry["name"] == "blk.1.attn_q.weight"))
        file.write(b"\x00\x7e")  # the scale of its first block, in float16: not a number
    with Logged({"ENGINE__BACKEND": "cpu"}, "--model", str(tmp_path / "broken.gguf")) as logged:
        for stream, status in ((False, 500), (True, 200)):
            id = f"broken-{stream}"
            logged.post("/v1/completions", completion(model="broken", stream=stream), id)
            line = logged.one(id)
            assert (line["level"], line["outcome"], line["status"]) == ("ERROR", "failed", status)
            assert line["reason"] == "generation_failed"


def test_a_stream_that_the_drain_cuts_has_its_line():
    with Logged({"SERVER__DRAIN_SECONDS": "0"}) as logged:
        stream = open_stream(logged.server, "/v1/completions", completion(stream=True, max_tokens=3000, ignore_eos=True))
        read_until(stream, b"data: ")
        logged.server.process.send_signal(signal.SIGTERM)
        assert logged.server.process.wait(20) == 0
        line = next(line for line in logged.all() if line.get("route") == "/v1/completions")
    assert (line["level"], line["outcome"], line["status"], line["reason"]) == ("WARN", "aborted", 200, "shutting_down")
    assert line["generated_tokens"] > 0
    stream.close()


def send(logged, id: str, **fields) -> socket.socket:
    """Sends a completion on its own connection."""
    body = json.dumps(completion(stream=True, ignore_eos=True, **fields)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-request-id: {id}\r\n"
    connection = socket.create_connection(("127.0.0.1", logged.server.port), timeout=60)
    connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_time_in_the_queue_disconnects_there_and_a_full_queue_are_logged():
    config = {"ENGINE__MAX_RUNNING": "1", "LIMITS__MAX_QUEUE": "1", "LIMITS__BODY_TIMEOUT_SECONDS": "1"}
    with Logged(config) as logged:
        running = send(logged, "running", max_tokens=3000)
        read_until(running, b"data: ")
        waiting = send(logged, "waiting", max_tokens=1)
        wait_until(lambda: logged.server.gauge("num_requests_waiting") == 1, 10, "the request waits")
        assert logged.post("/v1/completions", completion(), "full").status == 429
        line = logged.one("full")
        assert (line["level"], line["outcome"], line["status"], line["reason"]) == ("WARN", "refused", 429, "rate_limit_exceeded")
        waiting.close()
        line = logged.one("waiting")
        assert (line["outcome"], line["generated_tokens"]) == ("left", 0) and 0 < line["queue_ms"] <= line["total_ms"]
        assert "ttft_ms" not in line
        wait_until(lambda: logged.server.gauge("num_requests_waiting") == 0, 10, "the queue is empty")
        later = send(logged, "later", max_tokens=1)
        time.sleep(0.3)
        running.close()
        read_until(later, b"[DONE]")
        later.close()
        line = logged.one("later")
        assert line["outcome"] == "ok" and 200 < line["queue_ms"] <= line["ttft_ms"] <= line["total_ms"]
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-request-id: slow\r\n"
        answer = raw(logged.server, head + b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408")
        line = logged.one("slow")
        assert (line["status"], line["reason"], line["outcome"]) == (408, "request_timeout", "refused") and line["total_ms"] >= 1000


def test_no_prompt_is_logged_unless_the_configuration_says_so(logged, id):
    with Logged(None, "--log", "trace,mio=info") as loud:
        for body in (completion(), completion(temperature=9), completion(stream=True)):
            loud.post("/v1/completions", body, "quiet")
        loud.post("/v1/embeddings", {"model": MODEL, "input": SECRET}, "quiet")
        assert loud.of("quiet") and SECRET not in Path(loud.file.name).read_text()
    with Logged({"SERVER__LOG_PROMPTS": "true"}) as asked:
        asked.post("/v1/completions", completion(), id)
        asked.post("/v1/completions", completion(prompt="a" * 100_000), "long" + id)
        lines = [line for line in asked.all() if line["target"] == "penstock::prompts"]
        assert [line["id"] for line in lines] == [id, "long" + id]
        assert SECRET in lines[0]["body"] and json.loads(lines[0]["body"])["max_tokens"] == 6
        assert len(lines[1]["body"]) <= 4096 and lines[1]["bytes"] > 100_000


def test_the_text_format_has_one_line_per_request_too(id):
    with Server({"SERVER__DEFAULT_MODELS": MODEL}) as server:
        server.post("/v1/completions", completion(), headers={"x-request-id": id})
        wait_until(lambda: id in server.output(), 5, "the line is written")
        lines = [line for line in server.output().splitlines() if id in line]
    assert len(lines) == 1 and f"outcome=ok status=200 method=POST path=\"/v1/completions\"" in lines[0], lines
    assert f"model={MODEL} finish=length prompt_tokens=" in lines[0] and " ttft_ms=" in lines[0]


@pytest.mark.parametrize(("flag", "kept"), [("-q", {"WARN"}), ("--log=warn,penstock::access=info", {"WARN", "INFO"}), ("--log=off", set())])
def test_a_level_selects_lines(flag, kept):
    with Logged(None, flag) as logged:
        logged.post("/v1/completions", completion(), "good")
        logged.post("/v1/completions", completion(temperature=9), "bad")
        levels = lambda: {line["level"] for line in logged.all()}
        wait_until(lambda: levels() >= kept, 5, "the lines are written")
        time.sleep(0.2)
        assert levels() == kept


@pytest.mark.parametrize(
    ("args", "env", "named", "code"),
    [
        (["--log", "bogus"], {}, ["--log", "bogus"], 1),
        (["--log", "info,loud"], {}, ["--log", "loud"], 1),
        ([], {"SERVER__LOG": "bogus"}, ["PENSTOCK__SERVER__LOG", "server.log", "bogus"], 1),
        ([], {"SERVER__LOG_FORMAT": "xml"}, ["PENSTOCK__SERVER__LOG_FORMAT", "xml"], 1),
        (["--log-format", "xml"], {}, ["--log-format", "xml", "text or json"], 2),
        (["-q", "-v"], {}, ["--quiet", "--verbose"], 2),
        (["-q", "--log", "info"], {}, ["--quiet", "--log"], 2),
    ],
)
def test_an_unknown_value_is_an_error_that_names_it(args, env, named, code):
    done = cli("serve", "--port", "0", *args, env=env, timeout=20)
    assert done.returncode == code and all(name in done.stderr for name in named), done.stderr


def test_a_variable_with_an_unknown_level_is_named(monkeypatch):
    monkeypatch.setenv("RUST_LOG", "bogus")
    done = cli("serve", "--port", "0", timeout=20)
    assert done.returncode == 1 and "RUST_LOG" in done.stderr and "bogus" in done.stderr
    monkeypatch.setenv("RUST_LOG", "trace")
    with Logged(None, "-q") as logged:
        logged.post("/v1/completions", completion(), "good")
        assert logged.all() == [], "the flag has priority"


def test_each_line_of_a_batch_has_its_line(tmp_path):
    with Logged({"STORAGE__FOLDER": str(tmp_path)}) as log:
        lines = [chat_line(1), chat_line(2) | {"body": chat_line(2)["body"] | {"messages": [{"role": "user", "content": "a " * 9000}]}}]
        batch = ended(log.server, make_batch(log.server, lines)["id"])
        done = [line["response"] for key in ("output_file_id", "error_file_id") for line in results(log.server, batch[key])]
        assert sorted(response["status_code"] for response in done) == [200, 400]
        for response in done:
            line = log.one(response["request_id"])
            assert line["status"] == response["status_code"] and line["peer"] == "batch" and line["method"] == "POST"
            assert line["path"] == line["route"] == "/v1/chat/completions"
            assert line["outcome"] == ("ok" if line["status"] == 200 else "refused")
            assert line["status"] == 400 or line["generated_tokens"] > 0
