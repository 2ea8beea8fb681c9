"""Sends random valid requests, first alone and then overlapping. The greedy texts must be the same. Prompts, lengths, choices, stop
strings, penalties, grammars and streaming vary.

    .venv/bin/python tests/load/overlap.py --requests 512
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import MODEL, Server  # noqa: E402
from workload import Job, ask, random_job  # noqa: E402


async def texts(port: int, job: Job, stream: bool) -> list[str] | str:
    """The text of each choice, or a description of what went wrong."""
    for _ in range(200):
        answer = await ask(port, job, stream)
        if answer.status != 429:
            break
        await asyncio.sleep(0.5)
    return answer.texts(job.path) if answer.status == 200 and answer.whole else f"status {answer.status}: {answer.body[:200]!r}"


async def alone(port: int, jobs: list[Job]) -> list:
    return [await texts(port, job, False) for job in jobs]


async def together(port: int, jobs: list[Job], at_once: int, rng: random.Random) -> list:
    gate, found = asyncio.Semaphore(at_once), [None] * len(jobs)

    async def one(number: int, stream: bool) -> None:
        async with gate:
            found[number] = await texts(port, jobs[number], stream)

    order = list(range(len(jobs)))
    rng.shuffle(order)
    await asyncio.gather(*(one(number, rng.random() < 0.5) for number in order))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--at-once", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=200, help="length of the longest prompts [words]")
    parser.add_argument("--out", default="overlap.json")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    jobs = [random_job(rng, MODEL, args.prompt) for _ in range(args.requests)]
    # The cache holds only some of the requests at once.
    config = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "2048", "ENGINE__KV_TOKENS": "3072"}
    with Server(config) as server:
        start = time.monotonic()
        first = asyncio.run(alone(server.port, jobs))
        middle = time.monotonic()
        second = asyncio.run(together(server.port, jobs, args.at_once, rng))
        end = time.monotonic()
        preempted = server.gauge("num_preemptions_total")
    # A refused request's text is its error. Every request here is valid, so an error is a failure even if it is the same both times.
    failed = [number for number, found in enumerate(first) if isinstance(found, str)]
    other = [number for number in range(len(jobs)) if first[number] != second[number]]
    report = {
        "requests": len(jobs),
        "choices": sum(len(found) for found in first if isinstance(found, list)),
        "seed": args.seed,
        "at_once": args.at_once,
        "seconds_alone": round(middle - start),
        "seconds_together": round(end - middle),
        "preemptions": preempted,
        "failed": [first[number] for number in failed][:5],
        "different": [{"request": jobs[number].body, "alone": first[number], "together": second[number]} for number in other][:5],
        "checks": {"every request is served": not failed, "texts are the same": not other},
    }
    Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    return 0 if all(report["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
