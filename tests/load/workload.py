"""Random valid requests for the load tests, each made from one seed, and a client on a raw socket that can disconnect at any moment."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from dataclasses import dataclass

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORDS = (
    "river stone light machine garden winter silent engine morning letter copper window orange planet number forest history music "
    "doctor market island thunder paper bridge harbour candle mirror valley"
).split()
SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"], "additionalProperties": False},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 1, "maxItems": 4},
    {"enum": ["yes", "no", "perhaps"]},
]


@dataclass
class Job:
    """A request. `body` has no `stream`, because the caller chooses that."""

    path: str
    body: dict


def random_job(rng: random.Random, model: str, longest_prompt: int = 300, most_tokens: int = 24) -> Job:
    """Makes a valid request with a greedy answer: any text endpoint, any length, with or without choices, stop strings and a grammar."""
    prompt = " ".join(rng.choices(WORDS, k=rng.choice([1, 4, 15, 60, longest_prompt])))
    body = {"model": model, "temperature": 0, "max_tokens": rng.randint(1, most_tokens)}
    if rng.random() < 0.3:
        body["stop"] = rng.sample(["the", ".", "\n", "and", " a"], rng.randint(1, 3))
    if rng.random() < 0.2:
        body["n"] = rng.randint(2, 3)
    if rng.random() < 0.2:
        body |= {"frequency_penalty": rng.choice([0.3, 0.8]), "presence_penalty": rng.choice([0.0, 0.4])}
    if rng.random() < 0.5:
        if rng.random() < 0.2:
            prompt = [prompt, " ".join(rng.choices(WORDS, k=5))]
        return Job(TEXT, body | {"prompt": prompt})
    body["messages"] = [{"role": "user", "content": prompt}]
    if rng.random() < 0.4:
        schema = rng.choice(SCHEMAS)
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    return Job(CHAT, body)


@dataclass
class Answer:
    status: int
    body: bytes
    # Whether the body arrived completely, according to HTTP.
    whole: bool

    def texts(self, path: str) -> list[str]:
        """The text of each choice, from a stream or from one body."""
        if not self.body.startswith(b"data: ") and not self.body.startswith(b":"):
            choices = json.loads(self.body)["choices"]
            return [choice["text"] if path == TEXT else choice["message"]["content"] or "" for choice in choices]
        texts: dict[int, str] = {}
        for line in self.body.decode().split("\n"):
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    piece = choice["text"] if path == TEXT else choice["delta"].get("content") or ""
                    texts[choice["index"]] = texts.get(choice["index"], "") + piece
        return [texts[index] for index in sorted(texts)]


async def ask(
    port: int, job: Job, stream: bool = False, leave_after: float | None = None, rng: random.Random | None = None
) -> Answer | None:
    """Sends a request on a new connection. With `leave_after`, the client disconnects after that many seconds, and there is no answer."""
    payload = json.dumps(job.body | ({"stream": True} if stream else {})).encode()
    head = f"POST {job.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        sent = head.encode() + f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload
        if leave_after is not None:
            await leave(reader, writer, sent, leave_after, rng or random.Random(0))
            return None
        writer.write(sent)
        await writer.drain()
        return parse(await reader.read())
    finally:
        writer.close()


async def leave(reader, writer, sent: bytes, seconds: float, rng: random.Random) -> None:
    """Disconnects as crashed clients do: during the request, before reading, or during the answer, with FIN or RST."""
    kind = rng.choice(["within the request", "unread", "within the answer"])
    writer.write(sent[: rng.randrange(1, len(sent))] if kind == "within the request" else sent)
    await writer.drain()
    if kind == "within the answer":
        try:
            await asyncio.wait_for(reader.read(rng.randint(1, 400)), seconds)
        except TimeoutError:
            pass
    else:
        await asyncio.sleep(seconds)
    if rng.random() < 0.5:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def parse(got: bytes) -> Answer:
    head, _, body = got.partition(b"\r\n\r\n")
    status = int(head[9:12]) if head.startswith(b"HTTP/1.1 ") else 0
    lowered = head.lower()
    if b"transfer-encoding: chunked" not in lowered:
        length = next((int(line.split(b":")[1]) for line in lowered.split(b"\r\n") if line.startswith(b"content-length:")), -1)
        return Answer(status, body, len(body) == length)
    pieces = []
    while True:
        size, found, rest = body.partition(b"\r\n")
        if not found or len(rest) < int(size, 16) + 2:
            return Answer(status, b"".join(pieces), False)
        if int(size, 16) == 0:
            return Answer(status, b"".join(pieces), True)
        pieces.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
