#!/usr/bin/env python3
"""Measures two models on one device: how long the small one waits for its first token under load of the large one, and their memory.

    tests/bench/two_models.py SMALL LARGE [--penstock target/release/penstock] [--requests 64] [--prompt 512] [--gen 32]
        [--large-requests 16] [--large-prompt 4096] [--large-gen 64] [--long 30000] [--idle 8] [--set ENGINE__KEY=VALUE]

SMALL and LARGE are model files or catalogue names. Prints one JSON object: first-token times (p50, p99) of the small model alone and
together with the large one, throughputs alone and together, and the caches' bytes after loading both, under load, after a long prompt and
after some seconds without requests. Prompts are token ids, so their lengths are exact.
"""

import argparse
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("small")
    p.add_argument("large")
    p.add_argument("--penstock", default="target/release/penstock")
    p.add_argument("--requests", type=int, default=64)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--gen", type=int, default=32)
    p.add_argument("--large-requests", type=int, default=16)
    p.add_argument("--large-prompt", type=int, default=4096)
    p.add_argument("--large-gen", type=int, default=64)
    p.add_argument("--long", type=int, default=0, help="tokens of one long prompt for the large model (0 means none)")
    p.add_argument("--idle", type=float, default=8, help="seconds without requests before the memory is read for the last time")
    p.add_argument("--vocab", type=int, default=30000)
    p.add_argument("--set", action="append", default=[], help="a setting, such as ENGINE__CONTEXT=8192")
    return p.parse_args()


class Server:
    def __init__(self, args):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        env = dict(os.environ)
        settings = {"LIMITS__MAX_QUEUE": "4096", "ENGINE__CACHE_IDLE_SECONDS": str(max(1, int(args.idle) - 2))}
        settings.update(item.split("=", 1) for item in args.set)
        env.update({f"PENSTOCK__{key}": value for key, value in settings.items()})
        command = [args.penstock, "serve", "--port", str(self.port), "--model", args.small, "--model", args.large]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)

    def request(self, method, path, body=None, timeout=600):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request(method, path, body=json.dumps(body) if body else None, headers={"Content-Type": "application/json"})
        return connection.getresponse()

    def wait(self):
        for _ in range(1200):
            try:
                if self.request("GET", "/ready", timeout=5).status == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                sys.exit("the server has ended")
            time.sleep(0.5)
        sys.exit("the server is not ready")

    def models(self):
        return [model["id"] for model in json.loads(self.request("GET", "/v1/models").read())["data"]]

    def memory(self):
        """The memory per model and kind, and the server's own memory on the host [GB]."""
        text = self.request("GET", "/metrics").read().decode()
        found = {}
        for name in ("kv_cache_bytes", "device_memory_bytes"):
            for labels, value in re.findall(rf"^penstock_{name}{{(.*)}} (\S+)$", text, re.M):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                found.setdefault(labels["model_name"], {})[f"{name.split('_')[0]} {labels['kind']}"] = round(float(value) / 1e9, 3)
        names = "cache_growths_total|cache_give_backs_total|num_preemptions_total"
        counts = re.findall(rf'^penstock_({names}){{model_name="(.*)"}} (\S+)$', text, re.M)
        for name, model, value in counts:
            found.setdefault(model, {})[name] = int(float(value))
        anonymous = re.search(r"^process_anonymous_memory_bytes (\S+)$", text, re.M)
        found["host"] = round(float(anonymous.group(1)) / 1e9, 3) if anonymous else None
        return found


def one(server, model, prompt, gen, seed, vocab):
    """Measures the time to the first token and to the end of a request [s]."""
    rng = random.Random(seed)
    body = {"model": model, "prompt": [rng.randrange(1000, vocab) for _ in range(prompt)], "max_tokens": gen, "temperature": 0}
    start, first = time.perf_counter(), None
    reply = server.request("POST", "/v1/completions", {**body, "ignore_eos": True, "stream": True})
    assert reply.status == 200, (reply.status, reply.read()[:300])
    for line in reply:
        if first is None and line.startswith(b"data: {"):
            first = time.perf_counter() - start
        if line.startswith(b"data: [DONE]"):
            break
    return first, time.perf_counter() - start


def burst(server, model, count, prompt, gen, vocab, seed):
    """Sends all requests at once."""
    start = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        times = list(pool.map(lambda i: one(server, model, prompt, gen, seed * 10**6 + i, vocab), range(count)))
    took = time.perf_counter() - start
    firsts = sorted(first for first, _ in times)
    at = lambda share: round(firsts[min(len(firsts) - 1, int(len(firsts) * share))], 3)
    return {"ttft_p50": at(0.5), "ttft_p99": at(0.99), "tokens_per_s": round(count * gen / took, 1), "seconds": round(took, 2)}


def main():
    args = arguments()
    server, report = Server(args), {}
    try:
        server.wait()
        small, large = server.models()[:2]
        burst(server, small, 2, 16, 2, args.vocab, 1)
        burst(server, large, 2, 16, 2, args.vocab, 2)
        report["memory, both loaded"] = server.memory()
        report["small alone"] = burst(server, small, args.requests, args.prompt, args.gen, args.vocab, 3)
        report["large alone"] = burst(server, large, args.large_requests, args.large_prompt, args.large_gen, args.vocab, 4)
        stop, rounds = threading.Event(), []

        def keep_busy():
            seed = 100
            while not stop.is_set():
                seed += 1
                rounds.append(burst(server, large, args.large_requests, args.large_prompt, args.large_gen, args.vocab, seed))

        background = threading.Thread(target=keep_busy)
        background.start()
        time.sleep(min(2.0, report["large alone"]["seconds"] / 4))
        report["small beside large"] = burst(server, small, args.requests, args.prompt, args.gen, args.vocab, 5)
        report["memory, under load"] = server.memory()
        stop.set()
        background.join()
        report["large beside small"] = rounds[0]
        if args.long:
            report["long prompt"] = burst(server, large, 1, args.long, 4, args.vocab, 6)
            report["memory, after a long prompt"] = server.memory()
        time.sleep(args.idle)
        report["memory, after idling"] = server.memory()
        report["small again"] = burst(server, small, 4, args.prompt, 4, args.vocab, 7)
    finally:
        server.process.terminate()
        server.process.wait(60)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
