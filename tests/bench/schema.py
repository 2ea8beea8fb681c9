#!/usr/bin/env python3
"""Compares the decode speed with and without a schema: eight concurrent requests, the same number of tokens, alternating rounds.

    tests/bench/schema.py [MODEL…] [--batch 8] [--tokens 192] [--rounds 7] [--others 0.05] [--penstock target/release/penstock]

Each request streams. Its speed is measured over the tokens after the first, so that prompts and compilation do not count, and HTTP costs
both the same. The speed of a round is the sum over its requests. Prints the medians and the ratio of each round. The schemas need more text
than there are tokens, so both kinds of answers are cut at the same length. A round is repeated if other programs used a larger share of
the processor than `--others` during the round or just before it.
"""

import argparse
import http.client
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import harness  # noqa: E402

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "maximum": 150},
        "city": {"type": "string"},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["name", "age", "city", "kind"],
    "additionalProperties": False,
}
SCHEMAS = {
    "strings": {"type": "array", "items": {"type": "string"}, "minItems": 1000},
    "objects": {"type": "array", "items": PERSON, "minItems": 1000},
}


def speed(server, model, index, tokens, schema):
    """Measures the speed of one request after its first token [tokens/s]."""
    body = {"model": model, "messages": [{"role": "user", "content": f"Write a long list of people, as JSON. It is list {index}."}]}
    body |= {"max_tokens": tokens, "temperature": 1, "seed": index, "stream": True, "stream_options": {"include_usage": True}}
    if schema is None:
        body["ignore_eos"] = True
    else:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "list", "schema": schema}}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    reply, first, last, usage = connection.getresponse(), None, None, None
    assert reply.status == 200, reply.read()
    for line in reply:
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            usage = chunk.get("usage") or usage
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                last = time.perf_counter()
                first = first or last
    connection.close()
    assert usage["completion_tokens"] == tokens, usage
    return (tokens - 1) / (last - first)


def ticks(server):
    """The processor's total time, and the part used by programs other than the server and this one [ticks]."""
    numbers = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    ours = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in (server.process.pid, "self")]
    total = sum(numbers)
    return total, total - numbers[3] - numbers[4] - sum(int(fields[11]) + int(fields[12]) for fields in ours)


def one_round(server, model, a, schema):
    """Repeats a round until other programs used almost none of the processor during the round and just before it."""
    while True:
        before = ticks(server)
        time.sleep(0.3)
        begun = ticks(server)
        if (begun[1] - before[1]) / (begun[0] - before[0]) > a.others:
            continue
        with ThreadPoolExecutor(a.batch) as pool:
            total = sum(pool.map(lambda index: speed(server, model, index, a.tokens, schema), range(a.batch)))
        ended = ticks(server)
        if (ended[1] - begun[1]) / (ended[0] - begun[0]) <= a.others:
            return total


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*", default=["smollm2:135m", "qwen2.5-coder:0.5b"])
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--tokens", type=int, default=192)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--others", type=float, default=0.05)
    p.add_argument("--penstock", default=str(harness.BINARY))
    a = p.parse_args()
    for model in a.models:
        with harness.Server(
            {"SERVER__DEFAULT_MODELS": model, "ENGINE__KV_TOKENS": "8192", "ENGINE__CONTEXT": "1024"}, binary=Path(a.penstock)
        ) as server:
            for name, schema in SCHEMAS.items():
                for warm in (None, schema):
                    one_round(server, model, a, warm)
                free, bound = [], []
                for i in range(a.rounds):
                    for kind in (False, True) if i % 2 else (True, False):
                        (bound if kind else free).append(one_round(server, model, a, schema if kind else None))
                ratios = [b / f for b, f in zip(bound, free)]
                print(
                    f"{model}: {name}: {statistics.median(bound):.1f} tok/s with the schema, {statistics.median(free):.1f} without,"
                    f" ratio {statistics.median(ratios):.3f} (rounds {', '.join(f'{ratio:.3f}' for ratio in ratios)})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
