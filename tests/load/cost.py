"""Measures what the gateway itself costs: processor time per request and per streamed token, with an engine that answers at once, compared
with a server that is only actix-web. Times are the process's user and system time, so a busy machine and a slow client change little.

    cargo build --release --features test-engine && cp target/release/penstock target/release/penstock-paced && cargo build --release
    cargo build --release --manifest-path tests/load/bare/Cargo.toml --target-dir target/bare
    PENSTOCK_TEST_STEP_MS=0 PENSTOCK_BINARY=target/release/penstock-paced .venv/bin/python tests/load/cost.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import MODEL, ROOT, Server, free_port  # noqa: E402

MAX_REQUEST, MAX_TOKEN = 100e-6, 5e-6  # seconds of one core


def cpu_seconds(pid: int) -> float:
    """The processor time of a process, including ended threads [s]. Linux measures it exactly and reports it in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def client(port: int, path: str, body: bytes, num_requests: int) -> None:
    """Sends requests one after another on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    for _ in range(num_requests):
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        head_lines = answer.lower().split(b"\r\n")
        length = next((int(line.split(b":")[1]) for line in head_lines if line.startswith(b"content-length:")), None)
        if length is None:
            # Chunks are not parsed: the bytes of the last chunk occur nowhere else in a stream.
            await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            await reader.readexactly(length)
    writer.close()


def measure(target: tuple[int, int], num_clients: int, num_requests: int, **fields) -> float:
    """Measures the processor time per request of the server with this port and process [s]."""
    port, pid = target
    body = {"model": MODEL, "max_tokens": 1, "temperature": 0, **fields}
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    body = json.dumps(body).encode()

    async def crowd(each: int) -> None:
        await asyncio.gather(*(client(port, path, body, each) for _ in range(num_clients)))

    asyncio.run(crowd(max(1, num_requests // num_clients // 10)))  # warm-up
    each = max(1, num_requests // num_clients)
    before = cpu_seconds(pid)
    asyncio.run(crowd(each))
    return (cpu_seconds(pid) - before) / (each * num_clients)


def figures(target: tuple[int, int], args: argparse.Namespace, chat: bool) -> dict:
    found, prompt = {"clients": {}}, "Once upon a time"
    for num_clients in args.clients:
        request = measure(target, num_clients, args.requests, prompt=prompt)
        short = measure(target, num_clients, args.requests // 4, prompt=prompt, stream=True)
        long = measure(target, num_clients, args.requests // 40, prompt=prompt, stream=True, max_tokens=args.tokens)
        row = {"us_per_request": round(request * 1e6, 1), "us_per_token": round((long - short) / (args.tokens - 1) * 1e6, 2)}
        if chat:
            row["us_per_chat"] = round(measure(target, num_clients, args.requests, messages=[{"role": "user", "content": prompt}]) * 1e6, 1)
        found["clients"][num_clients] = row
        print(num_clients, row, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--bare", default=str(ROOT / "target" / "bare" / "release" / "bare"))
    parser.add_argument("--out", default="cost.json")
    args = parser.parse_args()
    os.sched_setaffinity(0, {1})
    report = {}
    config = {
        "SERVER__DEFAULT_MODELS": MODEL,
        "SERVER__WORKERS": "1",
        "LOG": "off",
        "ENGINE__CONTEXT": "4096",
        "ENGINE__KV_TOKENS": "262144",
    }
    config["SERVER__LOG"] = config.pop("LOG")
    with Server(config) as server:
        subprocess.run(["taskset", "-a", "-p", "-c", "0", str(server.process.pid)], check=True, stdout=subprocess.DEVNULL)
        print("penstock")
        report["penstock"] = figures((server.port, server.process.pid), args, True)
    if Path(args.bare).exists():
        port = free_port()
        bare = subprocess.Popen(["taskset", "-c", "0", args.bare, str(port)])
        time.sleep(0.5)
        try:
            print("actix-web alone")
            report["bare"] = figures((port, bare.pid), args, False)
        finally:
            bare.kill()
    best = report["penstock"]["clients"].values()
    report["checks"] = {
        "per request": min(max(found["us_per_request"], found["us_per_chat"]) for found in best) <= MAX_REQUEST * 1e6,
        "per token": min(found["us_per_token"] for found in best) <= MAX_TOKEN * 1e6,
    }
    Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["checks"]))
    return 0 if all(report["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
