"""Paths as clients build them: base addresses with and without `/v1`, and with and without a final slash."""

import json
from pathlib import Path

import pytest
from harness import MODEL, Server, cli, parse_metrics, raw, status_of, wait_until

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 6, "temperature": 0}
# Request bodies by path.
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": MODEL, "prompt": "Hi", "max_tokens": 4, "temperature": 0},
    "/v1/embeddings": {"model": MODEL, "input": "Hi"},
    "/v1/responses": {"model": MODEL, "input": "Hi", "max_output_tokens": 4, "temperature": 0},
    "/v1/responses/input_tokens": {"model": MODEL, "input": "Hi"},
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": {"model": MODEL, "messages": CHAT["messages"]},
    "/v1/rerank": {"model": MODEL, "query": "Hi", "documents": ["a"]},
    "/v1/score": {"model": MODEL, "text_1": "a", "text_2": "b"},
    "/api/chat": {"model": MODEL, "messages": CHAT["messages"], "stream": False, "options": {"num_predict": 4, "temperature": 0}},
    "/api/generate": {"model": MODEL, "prompt": "Hi", "stream": False, "options": {"num_predict": 4, "temperature": 0}},
    "/tokenize": {"model": MODEL, "prompt": "Hi"},
}
READ = ["/v1/models", f"/v1/models/{MODEL}", "/v1/files", "/v1/batches", "/v1/conversations/none", "/v1/responses/none", "/api/tags"]


def variants(path: str) -> list[str]:
    """Variants of a path that clients send by mistake."""
    first, rest = path.split("/")[1], path.split("/", 2)[-1]
    ways = [path + "/", "/" + path, path.replace("/", "//"), path + "//"]
    if rest != first:
        ways.append(f"/{first}{path}")
    # `/rerank`, `/score` and `/models` are routes of their own.
    if first == "v1" and rest not in ("rerank", "score", "models"):
        ways += [f"/{rest}", f"/{rest}/", f"//{rest}"]
    return ways


CHANGING = {"id", "created", "created_at", "completed_at", "request_id"}


def said(reply) -> tuple:
    """The status and the parts of the body that do not change between requests."""
    body = reply.json()
    for name in [name for name in body if name in CHANGING or name.endswith("_duration")]:
        del body[name]
    for item in body.get("output", []):
        item.pop("id", None)
    # The usage depends on the prefix cache.
    body.pop("usage", None)
    return reply.status, body


@pytest.mark.parametrize("path", BODIES)
def test_a_path_with_a_missing_or_repeated_base_or_more_slashes_is_served(server, path):
    right = said(server.post(path, BODIES[path]))
    assert right[0] == 200, right
    for sent in variants(path):
        assert said(server.post(sent, BODIES[path])) == right, sent
        assert said(server.post(sent + "?a=b", BODIES[path])) == right, sent


@pytest.mark.parametrize("path", READ)
def test_such_paths_are_found_for_get_requests_too(server, path):
    right = server.get(path)
    for sent in variants(path):
        reply = server.get(sent)
        assert (reply.status, reply.body) == (right.status, right.body), sent
    if path.startswith("/v1/models"):
        headers = {"anthropic-version": "2023-06-01"}
        assert server.get(f"{path}/", headers=headers).body == server.get(path, headers=headers).body != right.body


def test_an_unknown_route_gets_the_name_of_the_nearest_one(server):
    for method, sent, meant in [
        ("POST", "/openai/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "/api/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/v1/v1/embeddings", "/v1/embeddings"),
        ("POST", "/v1/api/chat", "/api/chat"),
        ("POST", "/generate", "/api/generate"),
        ("POST", "/v1/chat/completion", "/v1/chat/completions"),
        ("POST", "/V1/Chat/Completions", "/v1/chat/completions"),
        ("POST", "/v1/message", "/v1/messages"),
        ("GET", "/healthz", "/health"),
        ("GET", "/v1/metrics", "/metrics"),
        ("GET", "/admin/models/", "/admin/models"),
    ]:
        reply = server.request(method, sent, body=b"{}" if method == "POST" else None)
        message = reply.json()["error"]
        message = message["message"] if isinstance(message, dict) else message
        assert reply.status == 404 and message == f"no such route: {method} {sent}: did you mean {meant}?", message
    reply = server.get("/no/thing/like/it")
    assert reply.status == 404 and reply.error["message"] == "no such route: GET /no/thing/like/it" and reply.error["code"] == "unknown_url"
    assert len(server.get("/" + "v1/" * 3000 + "models").error["message"]) < 300


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    keys = {"AUTH__KEYS_FILE": str(tmp_path_factory.mktemp("keys") / "keys.toml")}
    add = lambda name, *args: {"authorization": "Bearer " + cli("keys", "add", name, *args, env=keys).stdout.strip()}
    free, tied = add("free"), add("tied", "--model", "other", "--requests-per-minute", "20")
    with Server({**keys, "SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "4096"}, ("--log-format", "json")) as running:
        yield running, free, tied


def test_no_spelling_of_a_path_bypasses_a_key(guarded):
    server, free, tied = guarded
    for path, body in BODIES.items():
        for sent in [path, *variants(path)]:
            assert server.post(sent, body).status == 401, sent
    # Paths that need no key and paths for operators have no variants, but for the probe, which clients look for under /v1, too.
    assert {server.get(sent).status for sent in ("/health", "/v1/health", "//health", "/health/", "/v1/v1/health")} == {200}
    exact = ["/ready/", "//ready", "/v1/ready", "//metrics", "/v1/metrics", "/admin/models/"]
    for sent in exact:
        assert server.get(sent).status == 401 and server.get(sent, headers=free).status == 404, sent
    for sent in ("/health/../v1/models", "//health/v1/models", "/health/%2e%2e/v1/models", "/v1/models/../../health", "/docs/../v1/models"):
        answer = raw(server, f"GET {sent} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(), 5)
        assert status_of(answer) in (400, 401), (sent, answer[:100])
    counted = [server.post(sent, CHAT, headers=tied) for sent in ["/v1/chat/completions", "/chat/completions", "/v1/v1/chat/completions/"]]
    assert [reply.status for reply in counted] == [403] * 3 and {reply.error["code"] for reply in counted} == {"model_not_allowed"}
    left = [int(reply.headers["x-ratelimit-remaining-requests"]) for reply in counted]
    assert left == sorted(left, reverse=True) and len(set(left)) == 3, "each request counts against the key's rate"


def test_metrics_have_the_route_and_the_log_has_the_path_as_it_was_sent(guarded):
    server, free, _ = guarded
    routes = lambda: {
        dict(labels)["route"]: value
        for (name, labels), value in parse_metrics(server.get("/metrics", headers=free).body.decode()).items()
        if name == "penstock_http_requests_total" and dict(labels)["status"] == "200"
    }
    before = routes().get("/v1/completions", 0)
    body, ways = BODIES["/v1/completions"], ["/completions", "//v1/completions/", "/v1/v1/completions"]
    for sent in ways:
        assert server.post(sent, body, headers=free | {"x-request-id": f"as-sent{sent.replace('/', '.')}"}).status == 200
    after = routes()
    assert after["/v1/completions"] - before == 3 and not [route for route in after if "//" in route or route == "/completions"]
    logged = lambda: [json.loads(line) for line in Path(server.log.name).read_text().splitlines() if "as-sent" in line]
    wait_until(lambda: len(logged()) == len(ways), 5, "the lines are written")
    assert [(line["path"], line["route"]) for line in logged()] == [(sent, "/v1/completions") for sent in ways]


def test_an_error_has_the_envelope_of_the_intended_dialect(server):
    for sent in ("/messages", "/v1/v1/messages", "//v1/messages/"):
        reply = server.post(sent, {"model": "gpt-9", "max_tokens": 4, "messages": CHAT["messages"]})
        assert reply.status == 404 and reply.json()["type"] == "error" and reply.headers["request-id"], sent
    reply = server.post("/api//chat/", {"model": "gpt-9"})
    assert reply.status == 404 and isinstance(reply.json()["error"], str)
    reply = server.get("/chat/completions/none/messages/")
    assert reply.status == 404 and reply.error["code"] == "not_found"
    wrong = server.request("PUT", "/completions/")
    assert wrong.status == 405 and wrong.headers["allow"] == "POST"
