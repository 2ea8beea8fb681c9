"""vLLM's router in front of two real servers: it distributes requests, and the death of one server loses only the requests in flight."""

import http.client
import json
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from harness import MODEL, Server, free_port, wait_until

pytest.importorskip("vllm_router", reason="the package vllm-router is not installed (tests/clients/requirements.txt)")
CLIENTS = 6


class Router:
    def __init__(self, folder: Path, servers: list[Server]):
        self.port, self.log = free_port(), (folder / "router.log").open("wb")
        command = [sys.executable, "-m", "vllm_router.launch_router", "--port", str(self.port), "--policy", "round_robin"]
        command += ["--worker-urls", *(server.url for server in servers), "--prometheus-port", str(free_port())]
        command += ["--health-check-endpoint", "/ready", "--health-check-interval-secs", "1", "--health-failure-threshold", "1"]
        command += ["--worker-startup-check-interval", "1"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        wait_until(self.is_ready, 30, f"the router is ready: {(folder / 'router.log').read_text()}")

    def is_ready(self) -> bool:
        try:
            return self.ask(max_tokens=1) is not None
        except (OSError, ValueError):
            return False

    def ask(self, prompt: str = "Once upon a time", **fields) -> str:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        got = urllib.request.urlopen(request, timeout=60).read()
        if fields.get("stream"):
            events = [line[6:] for line in got.decode().split("\n") if line.startswith("data: ")]
            if events[-1] != "[DONE]":
                raise ValueError("a cut stream")
            return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
        return json.loads(got)["choices"][0]["text"]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


class Load:
    """Clients that send requests without a pause. Records when each request began and ended, and its error, if any."""

    def __init__(self, router: Router, expected: str):
        self.router, self.expected, self.asked, self.stop = router, expected, [], threading.Event()
        self.threads = [threading.Thread(target=self.client, args=(number,)) for number in range(CLIENTS)]
        [thread.start() for thread in self.threads]

    def client(self, number: int) -> None:
        while not self.stop.is_set():
            start, fault = time.monotonic(), None
            try:
                got = self.router.ask(stream=number % 2 == 0)
                fault = None if got == self.expected else f"another text: {got!r}"
            except (OSError, ValueError, http.client.HTTPException) as error:
                fault = repr(error)
            self.asked.append((start, time.monotonic(), fault))

    def end(self) -> list[tuple[float, float, str | None]]:
        self.stop.set()
        [thread.join() for thread in self.threads]
        return self.asked


def served(server: Server) -> float:
    name = ("penstock_request_success_total", (("finished_reason", "length"), ("model_name", MODEL)))
    return server.metrics().get(name, 0)


def test_the_death_of_one_server_loses_only_what_was_in_flight(tmp_path):
    config = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "8192"}
    with Server(config) as first, Server(config) as second:
        router = Router(tmp_path, [first, second])
        try:
            expected = first.text("Once upon a time")
            load = Load(router, expected)
            time.sleep(3)
            counts = [served(first), served(second)]
            assert min(counts) > 0.35 * sum(counts) and sum(counts) > 10, f"distribution: {counts}"
            killed = time.monotonic()
            second.process.kill()
            second.process.wait()
            gone = time.monotonic() - killed
            before = served(first)
            time.sleep(4)
            asked = load.end()
            assert served(first) - before > 5, "the other server still serves"
        finally:
            router.stop()
        second.process.returncode = 0  # the exit status of the killed server does not matter
    lost = [(round(start - killed, 3), round(end - killed, 3), fault) for start, end, fault in asked if fault]
    assert [request for request in lost if request[0] > gone or request[1] < 0] == [], f"{len(asked)} requests, lost: {lost}"
    assert len(lost) <= CLIENTS
    assert sum(1 for start, _, fault in asked if start > killed and not fault) > 5
