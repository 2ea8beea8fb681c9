"""API keys: who may use the server, which models, how often, and what belongs to which tenant."""

import hashlib
import json
import os
import re
import socket
import stat
import threading
import time
from pathlib import Path

import pytest
from harness import MODEL, Server, cli, raw, status_of, wait_until

CODER = "qwen2.5-coder:0.5b"
PROMPT = "The history of the city of Paris begins with a settlement on an island in the river Seine, where fishermen lived. " * 3


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Keys:
    """A key file, edited through the command line."""

    def __init__(self, path):
        self.path = path
        self.config = {"AUTH__KEYS_FILE": str(path)}

    def add(self, name: str, *args) -> str:
        done = cli("keys", "add", name, *args, env=self.config)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def revoke(self, name: str):
        done = cli("keys", "revoke", name, env=self.config)
        assert done.returncode == 0, done.stderr

    def list(self) -> str:
        done = cli("keys", "list", env=self.config)
        assert done.returncode == 0, done.stderr
        return done.stdout


def cached_tokens(reply) -> int:
    assert reply.status == 200, reply.body
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_tenant_that_floods_the_prefix_cache_evicts_its_own_prompts(tmp_path):
    """Row 74. Other tenants keep a share of the cache."""
    keys = Keys(tmp_path / "keys.toml")
    quiet, flood = bearer(keys.add("quiet")), bearer(keys.add("flood"))
    config = {**keys.config, "SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "512", "ENGINE__KV_TOKENS": "1024"}
    with Server(config) as server:
        ask = lambda prompt, headers: server.post("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1}, headers=headers)
        assert cached_tokens(ask(PROMPT, quiet)) == 0
        kept = cached_tokens(ask(PROMPT, quiet))
        assert kept >= 32
        # Three times as many tokens as the cache holds.
        for i in range(12):
            ask(f"{i} " + " ".join(str(i * 1000 + j) for j in range(65)), flood)
        assert cached_tokens(ask(PROMPT, quiet)) == kept, "the other tenant's prompts were evicted first"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest.fixture(scope="module")
def key(keys):
    return keys.add("alice")


@pytest.fixture(scope="module")
def served(keys, key):
    config = {**keys.config, "SERVER__DEFAULT_MODELS": f"{MODEL},{CODER}", "ENGINE__KV_TOKENS": "8192", "LIMITS__MAX_QUEUE": "64"}
    with Server(config) as server:
        server.headers_of_checks = bearer(key)
        yield server


def complete(server, key, prompt="Once upon a time", **fields):
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0, **fields}
    return server.post("/v1/completions", body, headers=bearer(key))


def known(server, key) -> bool:
    return server.get("/v1/models", headers=bearer(key)).status != 401


def add(server, keys, name, *args) -> str:
    """Adds a key, and waits until the running server knows it."""
    new = keys.add(name, *args)
    wait_until(lambda: known(server, new), 5, "the server reads the file again")
    return new


def test_a_key_is_shown_once_and_kept_as_a_hash_in_a_file_of_its_owner(keys, key):
    assert re.fullmatch(r"sk-penstock-[A-Za-z0-9_-]{43}", key)
    assert key not in keys.path.read_text() and key not in keys.list() and "alice" in keys.list()
    assert stat.S_IMODE(os.stat(keys.path).st_mode) == 0o600
    again = cli("keys", "add", "alice", env=keys.config)
    assert again.returncode == 1 and "there is a key `alice` already" in again.stderr and not again.stdout
    for args, words in [
        (("--priority", "0"), "priority is 0"),
        (("--tenant", "a b"), 'tenant "a b"'),
        (("--model", ""), "models"),
        (("--requests-per-minute", "x"), "--requests-per-minute"),
    ]:
        wrong = cli("keys", "add", "wrong", *args, env=keys.config)
        assert wrong.returncode != 0 and words in wrong.stderr, wrong.stderr
    unknown = cli("keys", "revoke", "nobody", env=keys.config)
    assert unknown.returncode == 1 and "there is no key `nobody`" in unknown.stderr


def test_a_key_comes_as_bearer_or_as_x_api_key(served, key):
    get = lambda headers: served.get("/v1/models", headers=headers).status
    assert get({"authorization": f"bearer {key}"}) == get({"x-api-key": key}) == get({**bearer(key), "x-api-key": key}) == 200
    assert get({"authorization": "Basic dXNlcjpwYXNz", "x-api-key": key}) == 200
    wrong = [{"x-api-key": key + "x"}, {"x-api-key": key[:-1]}, {"authorization": key}, {"authorization": "Bearer"}, {"x-api-key": ""}]
    wrong += [{**bearer(key), "x-api-key": "other"}, bearer(key.upper()), bearer("not-needed"), bearer(f"{key} {key}"), bearer("é")]
    for headers in wrong:
        assert get({name: value.encode() for name, value in headers.items()}) == 401, headers
    twice = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-api-key: {key}\r\nx-api-key: {key}\r\n\r\n"
    assert status_of(raw(served, twice.encode(), 3)) == 401
    log = Path(served.log.name).read_text()
    assert not any(secret in log for secret in (key, key.upper(), key[:-1], "not-needed", "dXNlcjpwYXNz")), "the log contains no secrets"


def test_keys_are_added_and_revoked_while_the_server_runs(served, keys):
    new = add(served, keys, "bob")
    stream = open_stream_with(served, new, max_tokens=60)
    keys.revoke("bob")
    wait_until(lambda: not known(served, new), 5, "the key is refused")
    rest = b""
    while piece := stream.recv(65536):
        rest += piece
    assert b"[DONE]" in rest, "a stream that has already started ends as usual"
    good = keys.path.read_text()
    keys.path.write_text("[[keys]]\nname = 1\n")
    wait_until(lambda: "the keys stay as they were" in Path(served.log.name).read_text(), 5, "the fault is logged")
    keys.path.write_text(good)
    assert known(served, add(served, keys, "carol"))


def open_stream_with(server, key, **fields):
    body = json.dumps({"model": MODEL, "prompt": "Once", "temperature": 0, "ignore_eos": True, "stream": True, **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    stream = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    stream.sendall(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return stream


def test_a_key_may_use_its_models_only(served, keys):
    only = add(served, keys, "only", "--model", MODEL)
    listed = [model["id"] for model in served.get("/v1/models", headers=bearer(only)).json()["data"]]
    assert listed == [MODEL]
    assert complete(served, only).status == 200
    for path, body in [
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 1}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/tokenize", {"prompt": "Hi"}),
        ("/detokenize", {"tokens": [5]}),
        ("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}),
    ]:
        refused = served.post(path, {"model": CODER, **body}, headers=bearer(only))
        assert refused.status == 403 and refused.error["code"] == "model_not_allowed" and refused.error["param"] == "model", path
        assert served.post(path, {"model": MODEL, **body}, headers=bearer(only)).status == 200, path
    assert served.get(f"/tokenizer_info?model={CODER}", headers=bearer(only)).status == 403
    assert served.get("/tokenizer_info", headers=bearer(only)).json()["model"] == MODEL
    assert served.get(f"/v1/models/{CODER}", headers=bearer(only)).status == 404
    assert served.get(f"/v1/models/{MODEL}", headers=bearer(only)).status == 200
    near = served.post("/v1/completions", {"model": CODER + "x", "prompt": "Hi"}, headers=bearer(only))
    assert near.status == 404 and CODER not in near.error["message"].replace(CODER + "x", "")


def test_requests_beyond_the_rate_are_refused(served, keys):
    slow = add(served, keys, "slow", "--requests-per-minute", "4")  # `add` used one of them to check whether the key is known
    replies = [served.get("/v1/models", headers=bearer(slow)) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 200, 429]
    assert [reply.headers["x-ratelimit-remaining-requests"] for reply in replies] == ["2", "1", "0", "0"]
    last = replies[-1]
    assert last.headers["x-ratelimit-limit-requests"] == "4" and 1 <= int(last.headers["retry-after"]) <= 15
    assert 0 < int(last.headers["retry-after-ms"]) <= 15_000
    assert re.fullmatch(r"\d+(\.\d+)?s", last.headers["x-ratelimit-reset-requests"]), last.headers["x-ratelimit-reset-requests"]
    assert last.error["code"] == "rate_limit_exceeded" and "4 requests per minute" in last.error["message"]
    assert "x-ratelimit-limit-tokens" not in last.headers


def test_tokens_of_prompts_and_answers_count_however_a_request_ends(served, keys):
    few = add(served, keys, "few", "--tokens-per-minute", "300")
    left = lambda reply: int(reply.headers["x-ratelimit-remaining-tokens"])
    few_left = lambda: left(served.get("/v1/models", headers=bearer(few)))

    def spends(ask, of_reply) -> None:
        """Checks the tokens that remain after a request: those before it, minus those that it used, plus those that were refilled, five per
        second."""
        start, before = time.monotonic(), few_left()
        reply = ask()
        used, after = of_reply(reply.json()["usage"]), left(reply)
        flowed = 5 * (time.monotonic() - start) + 1
        assert used > 20 and before - used <= after <= max(before - used, 0) + flowed, (before, used, after, flowed)

    assert few_left() == 300
    spends(lambda: complete(served, few, "one two three four", max_tokens=40, ignore_eos=True), lambda usage: usage["total_tokens"])
    texts = {"model": MODEL, "input": ["one two three"] * 20}
    spends(lambda: served.post("/v1/embeddings", texts, headers=bearer(few)), lambda usage: usage["total_tokens"])
    start, before = time.monotonic(), few_left()
    stream = open_stream_with(served, few, max_tokens=200)
    got = b""
    while got.count(b"data: ") < 60:
        got += stream.recv(65536)
    stream.close()
    after = few_left()
    assert after <= max(before - 58, 0) + 5 * (time.monotonic() - start) + 1, "a client that disconnects is charged for generated tokens"
    much = served.post("/v1/embeddings", {**texts, "input": ["one two three"] * 300}, headers=bearer(few))
    assert much.status == 200 and much.json()["usage"]["total_tokens"] > 600, "a request may exceed what is left"
    refused = complete(served, few)
    assert refused.status == 429 and "300 tokens per minute" in refused.error["message"] and int(refused.headers["retry-after"]) >= 1
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"


def test_the_sdk_waits_as_long_as_the_server_says(served, keys):
    import openai

    rated = add(served, keys, "sdk", "--requests-per-minute", "30")  # one request is refilled every two seconds
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=rated, max_retries=0, timeout=60)
    raw_reply = client.models.with_raw_response.list()
    assert raw_reply.headers["x-ratelimit-limit-requests"] == "30"
    with pytest.raises(openai.RateLimitError) as refused:
        for _ in range(60):
            client.models.list()
    assert refused.value.code == "rate_limit_exceeded" and 0 < int(refused.value.response.headers["retry-after-ms"]) <= 2000
    patient = client.with_options(max_retries=3)
    start = time.monotonic()
    assert [patient.models.list().data[0].id for _ in range(2)] == [MODEL] * 2
    assert time.monotonic() - start > 1, "the SDK waited"
    with pytest.raises(openai.AuthenticationError) as wrong:
        client.with_options(api_key="wrong").models.list()
    assert wrong.value.code == "invalid_api_key"
    only = add(served, keys, "sdk-only", "--model", CODER)
    with pytest.raises(openai.PermissionDeniedError) as forbidden:
        client.with_options(api_key=only).completions.create(model=MODEL, prompt="Hi", max_tokens=1)
    assert forbidden.value.param == "model"


def test_a_key_may_have_a_bounded_number_of_concurrent_requests(served, keys):
    pair = add(served, keys, "pair", "--max-concurrent", "2")
    streams = [open_stream_with(served, pair, max_tokens=300) for _ in range(2)]
    for stream in streams:
        assert stream.recv(16).startswith(b"HTTP/1.1 200")
    refused = complete(served, pair)
    assert refused.status == 429 and "2 requests at once" in refused.error["message"] and refused.headers["retry-after"] == "1"
    streams[0].close()
    wait_until(lambda: complete(served, pair).status == 200, 5, "the closed stream is no longer counted")
    streams[1].close()


def test_stored_responses_belong_to_their_tenant(served, keys):
    mine, same, other = (
        add(served, keys, "mine", "--tenant", "team"),
        add(served, keys, "same", "--tenant", "team"),
        add(served, keys, "other"),
    )
    ask = lambda key, **fields: served.post(
        "/v1/responses", {"model": MODEL, "input": "Say hello.", "max_output_tokens": 8, **fields}, headers=bearer(key)
    )
    first = ask(mine).json()
    path = f"/v1/responses/{first['id']}"
    unknown = served.get("/v1/responses/resp-unknown", headers=bearer(other))
    hidden = served.get(path, headers=bearer(other))
    assert hidden.status == unknown.status == 404
    same_words = hidden.error["message"].replace(first["id"], "resp-unknown")
    assert (same_words, hidden.error["code"]) == (unknown.error["message"], unknown.error["code"])
    assert served.request("DELETE", path, headers=bearer(other)).status == 404
    follow = ask(other, previous_response_id=first["id"])
    assert follow.status == 400 and follow.error["code"] == "previous_response_not_found"
    item = [{"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "And?"}]
    assert ask(other, input=item).status == 400 and ask(same, input=item).status == 200
    assert served.get(path, headers=bearer(same)).status == 200
    assert ask(same, previous_response_id=first["id"]).status == 200
    assert served.request("DELETE", path, headers=bearer(same)).status == 200
    assert served.get(path, headers=bearer(mine)).status == 404


@pytest.mark.usefixtures("after_every_row")
def test_tenants_do_not_share_prefixes(served, keys):
    """Row 73."""
    one, two, other = (
        add(served, keys, "p1", "--tenant", "prefix"),
        add(served, keys, "p2", "--tenant", "prefix"),
        add(served, keys, "p3", "--tenant", "elsewhere"),
    )
    cached = lambda key, **fields: complete(served, key, PROMPT, **fields).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached(one) == 0 and cached(one) > 0
    assert cached(two) > 0, "keys of one tenant share prefixes"
    assert cached(other) == 0 and cached(other) > 0
    assert cached(one, user="u") == 0 and cached(other, user="u") == 0 and cached(two, user="u") > 0
    texts = {complete(served, key, PROMPT).json()["choices"][0]["text"] for key in (one, two, other)}
    assert len(texts) == 1


def test_a_tenant_that_fills_the_queue_leaves_room_for_others(served, keys):
    flood, other = add(served, keys, "flood"), add(served, keys, "newcomer")
    statuses = []
    ask = lambda: statuses.append(complete(served, flood, max_tokens=24, ignore_eos=True).status)
    threads = [threading.Thread(target=ask, daemon=True) for _ in range(150)]
    [thread.start() for thread in threads]
    wait_until(lambda: 429 in statuses, 30, "the tenant's part of the queue is full")
    waits = []
    while any(thread.is_alive() for thread in threads) and len(waits) < 5:
        start = time.monotonic()
        reply = complete(served, other)
        waits.append(time.monotonic() - start)
        assert reply.status == 200, reply.body
    [thread.join(170) for thread in threads]
    assert statuses.count(200) > 40 and set(statuses) == {200, 429}, statuses
    assert waits


def test_keys_from_the_environment_work_and_a_server_with_keys_stays_closed(tmp_path):
    secret = "a-secret-of-the-environment"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    config = {"AUTH__KEYS_FILE": str(tmp_path / "none.toml"), "AUTH__KEYS": f"ci:{digest}", "AUTH__REQUESTS_PER_MINUTE": "100"}
    config |= {"AUTH__OPEN_PATHS": "/health,/ready,/metrics,/docs"}
    with Server({"SERVER__DEFAULT_MODELS": MODEL, **config}) as server:
        assert complete(server, secret).headers["x-ratelimit-limit-requests"] == "100" and complete(server, digest).status == 401
        assert [server.get(path).status for path in ("/metrics", "/docs/", "/version", "/openapi.json")] == [200, 200, 401, 401]
        assert "auth.keys" in cli("keys", "list", env=config).stdout
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "AUTH__KEYS_FILE": str(tmp_path / "later.toml")}) as server:
        assert server.text(max_tokens=1)
        cli("keys", "add", "first", env={"AUTH__KEYS_FILE": str(tmp_path / "later.toml")})
        wait_until(lambda: server.get("/v1/models").status == 401, 5, "the server needs a key")
        cli("keys", "revoke", "first", env={"AUTH__KEYS_FILE": str(tmp_path / "later.toml")})
        time.sleep(1.5)
        assert server.get("/v1/models").status == 401, "the server does not become open again"


def test_the_server_does_not_start_with_a_wrong_key_file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text('[[keys]]\nname = "a"\nsha256 = "12"\n')
    done = cli("serve", "--port", "0", env={"AUTH__KEYS_FILE": str(path)})
    assert done.returncode == 1 and str(path) in done.stderr and "sha256" in done.stderr
    always = cli("keys", "list", env={"AUTH__KEYS": "ci:secret"})
    assert always.returncode == 1 and "auth.keys" in always.stderr and "secret" not in always.stderr
