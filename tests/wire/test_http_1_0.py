"""HTTP/1.0 clients, over raw sockets. They do not understand chunks, so the end of the connection ends a body of unknown length."""

import json
import re
import socket

import pytest
from harness import MODEL, sse_events
from keep import upload

pytestmark = pytest.mark.usefixtures("survives")

ASK = {"model": MODEL, "max_tokens": 8, "temperature": 0}
MESSAGES = {"messages": [{"role": "user", "content": "Say hello."}]}


class Answer:
    """A response, read until its length is reached or the server closes the connection."""

    def __init__(self, connection: socket.socket, is_head: bool = False):
        got, self.is_closed = b"", False
        while b"\r\n\r\n" not in got:
            piece = connection.recv(65536)
            assert piece, got
            got += piece
        head, self.body = got.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        assert lines[0].startswith("HTTP/1."), lines
        pairs = [line.split(": ", 1) for line in lines[1:]]
        self.headers = {name.lower(): value for name, value in pairs}
        assert len(self.headers) == len(pairs), "each header occurs once"
        if is_head:
            return
        length = self.headers.get("content-length")
        while length is None or len(self.body) < int(length) or self.headers.get("connection") == "close":
            piece = connection.recv(65536)
            if not piece:
                self.is_closed = True
                break
            self.body += piece
        assert length is None or len(self.body) == int(length), (length, len(self.body))


def request(server, method: str, path: str, body=None, headers: str = "") -> bytes:
    payload = b"" if body is None else json.dumps(body).encode()
    if body is not None:
        headers += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
    return f"{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{server.port}\r\n{headers}\r\n".encode() + payload


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def ask(server, method: str, path: str, body=None, headers: str = "") -> Answer:
    with connect(server) as connection:
        connection.sendall(request(server, method, path, body, headers))
        return Answer(connection)


def events_of(body: bytes) -> list:
    """Parses the data of each event. In some dialects, a line with the event's name precedes it."""
    unnamed = re.sub(rb"^event: .*\n", b"", body, flags=re.M)
    return [json.loads(event) if event.startswith("{") else event for event in sse_events(unnamed)]


def lines_of(body: bytes) -> list:
    return [json.loads(line) for line in body.splitlines()]


# By name: the path and body of a streamed request, a parser for its response, and a check of the last part.
STREAMS = {
    "chat": ("/v1/chat/completions", ASK | MESSAGES | {"stream": True}, events_of, lambda last: last == "[DONE]"),
    "completions": ("/v1/completions", ASK | {"prompt": "Hi", "stream": True}, events_of, lambda last: last == "[DONE]"),
    "responses": (
        "/v1/responses",
        {"model": MODEL, "input": "Hi", "max_output_tokens": 8, "stream": True},
        events_of,
        lambda last: last["type"] in ("response.completed", "response.incomplete"),
    ),
    "messages": ("/v1/messages", ASK | MESSAGES | {"stream": True}, events_of, lambda last: last["type"] == "message_stop"),
    "ollama chat": ("/api/chat", {"model": MODEL, "options": {"num_predict": 8}} | MESSAGES, lines_of, lambda last: last["done"]),
    "ollama generate": (
        "/api/generate",
        {"model": MODEL, "prompt": "Hi", "options": {"num_predict": 8}},
        lines_of,
        lambda last: last["done"],
    ),
    "ollama pull": ("/api/pull", {"model": MODEL}, lines_of, lambda last: last == {"status": "success"}),
}


@pytest.mark.parametrize("connection", ["", "Connection: close\r\n", "Connection: keep-alive\r\n"], ids=["plain", "close", "keep-alive"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.real_models) if "pull" in name else name for name in STREAMS])
def test_a_streamed_body_ends_with_the_connection(server, name, connection):
    path, body, read, is_last = STREAMS[name]
    answer = ask(server, "POST", path, body, connection)
    assert answer.status == 200 and answer.is_closed, answer.body
    assert not {"transfer-encoding", "content-length", "keep-alive"} & set(answer.headers), answer.headers
    assert answer.headers["connection"] == "close"
    parts = read(answer.body)
    assert len(parts) >= 2 and is_last(parts[-1]), parts[-3:]


def test_the_text_is_what_clients_of_http_1_1_get(server):
    body = ASK | {"prompt": "The capital of France is", "stream": True}
    text = lambda events: "".join(event["choices"][0]["text"] for event in events[:-1])
    old = events_of(ask(server, "POST", "/v1/completions", body).body)
    new = server.post("/v1/completions", body)
    assert new.headers["transfer-encoding"] == "chunked" and text(old) == text(events_of(new.body)) != ""


def test_a_whole_body_has_a_length_and_keep_alive_keeps_the_connection(server):
    whole = [
        ("GET", "/v1/models", None),
        ("POST", "/v1/chat/completions", ASK | MESSAGES),
        ("POST", "/v1/messages", ASK | MESSAGES),
        ("POST", "/api/chat", {"model": MODEL, "stream": False, "options": {"num_predict": 4}} | MESSAGES),
        ("GET", "/metrics", None),
        ("GET", "/nothing", None),
        ("POST", "/v1/completions", {"model": "gpt-9", "prompt": "Hi"}),
    ]
    with connect(server) as connection:
        for method, path, body in whole:
            connection.sendall(request(server, method, path, body, "Connection: keep-alive\r\n"))
            kept = Answer(connection)
            assert kept.headers["connection"] == "keep-alive" and int(kept.headers["content-length"]) == len(kept.body) > 0, path
            closed = ask(server, method, path, body)
            assert closed.is_closed and closed.headers["connection"] == "close" and closed.status == kept.status, path
            assert int(closed.headers["content-length"]) > 0 and "transfer-encoding" not in {**closed.headers, **kept.headers}, path
        # The last response on the connection may be streamed.
        path, body, read, is_last = STREAMS["chat"]
        connection.sendall(request(server, "POST", path, body, "Connection: keep-alive\r\n"))
        last = Answer(connection)
        assert last.is_closed and "transfer-encoding" not in last.headers and last.headers.get("connection") != "keep-alive"
        assert is_last(read(last.body)[-1])


def test_a_head_without_a_body_and_a_file(server):
    for connection in ("", "Connection: keep-alive\r\n"):
        with connect(server) as stream:
            stream.sendall(request(server, "HEAD", "/v1/models", headers=connection))
            head = Answer(stream, is_head=True)
            assert head.status == 200 and int(head.headers["content-length"]) > 0 and head.body == b""
    content = bytes(range(256)) * 3000
    id = upload(server, content, "user_data").json()["id"]
    file = ask(server, "GET", f"/v1/files/{id}/content")
    assert file.body == content and file.headers["content-length"] == str(len(content))
    server.request("DELETE", f"/v1/files/{id}")


@pytest.mark.parametrize("path", ["/admin/models/events", "/models/sse"])
def test_an_endless_event_stream_comes_without_chunks(server, path):
    with connect(server) as connection:
        connection.sendall(request(server, "GET", path, headers="Connection: keep-alive\r\n"))
        answer = Answer(connection, is_head=True)
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
        assert not {"transfer-encoding", "content-length"} & set(answer.headers) and answer.headers["connection"] == "close"


def test_a_response_in_the_background_is_followed_without_chunks(server):
    body = {"model": MODEL, "input": "Hi", "max_output_tokens": 8, "background": True, "ignore_eos": True}
    id = server.post("/v1/responses", body).json()["id"]
    answer = ask(server, "GET", f"/v1/responses/{id}?stream=true")
    assert answer.is_closed and "transfer-encoding" not in answer.headers
    assert events_of(answer.body)[-1]["type"] == "response.incomplete"


def test_a_broken_request_gets_an_error_with_a_length(server):
    first = request(server, "GET", "/v1/models", headers="Connection: keep-alive\r\n")
    without_length = b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\n\r\n"
    for broken in (without_length, b"nonsense\r\n\r\n", b"GET / HTTP/1.0\r\nContent-Length: x\r\n\r\n"):
        for before in (b"", first):
            with connect(server) as connection:
                if before:
                    connection.sendall(before)
                    assert Answer(connection).status == 200
                connection.sendall(broken)
                answer = Answer(connection)
            assert answer.status == 400 and answer.is_closed and answer.headers["connection"] == "close", broken
            assert json.loads(answer.body)["error"]["code"] == "invalid_http", broken


def test_a_request_for_a_web_socket_gets_an_answer_without_chunks(server):
    """The HTTP library treats the bytes after such a request as another protocol, and would announce chunks that it does not write."""
    sent = f"GET /models/sse HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(sent.encode())
        answer = Answer(connection, is_head=True)
    assert answer.status == 200 and "transfer-encoding" not in answer.headers and answer.headers["connection"] == "close"


def test_a_client_that_offers_http_2_is_answered_in_http_1_1(server):
    """Java's client offers HTTP/2 with its first request."""
    path, body, read, is_last = STREAMS["chat"]
    payload = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    head += "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(payload)}\r\n\r\n"
    with connect(server) as connection:
        connection.sendall((head + payload).encode())
        answer = Answer(connection)
    assert answer.status == 200 and answer.headers["connection"] == "close" and answer.headers["transfer-encoding"] == "chunked"
    assert answer.body.endswith(b"0\r\n\r\n") and b"data: [DONE]" in answer.body
