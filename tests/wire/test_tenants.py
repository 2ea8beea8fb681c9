"""Tenants share storage, batches and background responses: however much one tenant keeps or queues, the others find room and get their
turn."""

import time

import pytest
from harness import MODEL, Server, cli, wait_until
from keep import batch_of, chat_line, ended, jsonl, make_batch, results, upload, wait_for

CONFIG = {"SERVER__DEFAULT_MODELS": MODEL, "SERVER__ON_DEMAND": "false", "ENGINE__KV_TOKENS": "8192"}
BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.fixture
def tenants(tmp_path):
    """Returns a function that creates a server with further storage settings, and the keys of Ann and Bob."""
    env = {"AUTH__KEYS_FILE": str(tmp_path / "keys.toml"), "STORAGE__FOLDER": str(tmp_path / "store")}
    keys = [{"authorization": "Bearer " + cli("keys", "add", name, env=env).stdout.strip()} for name in ("ann", "bob")]
    return lambda **settings: (Server(CONFIG | env | {f"STORAGE__{name}": str(value) for name, value in settings.items()}), *keys)


def until_refused(attempt, most: int):
    """Repeats an attempt until it is refused. Returns the ids of the successes, and the refusal."""
    done = []
    while (reply := attempt()).status == 200:
        done.append(reply.json()["id"])
        assert len(done) <= most
    return done, reply


def test_a_tenant_with_many_files_leaves_places_for_others(tenants):
    server, ann, bob = tenants(MAX_FILES=8)
    with server:
        kept, refused = until_refused(lambda: upload(server, b"x", headers=ann), 8)
        assert len(kept) == 4 and refused.status == 400 and refused.error["code"] == "storage_limit_exceeded"
        assert refused.error["message"].startswith("you have 4 files, and 4 places are left for others (storage.max_files)")
        others, _ = until_refused(lambda: upload(server, b"x", headers=bob), 8)
        assert len(others) == 2
        for id in kept[:2]:
            assert server.request("DELETE", f"/v1/files/{id}", headers=ann).status == 200
        assert upload(server, b"x", headers=bob).status == 200, "freed files make room for others"


def test_a_tenant_with_large_files_leaves_bytes_for_others(tenants):
    server, ann, bob = tenants(MAX_BYTES=8 << 20, MAX_FILE_BYTES=8 << 20)
    with server:
        too_large = upload(server, b"x" * (5 << 20), headers=ann)
        assert too_large.status == 400 and "storage.max_bytes" in too_large.error["message"], too_large.body
        kept, refused = until_refused(lambda: upload(server, b"x" * (1 << 20), headers=ann), 8)
        assert len(kept) == 4 and "left for others (storage.max_bytes)" in refused.error["message"]
        assert upload(server, b"x" * (2 << 20), headers=bob).status == 200


def test_a_tenant_with_many_batches_leaves_places_for_others(tenants):
    server, ann, bob = tenants(MAX_BATCHES=4, BATCH_CONCURRENCY=0)
    with server:

        def make(headers):
            file = upload(server, jsonl([chat_line(0)]), headers=headers).json()["id"]
            return server.post("/v1/batches", BATCH | {"input_file_id": file}, headers=headers)

        made, refused = until_refused(lambda: make(ann), 4)
        assert len(made) == 2 and refused.status == 429 and refused.error["code"] == "rate_limit_exceeded"
        words = "2 of your batches are unfinished, and 2 places are left for others (storage.max_batches)"
        assert refused.error["message"].startswith(words)
        assert make(bob).status == 200
        for id in made:
            server.request("POST", f"/v1/batches/{id}/cancel", headers=ann)
            assert ended(server, id, 20, headers=ann)["status"] == "cancelled"
        assert make(bob).status == 200 and make(ann).status == 200
    # After a restart, the batches still count.
    with server:
        assert make(ann).status == 429


@pytest.mark.parametrize("places", [1, 2])
def test_lines_of_a_tenant_do_not_wait_behind_all_lines_of_another(tenants, places):
    """Ann's lines fill every place, and more of them wait. Bob's lines alternate with them, or use the place that is reserved for him."""
    server, ann, bob = tenants(BATCH_CONCURRENCY=places, MAX_BATCHES=20)
    with server:
        lines = [chat_line(number, max_tokens=500, ignore_eos=True) for number in range(30)]
        many = [make_batch(server, lines, headers=ann)["id"] for _ in range(5)]
        done = lambda: sum(batch_of(server, id, ann)["request_counts"]["completed"] for id in many)
        wait_until(lambda: done() >= 2, 60, "two of Ann's lines have run")
        few = make_batch(server, [chat_line(number, max_tokens=4) for number in range(4)], headers=bob)["id"]
        wait_for(server, few, lambda batch: batch["status"] != "validating", headers=bob)
        before = done()
        assert ended(server, few, 60, headers=bob)["request_counts"]["completed"] == 4
        # With one place, each of Bob's four lines waits for one of Ann's. Some may end while the counts are read.
        assert done() - before <= 4 * 2 + 4, "Bob does not wait behind all of Ann's lines"
        assert not any(batch_of(server, id, ann)["status"] == "completed" for id in many)
        for id in many:
            server.request("POST", f"/v1/batches/{id}/cancel", headers=ann)


def test_results_wait_until_their_tenant_has_room(tenants):
    """Results count against the tenant's share, since they would otherwise fill the folder. Nothing is lost while a batch waits."""
    server, ann, bob = tenants(MAX_BYTES=100_000)
    lines = [chat_line(number) for number in range(30)]
    with server:
        content = jsonl(lines)
        file = upload(server, content + b" " * (20_000 - len(content) - 1) + b"\n", headers=ann).json()["id"]
        id = server.post("/v1/batches", BATCH | {"input_file_id": file}, headers=ann).json()["id"]
        wait_until(lambda: "results cannot be written" in server.output(), 90, "Ann's share is full")
        time.sleep(2.5)
        held = batch_of(server, id, ann)
        assert held["status"] == "in_progress" and 5 < held["request_counts"]["completed"] < 30, held
        server.wait_log("storage.max_bytes")
        assert upload(server, b"x" * 10_000, headers=bob).status == 200, "others have room"
        assert ended(server, make_batch(server, [chat_line(0)], headers=bob)["id"], headers=bob)["status"] == "completed", "batches too"
        server.request("DELETE", f"/v1/files/{file}", headers=ann)
        batch = ended(server, id, headers=ann)
        assert batch["status"] == "completed" and batch["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
        assert len({line["custom_id"] for line in results(server, batch["output_file_id"], headers=ann)}) == 30


def test_responses_in_the_background_leave_places_for_others(tenants):
    server, ann, bob = tenants(MAX_BACKGROUND=4)
    body = {"model": MODEL, "input": "Write a long story.", "background": True, "max_output_tokens": 2000, "ignore_eos": True}
    with server:
        begun, refused = until_refused(lambda: server.post("/v1/responses", body, headers=ann), 4)
        assert len(begun) == 2 and refused.status == 429 and "left for others" in refused.error["message"]
        other = server.post("/v1/responses", body, headers=bob)
        assert other.status == 200
        for id, headers in [*((id, ann) for id in begun), (other.json()["id"], bob)]:
            server.request("POST", f"/v1/responses/{id}/cancel", headers=headers)


def test_new_objects_of_a_tenant_displace_its_own(tenants):
    server, ann, bob = tenants(MAX_STORED_CHATS=4, MAX_CONVERSATIONS=4)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "store": True}
    with server:
        stored = server.post("/v1/chat/completions", chat, headers=bob).json()["id"]
        conversation = server.post("/v1/conversations", {}, headers=bob).json()["id"]
        for _ in range(8):
            assert server.post("/v1/chat/completions", chat, headers=ann).status == 200
            assert server.post("/v1/conversations", {}, headers=ann).status == 200
        assert server.get(f"/v1/chat/completions/{stored}", headers=bob).status == 200
        assert server.get(f"/v1/conversations/{conversation}", headers=bob).status == 200
        assert len(server.get("/v1/chat/completions", headers=ann).json()["data"]) == 3
