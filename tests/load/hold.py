"""Holds many streams at once on two cores, with an engine that gives each stream one token per step. Reports the memory per stream, and the
slowest answer of /health meanwhile.

    PENSTOCK_BINARY=target/release/penstock-paced .venv/bin/python tests/load/hold.py --streams 10000

tests/load/cost.py says how to build that binary. Each of the two processes needs a file descriptor per stream (ulimit -n).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import socket
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cost import cpu_seconds  # noqa: E402
from harness import MODEL, Server, wait_until  # noqa: E402

MAX_PROBE = 1.0  # seconds; a kubelet's default timeout
MAX_LEFT = 32 << 20  # bytes; a leak of 1 KiB per stream leaves 40 MiB in the last four crowds


def memory(server: Server) -> int:
    return int(server.metrics()[("process_anonymous_memory_bytes", ())])


class Streams:
    """Streams that a thread reads as fast as data arrives."""

    def __init__(self, port: int, count: int):
        body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4000, "temperature": 0, "stream": True, "ignore_eos": True}
        payload = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.request = f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload
        self.port, self.sockets, self.num_bytes, self.num_events, self.ended = port, {}, 0, 0, 0
        self.started: set[int] = set()
        self.poll, self.stop = select.epoll(), threading.Event()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(self.request)
            connection.setblocking(False)
            self.sockets[connection.fileno()] = connection
            self.poll.register(connection, select.EPOLLIN)

    def read(self) -> None:
        while not self.stop.is_set():
            for number, _ in self.poll.poll(0.1, 4096):
                try:
                    got = self.sockets[number].recv(65536)
                except OSError:
                    got = b""
                if not got:
                    self.ended += 1
                    self.poll.unregister(number)
                elif b"data: {" in got:
                    self.started.add(number)
                    self.num_events += got.count(b"data: {")
                self.num_bytes += len(got)

    def close(self) -> None:
        self.stop.set()
        self.thread.join()
        for connection in self.sockets.values():
            connection.close()


def probe(server: Server, seconds: float) -> list[float]:
    """Measures how long each answer of /health takes, each on a new connection [s]."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        assert server.get("/health", timeout=30).status == 200
        times.append(time.monotonic() - start)
        time.sleep(0.02)
    return sorted(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--step-ms", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--crowds", type=int, default=6, help="how often the streams are opened; /health is probed during the first time")
    parser.add_argument("--out", default="hold.json")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    os.environ["PENSTOCK_TEST_STEP_MS"] = str(args.step_ms)
    os.sched_setaffinity(0, {0, 1})  # the server and this client share two cores
    config = {"SERVER__DEFAULT_MODELS": MODEL, "SERVER__WORKERS": "2", "SERVER__LOG": "error", "LIMITS__MAX_QUEUE": "20000"}
    config |= {"ENGINE__CONTEXT": "4096", "ENGINE__KV_TOKENS": str(1 << 23)}
    with Server(config) as server:
        # Warm-up: memory that the first requests allocate is kept.
        warm = Streams(server.port, 50)
        wait_until(lambda: len(warm.started) == 50, 30, "the first streams start")
        warm.close()
        wait_until(lambda: server.gauge("num_requests_running") == 0, 30, "the server is idle")
        time.sleep(3)
        before, quiet = memory(server), probe(server, 3)
        start = time.monotonic()
        streams = Streams(server.port, args.streams)
        wait_until(
            lambda: len(streams.started) == args.streams, 300, f"all streams have begun: {len(streams.started)}, {streams.ended} ended"
        )
        opened = time.monotonic() - start
        cpu, events, start = cpu_seconds(server.process.pid), streams.num_events, time.monotonic()
        times = probe(server, args.seconds)
        held = time.monotonic() - start
        cpu, events, used = cpu_seconds(server.process.pid) - cpu, streams.num_events - events, memory(server)
        running, ended = server.gauge("num_requests_running"), streams.ended
        streams.close()
        released = wait_until(lambda: server.gauge("num_requests_running") == 0, 60, "all streams have ended")
        time.sleep(5)
        after = [memory(server)]
        # The memory that a crowd leaves varies, because the allocator keeps pages. It must not grow with further crowds.
        for _ in range(args.crowds - 1):
            again = Streams(server.port, args.streams)
            wait_until(lambda: len(again.started) == args.streams, 300, "all streams have started again")
            again.close()
            wait_until(lambda: server.gauge("num_requests_running") == 0, 60, "all streams have ended again")
            time.sleep(5)
            after.append(memory(server))
    at = lambda share: round(times[min(len(times) - 1, int(share * len(times)))] * 1000, 1)
    report = {
        "streams": args.streams,
        "running": running,
        "ended_early": ended,
        "opened_in_seconds": round(opened, 1),
        "kib_per_stream": round((used - before) / args.streams / 1024, 1),
        "mib_before_and_during": [round(value / (1 << 20)) for value in (before, used)],
        "mib_after_each_crowd": [round(value / (1 << 20)) for value in after],
        "tokens_per_second": round(events / held),
        "server_cores": round(cpu / held, 2),
        "us_per_token": round(cpu / max(1, events) * 1e6, 1),
        "health_ms": {
            "probes": len(times),
            "median": at(0.5),
            "p99": at(0.99),
            "slowest": at(1),
            "slowest_without_load": round(quiet[-1] * 1000, 1),
        },
        "released_in_seconds": round(released, 1),
        "checks": {
            "all streams run": running == args.streams and ended == 0,
            "health answers": times[-1] <= MAX_PROBE,
            "later crowds leave no more": max(after[2:], default=0) - max(after[:2]) <= MAX_LEFT,
        },
    }
    Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    return 0 if all(report["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
