"""Rows 68 to 75: clients that leave, that never read or that all arrive at once, and the effect on other requests."""

import json
import random
import re
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import MODEL, Server, at_rest, chunks_of, open_stream, resident, status_of, wait_until
from test_load import long_stream


def test_an_abort_does_not_disturb_a_long_prefill(server):
    """Row 68."""
    prompt = "The history of the world is long. " * 200
    expected = server.text(prompt, max_tokens=4)
    with ThreadPoolExecutor(1) as pool:
        doomed = open_stream(server, "/v1/completions", long_stream(prompt="Tell me a story about a dog"))
        doomed.recv(1024)
        other = pool.submit(server.text, prompt, max_tokens=4)
        time.sleep(0.05)
        doomed.close()
        assert other.result() == expected


def send_queue(port: int, client: int) -> int:
    """Bytes in the kernel's send queue of the server's connection to a client."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if int(local.split(":")[1], 16) == port and int(remote.split(":")[1], 16) == client:
            return int(queues.split(":")[0], 16)
    return 0


def test_a_client_that_never_reads_is_cut_and_holds_up_nobody(server):
    """Row 69."""
    alone = server.text("Once upon a time", max_tokens=16)
    names = ("penstock_http_stalled_streams_total", "penstock_http_disconnects_total")
    cut = lambda: sum(server.metrics().get((name, ()), 0) for name in names)
    cut_before, queued = cut(), 0
    with socket.socket() as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.connect(("127.0.0.1", server.port))
        # With log-probabilities, each token takes a kilobyte.
        payload = json.dumps(long_stream(max_tokens=2500, logprobs=5)).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        start = time.monotonic()
        stream.sendall(head.encode() + payload)
        wait_until(lambda: not at_rest(server), 5, "the request runs")
        others, waits = [], []
        while cut() == cut_before:
            begin = time.monotonic()
            others.append(server.text("Once upon a time", max_tokens=16))
            waits.append(time.monotonic() - begin)
            queued = max(queued, send_queue(server.port, stream.getsockname()[1]))
            assert time.monotonic() - start < 60, "the client is not cut"
            time.sleep(0.2)
        took = time.monotonic() - start
        assert set(others) == {alone}, "others are not affected"
        wait_until(lambda: at_rest(server), 2, "the sequence slot is free")
    line = lambda: re.search(r"outcome=(aborted|left) status=200 .* generated_tokens=[1-9]", server.output())
    wait_until(line, 5, "the log line of the request has its cost")
    print(f"cut {took:.1f} s after it began, {queued >> 10} KiB queued, {line()[0]}, slowest answer beside it {max(waits):.2f} s")
    assert 0 < queued <= 256 << 10 and took < 50, (queued, took)


def sent(server, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=170)
    connection.sendall(data)
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    got = b""
    while piece := connection.recv(65536):
        got += piece
    connection.close()
    return got


@pytest.mark.timing
def test_each_of_ten_thousand_requests_at_once_gets_its_answer_or_429(server):
    """Row 70. Requests beyond the queue's length get 429 with Retry-After. All others get complete answers. Memory is bounded."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 11_000)), hard))
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (max(soft, min(hard, 11_000)), hard))
    body = json.dumps({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 2, "temperature": 0}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    data = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    expected, count = server.text("Once upon a time", max_tokens=2), 10_000
    before, start = resident(server), time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        connections = list(pool.map(lambda _: sent(server, data), range(count)))
        answers = [(status_of(answer), answer) for answer in pool.map(read_to_end, connections)]
    took, grown = time.monotonic() - start, resident(server) - before
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    refused = [answer for status, answer in answers if status == 429]
    served = [answer for status, answer in answers if status == 200]
    print(f"{count} requests: {len(served)} served, {len(refused)} refused in {took:.1f} s, memory + {grown / 1e6:.0f} MB")
    assert len(refused) + len(served) == count, sorted({status for status, _ in answers})
    assert len(served) >= 500 and (refused or server.backend == "cuda"), "a CPU cannot serve this many at once"
    for answer in refused:
        assert b"retry-after: " in answer.lower()
    error = json.loads(refused[0].split(b"\r\n\r\n", 1)[1])["error"] if refused else {"code": ""}
    assert isinstance(error["code"], str), error
    assert {json.loads(answer.split(b"\r\n\r\n", 1)[1])["choices"][0]["text"] for answer in served} == {expected}
    assert grown < 512 << 20
    wait_until(lambda: at_rest(server), 5, "all blocks are free")


def test_preemption_changes_no_text():
    """Row 72. The cache is too small for all sequences at once, so some are preempted, and they resume with the same tokens."""
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


WORDS = "river stone light machine garden winter silent engine morning letter".split()


def random_job(rng: random.Random, number: int) -> tuple[str, dict]:
    """A valid request: its prompt and its parameters."""
    fields = {"max_tokens": rng.randint(1, 12), "stop": rng.choice([None, "the"])}
    if number % 2:
        fields |= {"temperature": 0}
    else:
        fields |= {"temperature": 1.0, "seed": number, "top_p": 0.9, "top_k": 40, "frequency_penalty": 0.5}
    if number % 7 == 3:
        fields |= {"regex": "[a-z ]{5,40}", "stop": None}
    return " ".join(rng.choices(WORDS, k=rng.choice([3, 20, 90, 200]))), fields


def test_requests_at_once_get_the_text_that_each_gets_alone(server):
    """Row 75."""
    rng = random.Random(17)
    jobs = [random_job(rng, number) for number in range(32)]
    jobs += [jobs[2], jobs[10]]  # two requests that run twice at the same time

    def solo(job):
        return server.text(job[0], **job[1])

    def overlapped(job):
        time.sleep(rng.random() * 0.5)
        if len(job[0]) % 2:
            return "".join(c["choices"][0]["text"] for c in chunks_of(server.complete(job[0], stream=True, **job[1])))
        if len(job[0]) % 3 == 0:  # some clients connect and leave at once
            open_stream(server, "/v1/completions", long_stream(prompt=job[0])).close()
        return solo(job)

    alone = [solo(job) for job in jobs]
    with ThreadPoolExecutor(len(jobs)) as pool:
        together = list(pool.map(overlapped, jobs))
    assert together == alone
