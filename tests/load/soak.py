"""Soak test: random clients use the real model for a long time, and a tenth of them crash. Every `--rest` seconds the load pauses. At rest,
nothing may be left of earlier requests: no block, no sequence slot, no descriptor, no thread, no memory.

    .venv/bin/python tests/load/soak.py --minutes 60 --out soak.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import MODEL, Server, wait_until  # noqa: E402
from workload import Job, ask, random_job  # noqa: E402

# Bounds for a pass. The first third of a run is warm-up, during which caches and the allocator's pools fill.
MAX_GROWTH = 100 << 20  # bytes of anonymous memory from the end of the warm-up to the last rest
MAX_DRIFT = 16 << 20  # bytes between the means of the middle third and of the last third
MAX_THREADS = 4  # threads that the pools for blocking work may add after the warm-up
BAD = [
    {"model": MODEL, "prompt": "x", "max_tokens": -2},
    {"model": MODEL, "prompt": "x", "temperature": "hot"},
    {"model": "no-such-model", "prompt": "x"},
    {"model": MODEL, "prompt": "x", "logit_bias": {"abc": 1}},
    {"model": MODEL, "prompt": [[[[1]]] * 50]},
]


class Soak:
    def __init__(self, server: Server, args: argparse.Namespace):
        self.server, self.args, self.counts, self.faults = server, args, Counter(), []
        self.rests: list[dict] = []

    async def client(self, number: int, end: float) -> None:
        rng = random.Random(self.args.seed * 1000 + number * 7 + len(self.rests) * 100_003)
        while time.monotonic() < end:
            kind = rng.choices(["crash", "bad", "good"], [self.args.crash, 0.05, 0.95 - self.args.crash])[0]
            job = random_job(rng, MODEL)
            if kind == "bad":
                job = Job("/v1/completions", rng.choice(BAD))
            try:
                leave_after = rng.random() * 1.5 if kind == "crash" else None
                answer = await asyncio.wait_for(ask(self.server.port, job, rng.random() < 0.6, leave_after, rng), 300)
            except (OSError, TimeoutError) as error:
                self.counts["failed"] += 1
                self.faults.append(f"{kind}: {error!r}")
                continue
            self.counts[kind] += 1
            if answer is None:
                continue
            self.counts[f"status {answer.status}"] += 1
            expected = {"good": {200, 429}, "bad": {400, 404}}[kind]
            if answer.status not in expected or not answer.whole:
                self.faults.append(f"{kind}: status {answer.status}, whole: {answer.whole}, {job.path} {json.dumps(job.body)[:300]}")

    def rest(self, start: float) -> None:
        """Waits until nothing runs, and records what the process then holds."""
        server = self.server
        idle = lambda: all(server.gauge(name) == 0 for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"))
        wait_until(idle, 30, "the gauges are at rest")
        time.sleep(2)  # the allocator returns freed memory, and closed connections end
        found = {name[0]: value for name, value in server.metrics().items()}
        rest = {"seconds": round(time.monotonic() - start), "requests": sum(self.counts[kind] for kind in ("good", "bad", "crash"))}
        for name in ("process_anonymous_memory_bytes", "process_open_fds", "process_threads", "penstock_http_body_bytes"):
            rest[name] = int(found[name])
        rest["text"] = server.text("Once upon a time", max_tokens=12)
        self.rests.append(rest)
        print(json.dumps(rest), flush=True)

    def run(self) -> dict:
        start = time.monotonic()
        end = start + self.args.minutes * 60
        self.rest(start)
        while time.monotonic() < end:
            until = min(end, time.monotonic() + self.args.rest)

            async def crowd():
                await asyncio.gather(*(self.client(number, until) for number in range(self.args.clients)))

            asyncio.run(crowd())
            self.rest(start)
        return self.report(time.monotonic() - start)

    def report(self, seconds: float) -> dict:
        rests = self.rests
        third = max(1, len(rests) // 3)
        warm, middle, last = rests[third], rests[third : 2 * third] or rests[-1:], rests[-third:]
        memory = lambda some: sum(rest["process_anonymous_memory_bytes"] for rest in some) / len(some)
        growth = rests[-1]["process_anonymous_memory_bytes"] - warm["process_anonymous_memory_bytes"]
        checks = {
            "no answer was wrong": not self.faults,
            "the greedy text stays": len({rest["text"] for rest in rests}) == 1,
            "descriptors go back": rests[-1]["process_open_fds"] <= warm["process_open_fds"] + 2,
            "threads stay": rests[-1]["process_threads"] <= max(rest["process_threads"] for rest in rests[: third + 1]) + MAX_THREADS,
            "bodies are freed": all(rest["penstock_http_body_bytes"] == 0 for rest in rests),
            "memory grows within its bound": growth <= MAX_GROWTH,
            "memory does not drift": memory(last) - memory(middle) <= MAX_DRIFT,
        }
        return {
            "minutes": round(seconds / 60, 1),
            "clients": self.args.clients,
            "seed": self.args.seed,
            "counts": dict(sorted(self.counts.items())),
            "memory_after_warm_up": warm["process_anonymous_memory_bytes"],
            "memory_growth": growth,
            "memory_drift": round(memory(last) - memory(middle)),
            "faults": self.faults[:20],
            "checks": checks,
            "rests": rests,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rest", type=float, default=60, help="time between two rests [s]")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--crash", type=float, default=0.1, help="share of clients that crash")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="soak.json")
    args = parser.parse_args()
    # A small cache that fills during the warm-up, because its pages count from their first use.
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "2048", "ENGINE__KV_TOKENS": "4096"}) as server:
        soak = Soak(server, args)
        report = soak.run()
        server.stop()
        # The requests that the server still counted as running when it was told to stop: tasks that never ended.
        active = re.search(r"active=(\d+)", Path(server.log.name).read_text(errors="replace").rpartition("shutting down")[2])
        report["checks"]["no request is left at the end"] = bool(active) and active[1] == "0"
    report["verdict"] = "pass" if all(report["checks"].values()) else "fail"
    Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: value for key, value in report.items() if key != "rests"}, indent=1))
    return 0 if report["verdict"] == "pass" else 1


if __name__ == "__main__":
    sys.exit(main())
