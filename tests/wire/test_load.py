"""Clients that disconnect, bursts, requests beside each other, and how a server ends."""

import asyncio
import json
import random
import re
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import MODEL, Server, chunks_of, open_stream, sse_events, wait_until

CHAT = "/v1/chat/completions"


def long_stream(**fields) -> dict:
    return {
        "model": MODEL,
        "prompt": "Once upon a time",
        "max_tokens": 1500,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        **fields,
    }


def at_rest(server) -> bool:
    return (
        server.gauge("num_requests_running") == 0 and server.gauge("num_requests_waiting") == 0 and server.gauge("kv_cache_usage_perc") == 0
    )


def reset(stream: socket.socket) -> None:
    """Closes the connection with RST."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


@pytest.mark.usefixtures("survives")
@pytest.mark.parametrize("close", [socket.socket.close, reset], ids=["FIN", "RST"])
def test_a_client_that_goes_away_frees_its_cache(server, close):
    wait_until(lambda: at_rest(server), 5, "rest before")
    stream = open_stream(server, "/v1/completions", long_stream())
    assert b"200 OK" in stream.recv(4096)
    wait_until(lambda: server.gauge("num_requests_running") == 1 and server.gauge("kv_cache_usage_perc") > 0, 5, "it runs")
    close(stream)
    wait_until(lambda: at_rest(server), 1.0, "its blocks are free")


@pytest.mark.usefixtures("survives")
def test_a_client_that_goes_away_during_prefill_or_in_the_queue_frees_its_cache(server):
    long_prompt = long_stream(prompt="word " * 3000, max_tokens=8)
    streams = [open_stream(server, "/v1/completions", long_prompt) for _ in range(6)]
    time.sleep(0.3)
    for stream in streams:
        stream.close()
    wait_until(lambda: at_rest(server), 5, "every one of them is gone")


@pytest.mark.usefixtures("survives")
def test_a_disconnect_also_ends_a_request_without_streaming(server):
    stream = open_stream(server, "/v1/completions", long_stream(stream=False))
    wait_until(lambda: server.gauge("num_requests_running") == 1, 5, "it runs")
    stream.close()
    wait_until(lambda: at_rest(server), 1.0, "its blocks are free")


@pytest.mark.usefixtures("survives")
def test_an_abort_does_not_disturb_a_long_prefill(server):
    prompt = "The history of the world is long. " * 200
    expected = server.text(prompt, max_tokens=4)
    with ThreadPoolExecutor(1) as pool:
        doomed = open_stream(server, "/v1/completions", long_stream(prompt="Tell me a story about a dog"))
        doomed.recv(1024)
        other = pool.submit(server.text, prompt, max_tokens=4)
        time.sleep(0.05)
        doomed.close()
        assert other.result() == expected


def test_requests_at_once_get_the_text_that_each_gets_alone(server):
    rng = random.Random(17)
    words = "river stone light machine garden winter silent engine morning letter".split()
    jobs = []
    for number in range(24):
        prompt = " ".join(rng.choices(words, k=rng.choice([3, 20, 90, 200])))
        fields = {"max_tokens": rng.randint(1, 12), "stop": rng.choice([None, "the"])}
        fields |= (
            {"temperature": 0} if number % 2 else {"temperature": 1.0, "seed": number, "top_p": 0.9, "top_k": 40, "frequency_penalty": 0.5}
        )
        jobs.append((prompt, fields))
    jobs.append((jobs[2][0], jobs[2][1]))  # the same request twice at once

    def solo(job):
        return server.text(job[0], **job[1])

    def overlapped(job):
        time.sleep(rng.random() * 0.5)
        if len(job[0]) % 2:
            return "".join(c["choices"][0]["text"] for c in chunks_of(server.complete(job[0], stream=True, **job[1])))
        return solo(job)

    alone = [solo(job) for job in jobs]
    with ThreadPoolExecutor(len(jobs)) as pool:
        together = list(pool.map(overlapped, jobs))
    assert together == alone


def test_preemption_changes_no_text():
    """With a cache too small for all sequences at once, some are preempted and resumed token for token."""
    config = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "128", "ENGINE__KV_TOKENS": "256"}
    with Server(config) as server:
        prompts = [f"{number}. A story about the number {number} begins" for number in range(6)]
        fields = {"max_tokens": 60, "ignore_eos": True}
        alone = [server.text(prompt, **fields) for prompt in prompts[:2]]
        with ThreadPoolExecutor(6) as pool:
            together = list(pool.map(lambda prompt: server.text(prompt, **fields), prompts))
        assert together[:2] == alone
        assert server.gauge("num_preemptions_total") > 0
        wait_until(lambda: at_rest(server), 5, "all blocks are free")


async def one(server, body: bytes) -> tuple[int, bytes]:
    for attempt in range(20):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            break
        except OSError:
            await asyncio.sleep(0.05 * attempt)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 150)
    writer.close()
    return int(answer[9:12]), answer


def test_a_burst_beyond_the_queue_gets_whole_answers_or_429(server):
    """Of 700 requests at once, those beyond the queue get 429 with Retry-After, and every other one gets its whole answer."""
    body = json.dumps({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 3, "temperature": 0}).encode()
    expected = server.text("Once upon a time", max_tokens=3)

    async def burst():
        return await asyncio.gather(*(one(server, body) for _ in range(700)))

    answers = asyncio.run(burst())
    refused = [answer for status, answer in answers if status == 429]
    served = [answer for status, answer in answers if status == 200]
    assert len(refused) + len(served) == 700, sorted({status for status, _ in answers})
    assert refused or server.backend == "cuda", "more than the queue holds were sent at once, and a CPU does not keep up"
    assert len(served) >= 500, len(served)
    for answer in refused:
        assert b"retry-after: " in answer.lower()
        error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
        assert set(error) == {"message", "type", "param", "code"} and isinstance(error["code"], str), error
    assert {json.loads(answer.split(b"\r\n\r\n", 1)[1])["choices"][0]["text"] for answer in served} == {expected}
    wait_until(lambda: at_rest(server), 5, "all blocks are free")


def test_row_82_sigterm_lets_running_requests_finish():
    with Server({"SERVER__DEFAULT_MODELS": MODEL}) as server:
        messages = [{"role": "user", "content": "Count to ten."}]
        stream = open_stream(
            server, CHAT, {"model": MODEL, "messages": messages, "max_tokens": 300, "stream": True, "ignore_eos": True}
        )
        got = stream.recv(1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/ready", timeout=5).status == 503, 2, "it drains, and says so")
        assert server.get("/health", timeout=5).status == 200, "it is not broken"
        refused = server.complete("Hi")
        assert refused.status == 503 and refused.error["code"] == "shutting_down" and refused.headers["retry-after"] == "1"
        while piece := stream.recv(65536):
            got += piece
        stream.close()
        assert b"200 OK" in got and b"data: [DONE]" in got, "the running stream came to its end"
        start = time.monotonic()
        server.process.wait(10)
        assert server.process.returncode == 0, server.output()
        assert time.monotonic() - start < 5


def test_row_82_a_second_sigterm_ends_the_process_at_once():
    with Server({"SERVER__DEFAULT_MODELS": MODEL}) as server:
        stream = open_stream(server, "/v1/completions", long_stream(max_tokens=4000))
        stream.recv(1024)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None, "it drains"
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(10)
        assert time.monotonic() - start < 3
        stream.close()
        assert server.process.returncode == 130, server.output()
        server.process.returncode = 0  # so that the end of the block does not fail


@pytest.mark.parametrize("delay", [0.01, 0.03, 0.06, 0.1, 0.2])
def test_row_82_sigterm_ends_a_server_that_is_still_starting(delay):
    server = Server({"SERVER__DEFAULT_MODELS": MODEL})
    server.wait_ready = lambda: time.sleep(delay)
    server.__enter__()
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    # before the handler is installed, the signal itself ends the process
    assert server.process.wait(10) in (0, -signal.SIGTERM), server.output()
    assert time.monotonic() - start < 3 and "panicked" not in server.output()


def test_row_82_the_drain_has_a_deadline():
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__DRAIN_SECONDS": "1"}) as server:
        stream = open_stream(server, "/v1/completions", long_stream(max_tokens=4000))
        got = stream.recv(1024)
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        while piece := stream.recv(65536):
            got += piece
        server.process.wait(10)
        assert time.monotonic() - start < 6
        events = [line for line in got.decode().split("\n") if line.startswith("data: ")]
        error = json.loads(events[-1].removeprefix("data: "))["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == "shutting_down"
        assert b"[DONE]" not in got, "a cut stream does not look like a whole one"
        assert got.endswith(b"\r\n0\r\n\r\n"), "what there is arrived whole"


def test_a_client_that_never_reads_is_cut_off():
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "8192"}) as server:
        with socket.socket() as stream:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.connect(("127.0.0.1", server.port))
            payload = json.dumps(long_stream(max_tokens=5000)).encode()
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
            stream.sendall(head.encode() + payload)
            wait_until(lambda: server.gauge("num_requests_running") == 1, 5, "it runs")
            names = ("penstock_http_stalled_streams_total", "penstock_http_disconnects_total")
            wait_until(lambda: sum(server.metrics().get((name, ()), 0) for name in names) == 1, 75, "it is cut off")
            wait_until(lambda: at_rest(server), 2, "its place is free")
            line = lambda: re.search(r"outcome=(aborted|left) status=200 .* generated_tokens=[1-9]", server.output())
            wait_until(line, 5, "its line in the log tells what it has cost")
        assert server.complete(max_tokens=1).status == 200


def test_streams_are_whole_under_load(server):
    def stream(number: int) -> list[str]:
        return sse_events(server.chat(f"Say the number {number}.", stream=True, max_tokens=6).body)

    with ThreadPoolExecutor(20) as pool:
        for events in pool.map(stream, range(20)):
            assert events[-1] == "[DONE]"
            chunks = [json.loads(event) for event in events[:-1]]
            assert len({chunk["id"] for chunk in chunks}) == 1
