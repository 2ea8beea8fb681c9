"""Injected faults: what clients see, and the time until the server works again. docs/faults.md has the figures.

`tests/run` builds the binary with the feature `faults`, which reads faults from a file (src/serving/faults.rs). `Plan.ask` writes a fault
to the file, and the engine's next step takes it from there."""

import json
import os
import threading
import time

import pytest
from harness import MODEL, Server, open_stream, wait_until

pytestmark = pytest.mark.features("faults")

CONFIG = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "8192", "ENGINE__STEP_TIMEOUT_SECONDS": "1"}
ENDLESS = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4000, "temperature": 0, "ignore_eos": True}


class Plan:
    def __init__(self, path):
        self.path, self.servers = path, []

    def ask(self, fault: str) -> float:
        """Requests a fault. Returns the last time at which it had not begun [s]."""
        ready = self.path.with_suffix(".new")
        ready.write_text(fault)
        ready.rename(self.path)
        before = time.monotonic()

        def begun() -> bool:
            nonlocal before
            now = time.monotonic()
            if waits := self.path.exists():
                before = now
            return not waits

        wait_until(begun, 30, f"{fault} begins")
        return before


@pytest.fixture
def plan(tmp_path):
    plan = Plan(tmp_path / "plan")
    yield plan
    for server in plan.servers:
        server.stop()


def faulty(plan, *args, **config) -> Server:
    server = Server(CONFIG | config, args=args, env={"PENSTOCK_FAULTS": str(plan.path)})
    plan.servers.append(server)
    return server


class Client(threading.Thread):
    """A request in its own thread, which waits for its end."""

    def __init__(self, server, stream: bool, **fields):
        super().__init__(daemon=True)
        self.socket = open_stream(server, "/v1/completions", ENDLESS | {"stream": stream} | fields)
        self.got, self.ended = b"", None
        self.start()

    def run(self):
        try:
            while piece := self.socket.recv(65536):
                self.got += piece
                if piece.endswith((b"\r\n0\r\n\r\n", b"}")) and not piece.startswith(b"HTTP/1.1 200"):
                    break
        except OSError:
            pass
        self.ended = time.monotonic()

    def saw(self) -> str:
        """Describes what the client saw: the status, and the code of an error or how the answer ended."""
        self.join(30)
        assert self.ended, self.got[-200:]
        if not self.got:
            return "closed"
        status, body = self.got[9:12].decode(), self.got.split(b"\r\n\r\n", 1)[1].decode()
        errors = [json.loads(line[line.index("{") :])["error"]["code"] for line in body.split("\n") if '"error":' in line]
        done = "[DONE]" in body or '"finish_reason":"length"' in body
        return f"{status} {errors[0]}" if errors else f"{status} whole" if done else f"{status} cut"


class Health(threading.Thread):
    """Polls /health in a thread, and records when the status changed, and to what."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.changes, self.over = server, [], False
        self.start()

    def run(self):
        while not self.over:
            try:
                # A connection waits for a new process, and is neither refused nor cut. On a busy machine, the process takes seconds to
                # start.
                status = self.server.get("/health", timeout=10).status
            except OSError:
                status = None
            if not self.changes or self.changes[-1][1] != status:
                self.changes.append((time.monotonic(), status))
            time.sleep(0.005)

    def first(self, status, since: float) -> float | None:
        """Returns the time from `since` to the first poll that found `status` [s]."""
        return next((at - since for at, seen in self.changes if seen == status and at >= since - 0.01), None)


def served(server, expected: str, since: float, seconds: float = 30) -> float:
    """Repeats a request until it returns the expected text. Returns the time since `since` [s]."""

    def answers() -> bool:
        try:
            reply = server.complete(timeout=10)
        except OSError:
            return False
        return reply.status == 200 and reply.json()["choices"][0]["text"] == expected

    wait_until(answers, seconds, "the server works again")
    return time.monotonic() - since


def row(fault: str, saw: str, **seconds) -> None:
    """Prints a row for the table in docs/faults.md (pytest -s)."""
    print(f"\n| {fault} | {saw} | " + " | ".join(f"{name} {value:.2f} s" for name, value in seconds.items()) + " |")


def in_flight(server) -> list[Client]:
    clients = [Client(server, True), Client(server, False), Client(server, True, prompt="A dog")]
    wait_until(lambda: server.gauge("num_requests_running") == 3, 20, "the requests run")
    return clients


def test_a_panic_of_the_engine_is_reported_within_a_second_and_repaired(plan):
    """Row 76."""
    with faulty(plan) as server:
        expected, clients, health = server.text(), in_flight(server), Health(server)
        fault = plan.ask("panic")
        saw = [client.saw() for client in clients]
        assert saw == ["200 engine_stopped", "503 engine_stopped", "200 engine_stopped"]
        told = max(client.ended for client in clients) - fault
        wait_until(lambda: health.first(503, fault) is not None, 2, "/health shows the fault")
        sick = health.first(503, fault)
        assert told < 1 and sick < 1, (told, sick)
        back = served(server, expected, fault)
        assert server.get("/health").status == 200 and back < 10
        row("engine panic", "; ".join(saw), told=told, health=sick, back=back)
        health.over = True


@pytest.mark.parametrize("supervised", [False, True], ids=["alone", "supervised"])
@pytest.mark.parametrize("fault,code,allowed", [("lost", 71, 0), ("hang", 70, 1.5)], ids=["lost", "hang"])
def test_a_fault_that_only_a_new_process_repairs_ends_the_process(plan, fault, code, allowed, supervised):
    """Rows 77 and 78. `allowed`: the step timeout plus the watchdog's period [s]."""
    server = faulty(plan, *(["--supervise"] if supervised else [])).__enter__()
    expected, clients, health = server.text(), in_flight(server), Health(server)
    began = plan.ask(fault)
    saw = [client.saw() for client in clients]
    assert saw == ["200 engine_stopped", "503 engine_stopped", "200 engine_stopped"]
    told = max(client.ended for client in clients) - began
    wait_until(lambda: health.first(503, began) is not None, 2, "/health shows the fault")
    sick = health.first(503, began)
    assert told < 1 + allowed and sick < 1 + allowed, (told, sick)
    if supervised:
        back = served(server, expected, began)
        assert server.process.poll() is None and back < 5 + allowed + 5
        assert health.first(None, began) is None, "no connection was refused or cut"
        assert f"ended with code {code}" in server.output() and server.stop() == 0
        row(f"{fault}, supervised", "; ".join(saw), told=told, health=sick, back=back)
    else:
        assert server.process.wait(10) == code, server.output()
        ended = time.monotonic() - began
        assert ended < 5 + allowed
        row(fault, "; ".join(saw), told=told, health=sick, exit=ended)
    health.over = True


def test_logits_that_are_not_finite_fail_their_request_alone(plan):
    """Row 79."""
    with faulty(plan) as server:
        expected, health = server.text(), Health(server)
        clients = [Client(server, True, max_tokens=300), Client(server, True, max_tokens=300)]
        wait_until(lambda: server.gauge("num_requests_running") == 2, 20, "the requests run")
        began = plan.ask("not_finite")
        saw = sorted(client.saw() for client in clients)
        assert saw == ["200 generation_failed", "200 whole"]
        told = min(client.ended for client in clients) - began
        whole = Client(server, False)
        wait_until(lambda: server.gauge("num_requests_running") == 1, 20, "the request runs")
        plan.ask("not_finite")
        assert whole.saw() == "500 generation_failed"
        assert told < 1 and server.text() == expected and health.first(503, began) is None
        row("not finite logits", "; ".join(saw), told=told)
        health.over = True


def test_a_failed_allocation_fails_the_youngest_request_alone(plan):
    """Row 80."""
    with faulty(plan) as server:
        expected, health = server.text(), Health(server)
        old = Client(server, True, max_tokens=300)
        wait_until(lambda: server.gauge("num_requests_running") == 1, 20, "the request runs")
        young = Client(server, False, prompt="A dog")
        wait_until(lambda: server.gauge("num_requests_running") == 2, 20, "the requests run")
        began = plan.ask("no_memory")
        assert (young.saw(), old.saw()) == ("500 generation_failed", "200 whole")
        told = young.ended - began
        assert told < 1 and server.text() == expected and health.first(503, began) is None
        row("failed allocation", "500 generation_failed; 200 whole", told=told)
        health.over = True


def test_a_crash_under_supervision(plan):
    with faulty(plan, "--supervise") as server:
        expected, clients = server.text(), in_flight(server)
        began = plan.ask("abort")
        saw = [client.saw() for client in clients]
        assert saw == ["200 cut", "closed", "200 cut"]
        told = max(client.ended for client in clients) - began
        back = served(server, expected, began)
        assert told < 1 and back < 10
        assert "SIGABRT" in server.output()
        row("abort, supervised", "; ".join(saw), told=told, back=back)


def test_slow_steps_below_the_timeout_do_not_count_as_a_hang(plan):
    """Each step that ends counts as progress. A step of 0.7 s is below the timeout of one second."""
    with faulty(plan) as server:
        expected = server.text()
        client = Client(server, True, max_tokens=50)
        for _ in range(3):
            plan.ask("slow 700")
        assert client.saw() == "200 whole" and server.text() == expected


@pytest.mark.parametrize("when", ["at_start", "on_demand"])
def test_sigterm_during_a_load_ends_the_server_cleanly(plan, when):
    """Row 82."""
    server = faulty(plan)
    if when == "at_start":
        plan.path.write_text("slow_load 20000")
        server.wait_ready = lambda: wait_until(lambda: not plan.path.exists(), 30, "the model loads")
        server.__enter__()
        assert server.get("/health").status == 200 and server.get("/ready").status == 503
        waiting = []
    else:
        server.config |= {"SERVER__DEFAULT_MODELS": f"{MODEL},qwen2.5-coder:0.5b"}
        server.__enter__()
        plan.path.write_text("slow_load 20000")
        waiting = [Client(server, stream, model="qwen2.5-coder:0.5b") for stream in (False, True)]
        wait_until(lambda: not plan.path.exists(), 30, "the model loads")
    start = time.monotonic()
    server.process.terminate()
    assert server.process.wait(35) == 0, server.output()
    took = time.monotonic() - start
    assert [client.saw() for client in waiting] == ["503 shutting_down"] * len(waiting)
    row(f"SIGTERM during a load {when}", "503 shutting_down", exit=took)
    assert took < 2, f"exit after {took:.1f} s"
