"""Access to the server: cross-origin requests, host names and TLS."""

import http.client
import json
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from harness import MODEL, Server, cli, raw, sse_events, status_of, wait_until

ORIGIN, OTHER = "https://app.example.com", "https://evil.example.com"
CONFIG = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "8192"}


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    keys = {"AUTH__KEYS_FILE": str(tmp_path_factory.mktemp("keys") / "keys.toml")}
    key = cli("keys", "add", "page", "--requests-per-minute", "1000", env=keys).stdout.strip()
    with Server({**CONFIG, **keys, "SERVER__CORS_ORIGINS": f"{ORIGIN},http://localhost:3000"}) as server:
        yield server, key


def log(server) -> str:
    return Path(server.log.name).read_text()


def preflight(server, origin, path="/v1/chat/completions", **more):
    headers = {"origin": origin, "access-control-request-method": "POST", **more}
    return server.request("OPTIONS", path, headers=headers)


def marks(reply) -> dict[str, str]:
    return {name.lower(): value for name, value in reply.headers.items() if name.lower().startswith("access-control-")}


def test_a_preflight_request_of_a_listed_origin_is_answered_without_a_key(crossed):
    server, _ = crossed
    asked = "authorization,content-type,x-stainless-lang,x-stainless-retry-count"
    reply = preflight(server, ORIGIN, **{"access-control-request-headers": asked})
    assert reply.status == 204 and not reply.body
    allowed = marks(reply)
    assert allowed["access-control-allow-origin"] == ORIGIN and allowed["access-control-allow-headers"] == asked
    assert {"GET", "POST", "DELETE"} <= set(allowed["access-control-allow-methods"].split(", "))
    assert "access-control-allow-credentials" not in allowed and "origin" in reply.headers["vary"]
    odd = preflight(server, ORIGIN, **{"access-control-request-headers": "a b, <c>"})
    assert odd.status == 204 and "access-control-allow-headers" not in marks(odd)


def test_other_origins_get_nothing(crossed):
    server, key = crossed
    for origin in (OTHER, "null", ORIGIN + ".evil.com", ORIGIN + "/", "http://app.example.com", ORIGIN.upper(), "*", ""):
        reply = preflight(server, origin)
        assert reply.status == 401 and not marks(reply), origin
        with_key = server.get("/v1/models", headers={"origin": origin, "x-api-key": key})
        assert with_key.status == 200 and not marks(with_key) and "origin" in with_key.headers["vary"], origin
    assert server.request("OPTIONS", "/v1/models", headers={"origin": ORIGIN}).status == 401, "not a preflight request"


def exposed(reply) -> set[str]:
    return set(reply.headers["access-control-expose-headers"].split(", "))


# Headers that every page may read (Fetch's safelist), and headers for browsers and proxies, which pages do not need.
SAFE = {"cache-control", "content-language", "content-length", "content-type", "expires", "last-modified", "pragma"}
FOR_OTHERS = {"date", "vary", "connection", "transfer-encoding", "allow", "www-authenticate", "x-accel-buffering", "content-disposition"}
FOR_OTHERS |= {"x-content-type-options"}


def test_pages_may_read_every_header_that_clients_read(crossed):
    server, key = crossed
    headers = {"origin": ORIGIN, "x-api-key": key, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    replies = [
        server.post("/v1/chat/completions", chat, headers=headers),
        server.post("/v1/messages", chat, headers=headers),
        server.post("/v1/messages", {**chat, "stream": True}, headers=headers),
        server.post("/v1/messages", {**chat, "model": "gpt-9"}, headers=headers),
        server.post("/api/chat", {**chat, "options": {"num_predict": 2}}, headers=headers),
        server.post("/v1/completions", {"model": MODEL, "prompt": "Hi"}, headers={**headers, "x-api-key": "wrong"}),
        server.get("/v1/files", headers=headers),
    ]
    names = set()
    for reply in replies:
        sent = {name.lower() for name in reply.headers if not name.lower().startswith("access-control-")}
        assert sent - SAFE - FOR_OTHERS <= exposed(reply), reply.headers.items()
        names |= sent
    assert {"request-id", "x-request-id", "traceparent", "x-ratelimit-limit-requests"} <= names, "the responses have these headers"
    assert {"retry-after", "retry-after-ms", "request-id"} <= exposed(replies[0]), "exposed in every response"


def test_answers_streams_and_errors_are_marked_for_a_listed_origin(crossed):
    server, key = crossed
    headers = {"origin": ORIGIN, "authorization": f"Bearer {key}"}
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 2}
    replies = [
        server.get("/v1/models", headers=headers),
        server.post("/v1/completions", {**body, "stream": True}, headers=headers),
        server.post("/v1/completions", {**body, "max_tokens": -2}, headers=headers),
        server.get("/v1/models", headers={"origin": ORIGIN}),
        server.get("/nothing", headers=headers),
    ]
    assert [reply.status for reply in replies] == [200, 200, 400, 401, 404]
    for reply in replies:
        assert reply.headers["access-control-allow-origin"] == ORIGIN
        assert {"x-request-id", "retry-after", "x-ratelimit-remaining-requests"} <= exposed(reply)
    assert sse_events(replies[1].body)[-1] == "[DONE]" and replies[1].headers["x-ratelimit-limit-requests"] == "1000"


def test_without_a_list_no_origin_is_allowed_and_with_a_star_every_one(server):
    assert preflight(server, ORIGIN).status == 405 and not marks(server.get("/v1/models", headers={"origin": ORIGIN}))
    with Server({**CONFIG, "SERVER__CORS_ORIGINS": "*"}) as open_server:
        assert marks(preflight(open_server, OTHER))["access-control-allow-origin"] == OTHER
    wrong = cli("list", env={"SERVER__CORS_ORIGINS": "https://a.example/"})
    assert wrong.returncode == 1 and "server.cors_origins" in wrong.stderr and "without a path" in wrong.stderr


# Pages and apps of this machine, as their browsers and web views name them.
LOCAL = ["http://localhost:3000", "https://localhost", "http://127.0.0.1:5173", "http://[::1]:8000", "app://obsidian.md"]
LOCAL += ["file://", "vscode-webview://1a2b3c", "tauri://localhost", "http://tauri.localhost"]


@pytest.mark.parametrize("origin", LOCAL)
def test_pages_of_this_machine_may_ask_models_and_list_them(server, origin):
    reply = preflight(server, origin, **{"access-control-request-headers": "authorization,content-type"})
    assert reply.status == 204 and marks(reply)["access-control-allow-origin"] == origin
    assert marks(reply)["access-control-allow-methods"] == "GET, HEAD, POST"
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 1}
    asked = [("POST", "/v1/completions", body), ("POST", "/api/generate", body), ("GET", "/v1/models", None), ("GET", "/api/tags", None)]
    for method, path, body in [*asked, ("GET", "/models", None), ("GET", "/health", None), ("GET", "/models/", None)]:
        reply = server.request(method, path, body, headers={"origin": origin})
        assert reply.status == 200 and marks(reply)["access-control-allow-origin"] == origin, path
        assert "access-control-allow-credentials" not in marks(reply) and "origin" in reply.headers["vary"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/admin/models/unload"),
        ("GET", "/admin/models"),
        ("DELETE", "/api/delete"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/api/pull"),
        ("POST", "/api/%70ull"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("POST", "/models"),
        ("POST", "/models/load"),
        ("POST", "/models/unload"),
        ("POST", "/v1/files"),
        ("GET", "/v1/files"),
        ("POST", "/v1/batches"),
        ("GET", "/metrics"),
    ],
)
def test_pages_of_this_machine_may_not_change_what_the_server_keeps(server, method, path):
    reply = server.request("OPTIONS", path, headers={"origin": LOCAL[0], "access-control-request-method": method})
    assert reply.status != 204 and not marks(reply)
    server.wait_log(f"a page of {LOCAL[0]} may not send {method} {path}: server.cors_origins lists the origins whose pages may")
    if method == "GET":
        assert not marks(server.get(path, headers={"origin": LOCAL[0]}))


def test_a_page_of_this_machine_may_not_send_a_form_with_a_file(server):
    form = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
    headers = {"origin": LOCAL[0], "content-type": "multipart/form-data; boundary=x"}
    reply = server.post("/v1/files", form, headers=headers)
    assert reply.status == 403 and "server.cors_origins" in reply.error["message"]


def test_a_refused_preflight_is_logged_with_the_name_of_the_setting(server):
    for origin in (OTHER, "null"):
        assert preflight(server, origin).status == 405
        server.wait_log(f"a page of {origin} may not send POST /v1/chat/completions: server.cors_origins lists")


def test_with_keys_or_on_another_address_only_listed_origins_are_allowed(crossed):
    server, key = crossed
    assert marks(preflight(server, "http://localhost:3000"))["access-control-allow-origin"] == "http://localhost:3000", "it is listed"
    for origin in ("http://localhost:3001", "app://x", "http://127.0.0.1:3000"):
        assert not marks(preflight(server, origin)) and not marks(server.get("/v1/models", headers={"origin": origin, "x-api-key": key}))
    with Server({**CONFIG, "SERVER__HOST": "0.0.0.0"}) as everywhere:
        reply = everywhere.get("/v1/models", headers={"origin": "http://localhost:3000"})
        assert reply.status == 200 and not marks(reply)


def test_the_list_of_hosts():
    status = lambda server, host: status_of(raw(server, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), 5))
    hosts = {"SERVER__ALLOWED_HOSTS": "llm.example.com,*.corp.example"}
    with Server({**CONFIG, **hosts}) as server:
        good = ["llm.example.com", "LLM.example.com:443", "a.corp.example", "localhost", "127.0.0.1:1"]
        bad = ["evil.example", "corp.example", "xllm.example.com", "10.0.0.1", "llm.example.com:x", "llm.example.com@evil.example"]
        assert [status(server, host) for host in good] == [200] * 5
        assert [status(server, host) for host in bad] == [403] * 6
        refused = server.get("/v1/models", headers={"host": "evil.example"})
        assert refused.error["code"] == "host_not_allowed"
        assert "`evil.example`" in refused.error["message"] and "server.allowed_hosts" in refused.error["message"]
    with Server({**CONFIG, **hosts, "SERVER__HOST": "0.0.0.0"}) as server:
        assert [status(server, host) for host in ("llm.example.com", "10.0.0.1:80", "[::1]", "evil.example")] == [200, 200, 200, 403]
        wait_until(lambda: "answers other machines without a key: `penstock keys add NAME`" in log(server), 5, "the server warns")
        assert "under any host name" not in log(server)


def test_a_public_address_with_keys_is_no_cause_for_a_warning(tmp_path):
    keys = {"AUTH__KEYS_FILE": str(tmp_path / "keys.toml")}
    cli("keys", "add", "a", env=keys)
    with Server({**CONFIG, **keys, "SERVER__HOST": "0.0.0.0"}) as server:
        wait_until(lambda: "$PENSTOCK_API_KEY" in log(server), 5, "the example has a place for the key")
        assert "WARN" not in log(server)


def certificate(folder, name: str, days: int = 2) -> None:
    """Writes a new certificate for localhost and its key, replacing each file atomically."""
    for kind in ("cert", "key"):
        (folder / f"{kind}.new").unlink(missing_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(days)]
    command += ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", folder / "key.new", "-out", folder / "cert.new"], check=True, capture_output=True)
    (folder / "key.new").rename(folder / "key.pem")
    (folder / "cert.new").rename(folder / "cert.pem")


class Secure(Server):
    """A server with TLS. Its clients trust only its certificate."""

    def connection(self, timeout):
        context = ssl.create_default_context(cafile=self.config["SERVER__TLS_CERT"])
        return http.client.HTTPSConnection("localhost", self.port, timeout=timeout, context=context)

    def subject(self) -> str:
        context = ssl.create_default_context(cafile=self.config["SERVER__TLS_CERT"])
        with socket.create_connection(("127.0.0.1", self.port)) as plain, context.wrap_socket(plain, server_hostname="localhost") as secure:
            return dict(pair for (pair,) in secure.getpeercert()["subject"])["commonName"]


@pytest.fixture
def secure(tmp_path):
    certificate(tmp_path, "first")
    config = {"SERVER__TLS_CERT": str(tmp_path / "cert.pem"), "SERVER__TLS_KEY": str(tmp_path / "key.pem")}
    with Secure({**CONFIG, **config, "LIMITS__HEAD_TIMEOUT_SECONDS": "2"}) as server:
        yield server, tmp_path


def test_tls_serves_requests_and_streams(secure):
    server, _ = secure
    wait_until(lambda: f"https://127.0.0.1:{server.port}" in log(server), 5, "the server prints its address")
    assert server.text(max_tokens=2)
    reply = server.complete(max_tokens=4, stream=True)
    assert sse_events(reply.body)[-1] == "[DONE]"
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        plain = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        plain.request("GET", "/health")
        plain.getresponse()
    assert server.get("/health").status == 200


def test_a_new_certificate_is_used_and_open_connections_go_on(secure):
    server, folder = secure
    kept = server.connection(30)
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 400, "ignore_eos": True, "stream": True}
    kept.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    stream = kept.getresponse()
    begin = stream.read(100)
    assert begin.startswith(b"data: ")
    certificate(folder, "second")
    wait_until(lambda: _subject(server) == "second", 5, "new connections get the new certificate")
    assert (begin + stream.read()).endswith(b"data: [DONE]\n\n")
    kept.request("GET", "/health")
    assert kept.getresponse().status == 200, "the old connection still works"
    kept.close()
    good = (folder / "key.pem").read_bytes()
    (folder / "key.pem").write_bytes(b"no key")
    wait_until(lambda: "the certificate stays as it was" in log(server), 5, "the fault is logged")
    assert _subject(server) == "second"
    (folder / "key.pem").write_bytes(good)
    certificate(folder, "third")
    wait_until(lambda: _subject(server) == "third", 5, "a new certificate is used again")


def _subject(server) -> str:
    try:
        return server.subject()
    except ssl.SSLError:  # the client already trusts the new certificate, and the server still has the old one
        return ""


def test_slow_clients_are_cut_with_tls_too(secure):
    server, _ = secure
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as silent:
        start = time.monotonic()
        assert silent.recv(100) == b"", "a client that sends no TLS handshake is disconnected"
        assert 1.5 < time.monotonic() - start < 5
    context = ssl.create_default_context(cafile=server.config["SERVER__TLS_CERT"])
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    with context.wrap_socket(plain, server_hostname="localhost") as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        assert status_of(slow.recv(1000)) == 408
    with context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), timeout=10), server_hostname="localhost") as odd:
        odd.sendall(b"hello\r\n\r\n")
        assert status_of(odd.recv(1000)) == 400


def test_the_server_does_not_start_with_a_wrong_certificate(tmp_path):
    certificate(tmp_path, "one")
    other = tmp_path / "other"
    other.mkdir()
    certificate(other, "two")
    (tmp_path / "empty.pem").write_text("nothing\n")
    start = lambda cert, key: cli("serve", "--port", "0", env={"SERVER__TLS_CERT": str(cert), "SERVER__TLS_KEY": str(key)})
    for cert, key, words in [
        (tmp_path / "empty.pem", tmp_path / "key.pem", ["server.tls_cert", "empty.pem", "no certificate"]),
        (tmp_path / "cert.pem", tmp_path / "none.pem", ["server.tls_key", "none.pem"]),
        (tmp_path / "cert.pem", other / "key.pem", ["cert.pem", "key.pem"]),
        (tmp_path / "cert.pem", "", ["server.tls_key", "both"]),
    ]:
        done = start(cert, key)
        assert done.returncode == 1 and all(word in done.stderr for word in words), done.stderr
