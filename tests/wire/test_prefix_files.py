"""Prompts that are kept on disk (`cache.disk`): after a restart and after `kill -9`, the same texts with the same bits, in less time."""

from __future__ import annotations

import os
import random
import statistics
import time
from pathlib import Path

import pytest
from harness import CODER, MODEL, ROOT, Server, cli, wait_until

TEXT = (ROOT / "ARCHITECTURE.md").read_text()
# Random kills. `PENSTOCK_KILLS=1000` runs as many as docs/prefix-cache.md tells of.
KILLS = int(os.environ.get("PENSTOCK_KILLS", "6"))
# Conversations over a cache that holds a tenth of them. `PENSTOCK_CONVERSATIONS=200` measures what docs/performance.md tells of.
CONVERSATIONS = int(os.environ.get("PENSTOCK_CONVERSATIONS", "0"))
CPU = {"ENGINE__BACKEND": "cpu", "ENGINE__CONTEXT": "4096"}


def served(folder: Path, model: str = MODEL, disk: str = "2GiB", step: str | None = None, **config) -> Server:
    """A server with files. `step`: the time per step of an engine that computes nothing [ms]."""
    config = CPU | {"SERVER__DEFAULT_MODELS": model, "CACHE__DISK": disk, "CACHE__FOLDER": str(folder)} | config
    return Server(config, env={"PENSTOCK_TEST_STEP_MS": step} if step else {})


def answer(server: Server, prompt: str, **fields) -> tuple:
    """The text of an answer with its log-probabilities, and the number of cached tokens."""
    reply = server.complete(prompt, **{"max_tokens": 8, "logprobs": 2, **fields})
    assert reply.status == 200, reply.body
    choice, usage = reply.json()["choices"][0], reply.json()["usage"]
    logprobs = (choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"])
    return (choice["text"], logprobs), usage["prompt_tokens_details"]["cached_tokens"]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("??/*") if not path.name.endswith(".partial")]


def number(server: Server, name: str) -> float:
    return server.metrics()[(f"penstock_cache_disk_{name}", ())]


@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8"])
def test_a_prompt_is_kept_over_a_restart(tmp_path, cache_type):
    config = {"ENGINE__CACHE_TYPE": cache_type}
    with served(tmp_path, disk="off", **config) as server:
        expected, cached = answer(server, TEXT[:4000])
        assert cached == 0
    with served(tmp_path, **config) as server:
        assert answer(server, TEXT[:4000]) == (expected, 0)
    kept = files(tmp_path)
    assert kept and all(path.stat().st_mode & 0o777 == 0o600 for path in [*kept, tmp_path / "secret"])
    with served(tmp_path, **config) as server:
        got, cached = answer(server, TEXT[:4000])
        assert got == expected and cached >= 32 * (len(kept) - 1) > 500
        assert server.gauge("prefix_cache_disk_hits_total") == cached and number(server, "files") >= len(kept)
        assert answer(server, TEXT[100:4000])[1] == 0, "another prompt"
    other = {"f32": "f16", "f16": "q8", "q8": "f32"}[cache_type]
    with served(tmp_path, ENGINE__CACHE_TYPE=other) as server:
        assert answer(server, TEXT[:4000])[1] == 0, "another type of cache"


@pytest.mark.features("test-engine")
def test_tenants_and_users_have_files_of_their_own(tmp_path):
    """With 500 ms per step: a prompt waits no longer for its files than computing it takes, and a small model takes little."""
    keys = tmp_path / "keys.toml"
    secrets = [cli("keys", "add", name, env={"AUTH__KEYS_FILE": str(keys)}).stdout.split()[-1] for name in ("one", "two")]
    folder, prompt = tmp_path / "kept", TEXT[:1500]

    def cached(server: Server, secret: str, **fields) -> int:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
        reply = server.post("/v1/completions", body, headers={"authorization": f"Bearer {secret}"})
        assert reply.status == 200, reply.body
        return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    with served(folder, step="500", AUTH__KEYS_FILE=str(keys)) as server:
        assert [cached(server, secrets[0]), cached(server, secrets[0], user="u")] == [0, 0]
    with served(folder, step="500", AUTH__KEYS_FILE=str(keys)) as server:
        assert cached(server, secrets[1]) == 0, "another tenant"
        assert cached(server, secrets[0], user="v") == 0, "another user"
        assert cached(server, secrets[0]) > 200 and cached(server, secrets[0], user="u") > 200


def test_damaged_files_are_computed_again(tmp_path):
    with served(tmp_path) as server:
        expected, _ = answer(server, TEXT[:3000])
    kept = sorted(files(tmp_path))
    for number_of, path in enumerate(kept):
        data = bytearray(path.read_bytes())
        match number_of % 4:
            case 0:
                path.write_bytes(data[: len(data) // 2])
            case 1:
                data[len(data) // 2] ^= 1
                path.write_bytes(data)
            case 2:
                path.write_bytes(kept[number_of - 2].read_bytes())
            case 3:
                path.unlink()
    (tmp_path / kept[0].parent.name / "notes.txt").write_text("mine")
    with served(tmp_path) as server:
        assert answer(server, TEXT[:3000])[0] == expected
        assert number(server, "refused_total") <= 1, "what is behind a damaged file is not read"
    with served(tmp_path) as server:
        assert answer(server, TEXT[:3000])[0] == expected
        assert answer(server, TEXT[:3000])[1] > 500
    assert (tmp_path / kept[0].parent.name / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_used_costs_nothing_but_the_cache(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with served(tmp_path / "file" / "below") as server:
        first = answer(server, TEXT[:1500])
        assert first[1] == 0 and answer(server, TEXT[:1500])[0] == first[0]
        log = Path(server.log.name).read_text()
        assert log.count("prompts are not kept in") == 1, log


def test_settings_that_contradict_each_other_are_named(tmp_path):
    for config, words in (
        ({"CACHE__DISK": "20GiB", "ENGINE__PREFIX_CACHE": "false"}, ["`cache.disk`", "engine.prefix_cache is false"]),
        ({"CACHE__DISK": "20GB"}, ["`cache.disk`", "`20GB` is no size", "20GiB"]),
        ({"CACHE__DISK": "1MiB"}, ["`cache.disk`", "not between 64MiB"]),
        ({"CACHE__HOST": "8GiB"}, ["cache.host", "disk, folder"]),
    ):
        done = cli("serve", "--port", "0", env={"SERVER__DEFAULT_MODELS": MODEL, **config})
        assert done.returncode != 0 and all(word in done.stderr for word in words), done.stderr


def test_the_least_recently_used_leave_first(tmp_path):
    # files of another model, almost as large as the folder may be
    for n in range(63):
        path = tmp_path / f"{n:02x}" / f"{n:02x}{n:062x}.0"
        path.parent.mkdir()
        path.touch()
        os.truncate(path, 1 << 20)
        os.utime(path, (time.time() - 3600 + n,) * 2)
    with served(tmp_path, disk="64MiB") as server:
        assert number(server, "bytes") == 63 << 20
        prompts = [f"{part} " + TEXT[:9000] for part in range(3)]
        for prompt in prompts:
            answer(server, prompt, max_tokens=1)
        wait_until(lambda: number(server, "evictions_total") > 0, 20, "files leave")
    left = files(tmp_path)
    assert sum(path.stat().st_size for path in left) <= 64 << 20
    assert not (tmp_path / "00" / f"{0:064x}.0").exists() and (tmp_path / "3e" / f"3e{62:062x}.0").exists()
    with served(tmp_path, disk="64MiB") as server:
        assert answer(server, prompts[2], max_tokens=1)[1] > 1000


def test_a_killed_server_leaves_nothing_wrong(tmp_path):
    """`kill -9` at random moments: what the next server finds gives the same bits as computing."""
    rng = random.Random(7)
    prompts = [f"{n} " + TEXT[n * 97 :][: 600 + 150 * (n % 9)] for n in range(40)]
    with served(tmp_path / "none", disk="off") as server:
        expected = [answer(server, prompt)[0] for prompt in prompts]
    cached = 0
    for _ in range(KILLS):
        server = served(tmp_path / "kept", disk="64MiB").__enter__()
        end = time.monotonic() + rng.uniform(0.05, 0.6)
        while time.monotonic() < end:
            n = rng.randrange(len(prompts))
            got, hit = answer(server, prompts[n])
            assert got == expected[n], prompts[n]
            cached += hit
        server.process.kill()
        server.process.wait()
    with served(tmp_path / "kept", disk="64MiB") as server:
        found = [answer(server, prompt) for prompt in prompts]
        assert [got for got, _ in found] == expected
    print(f"{KILLS} kills, {cached} cached tokens, {sum(hit for _, hit in found)} at the end")
    assert cached + sum(hit for _, hit in found) > 0


# How many come from disk depends on the disk against the engine, and so on what else the machine does.
@pytest.mark.skipif(not CONVERSATIONS, reason="a measurement")
@pytest.mark.timing
@pytest.mark.features("test-engine")
def test_conversations_in_turns_come_from_disk(tmp_path):
    """Conversations of 4,000 tokens on an engine that computes nothing, in 250 ms per step."""
    rng = random.Random(1)
    prompts = [[rng.randrange(1000, 30000) for _ in range(4000)] for _ in range(CONVERSATIONS)]
    sizes = {"ENGINE__CONTEXT": "8192", "ENGINE__MAX_BATCH_TOKENS": "8192", "ENGINE__KV_TOKENS": str(max(8192, CONVERSATIONS * 410))}
    usage = []
    with served(tmp_path, step="250", **sizes) as server:
        for _ in range(3):
            for prompt in prompts:
                reply = server.complete(prompt, max_tokens=1)
                assert reply.status == 200, reply.body
                usage.append(reply.json()["usage"])
                prompt.extend(rng.randrange(1000, 30000) for _ in range(30))
    later = usage[CONVERSATIONS:]
    cached = sum(used["prompt_tokens_details"]["cached_tokens"] for used in later)
    assert cached >= 0.95 * sum(used["prompt_tokens"] for used in later), cached


@pytest.mark.timing
@pytest.mark.real_models
def test_a_prompt_from_disk_is_faster_than_computing_it(tmp_path):
    def first_token(server: Server) -> float:
        start = time.monotonic()
        assert server.complete(TEXT[:8600], model=CODER, max_tokens=1).status == 200
        return time.monotonic() - start

    with served(tmp_path, CODER) as server:
        computed = first_token(server)
    again = []
    for _ in range(3):
        with served(tmp_path, CODER) as server:
            again.append(first_token(server))
    assert statistics.median(again) <= 0.15 * computed, (computed, again)
