"""Helpers for tests of files and batches: uploads, JSON lines, and waiting for a batch."""

import json
import time
import uuid

from harness import MODEL, Reply, Server

ENDED = {"completed", "failed", "expired", "cancelled"}


def form(parts: list[tuple[str, str | None, bytes]]) -> tuple[bytes, dict[str, str]]:
    """Encodes a multipart form of (name, file name, content) triples. Returns the body and its headers."""
    boundary = uuid.uuid4().hex
    body = b""
    for name, filename, content in parts:
        shown = f'; filename="{filename}"' if filename is not None else ""
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{shown}\r\n\r\n'.encode() + content + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), {"content-type": f"multipart/form-data; boundary={boundary}"}


def upload(server: Server, content: bytes, purpose: str = "batch", filename: str = "in.jsonl", headers=None, **fields) -> Reply:
    parts = [("purpose", None, purpose.encode()), *((name, None, str(value).encode()) for name, value in fields.items())]
    body, sent = form([*parts, ("file", filename, content)])
    return server.request("POST", "/v1/files", body, headers=sent | (headers or {}))


def chat_line(number: int, **fields) -> dict:
    messages = [{"role": "user", "content": f"Write the number {number}."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 6, "temperature": 0, **fields}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def jsonl(lines: list[dict]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def make_batch(server: Server, lines: list[dict], endpoint: str = "/v1/chat/completions", window: str = "24h", headers=None, **fields):
    file = upload(server, jsonl(lines), headers=headers)
    assert file.status == 200, file.body
    body = {"input_file_id": file.json()["id"], "endpoint": endpoint, "completion_window": window, **fields}
    reply = server.post("/v1/batches", body, headers=headers)
    assert reply.status == 200, reply.body
    return reply.json()


def batch_of(server: Server, id: str, headers=None) -> dict:
    return server.get(f"/v1/batches/{id}", headers=headers).json()


def wait_for(server: Server, id: str, until, seconds: float = 120, headers=None) -> dict:
    end = time.monotonic() + seconds
    while True:
        batch = batch_of(server, id, headers)
        if until(batch):
            return batch
        assert time.monotonic() < end, f"not within {seconds} s: {batch}\n{server.output()}"
        time.sleep(0.05)


def ended(server: Server, id: str, seconds: float = 120, headers=None) -> dict:
    return wait_for(server, id, lambda batch: batch["status"] in ENDED, seconds, headers)


def results(server: Server, file: str | None, headers=None) -> list[dict]:
    if file is None:
        return []
    reply = server.get(f"/v1/files/{file}/content", headers=headers)
    assert reply.status == 200 and reply.body.endswith(b"\n")
    return [json.loads(line) for line in reply.body.splitlines()]
