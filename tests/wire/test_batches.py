"""/v1/batches over HTTP: results, and the effect of wrong lines, kills, a full disk, cancellation and expiry on a batch."""

import json
import os
import signal
import subprocess
import time

import pytest
from harness import MODEL, Server, cli, wait_until
from keep import batch_of, chat_line, ended, jsonl, make_batch, results, upload, wait_for

CONFIG = {"SERVER__DEFAULT_MODELS": MODEL, "SERVER__ON_DEMAND": "false", "ENGINE__KV_TOKENS": "8192"}
# A batch that a test interrupts must not end first, however fast the engine is: every step takes at least this long [ms].
PACED = {"PENSTOCK_STEP_MILLIS": "10"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    with Server(CONFIG | {"STORAGE__FOLDER": str(folder), "STORAGE__MAX_BATCH_LINES": "200", "STORAGE__BATCH_CONCURRENCY": "4"}) as running:
        yield running


def text_of(line: dict) -> str:
    return line["response"]["body"]["choices"][0]["message"]["content"]


def test_every_line_is_answered_as_a_request_of_its_own_would_be(store):
    lines = [chat_line(number) for number in range(12)]
    made = make_batch(store, lines, metadata={"job": "seven"})
    assert made["object"] == "batch" and made["status"] == "validating" and made["metadata"] == {"job": "seven"}
    assert made["expires_at"] == made["created_at"] + 86400 and made["output_file_id"] is None
    batch = ended(store, made["id"])
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 12, "completed": 12, "failed": 0}
    assert batch["error_file_id"] is None and batch["errors"] is None
    assert made["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
    out = results(store, batch["output_file_id"])
    assert sorted(line["custom_id"] for line in out) == sorted(line["custom_id"] for line in lines)
    assert len({line["id"] for line in out}) == 12 and all(line["id"].startswith("batch_req_") for line in out)
    by_id = {line["custom_id"]: line for line in out}
    for line in lines[:3]:
        direct = store.post("/v1/chat/completions", line["body"]).json()
        got = by_id[line["custom_id"]]
        assert got["error"] is None and got["response"]["status_code"] == 200
        assert text_of(got) == direct["choices"][0]["message"]["content"]
    file = store.get(f"/v1/files/{batch['output_file_id']}").json()
    assert file["purpose"] == "batch_output" and file["expires_at"] > time.time() + 29 * 86400


@pytest.mark.parametrize(
    "endpoint, body, answer",
    [
        ("/v1/completions", {"prompt": "The capital of France is", "max_tokens": 4}, "text_completion"),
        ("/v1/embeddings", {"input": ["a", "b"]}, "list"),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 4}, "response"),
    ],
)
def test_a_batch_is_for_one_of_four_endpoints(store, endpoint, body, answer):
    line = {"custom_id": "only", "method": "POST", "url": endpoint, "body": {"model": MODEL, **body}}
    batch = ended(store, make_batch(store, [line], endpoint)["id"])
    assert batch["status"] == "completed", batch
    (out,) = results(store, batch["output_file_id"])
    assert out["response"]["body"]["object"] == answer


def test_one_bad_line_fails_the_batch_before_anything_runs(store):
    good = chat_line(1)
    rows = [
        (b"{not json", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (json.dumps(good | {"custom_id": "line-0"}).encode(), "duplicate_custom_id", "custom_id"),
        (json.dumps({key: good[key] for key in good if key != "custom_id"}).encode(), "missing_required_parameter", "custom_id"),
        (json.dumps(good | {"custom_id": ""}).encode(), "invalid_value", "custom_id"),
        (json.dumps(good | {"method": "GET"}).encode(), "invalid_method", "method"),
        (json.dumps(good | {"url": "/v1/embeddings"}).encode(), "invalid_url", "url"),
        (json.dumps(good | {"colour": 1}).encode(), "unknown_parameter", "colour"),
        (json.dumps(good | {"body": []}).encode(), "invalid_value", "body"),
        (json.dumps(good | {"body": good["body"] | {"temperature": 9}}).encode(), "invalid_value", "body.temperature"),
        (json.dumps(good | {"body": good["body"] | {"stream": True}}).encode(), "invalid_value", "body.stream"),
        (json.dumps(good | {"body": good["body"] | {"model": "gpt-9"}}).encode(), "model_not_found", "body.model"),
    ]
    for bad, code, param in rows:
        content = jsonl([chat_line(0)]) + b"\n" + bad + b"\n" + jsonl([chat_line(5)])
        file = upload(store, content).json()["id"]
        made = store.post("/v1/batches", {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}).json()
        batch = ended(store, made["id"])
        assert batch["status"] == "failed" and batch["failed_at"] and batch["output_file_id"] is None, (bad, batch)
        (error,) = batch["errors"]["data"]
        assert error["line"] == 3 and error["code"] == code and error["param"] == param and error["message"], (bad, error)


def test_a_file_that_is_no_batch_fails(store):
    for content, code in [(b"", "empty_file"), (b"\n \n", "empty_file"), (jsonl([chat_line(i) for i in range(201)]), "too_many_tasks")]:
        file = upload(store, content).json()["id"]
        made = store.post("/v1/batches", {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "1h"}).json()
        batch = ended(store, made["id"])
        assert batch["status"] == "failed" and [error["code"] for error in batch["errors"]["data"]] == [code]
    file = upload(store, b"x\n" * 150).json()["id"]
    made = store.post("/v1/batches", {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "1h"}).json()
    errors = ended(store, made["id"])["errors"]["data"]
    assert len(errors) == 101 and errors[-1]["code"] == "too_many_errors" and "50" in errors[-1]["message"]


def test_a_wrong_request_names_its_field(store):
    file = upload(store, jsonl([chat_line(0)])).json()["id"]
    other = upload(store, b"x", "user_data").json()["id"]
    good = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    rows = [
        ({"input_file_id": "file-nope"}, "input_file_id"),
        ({"input_file_id": other}, "input_file_id"),
        ({"input_file_id": "../../etc/passwd"}, "input_file_id"),
        ({"input_file_id": 7}, "input_file_id"),
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "99d"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"endpont": "red"}, "endpont"),
    ]
    for change, param in rows:
        reply = store.post("/v1/batches", good | change)
        assert reply.status == 400 and reply.error["param"] == param, (change, reply.body)
    for name in good:
        reply = store.post("/v1/batches", {key: value for key, value in good.items() if key != name})
        assert reply.status == 400 and reply.error["param"] == name
    assert store.get("/v1/batches/batch_nope").status == 404
    assert store.post("/v1/batches/batch_nope/cancel", {}).status == 404


def test_a_line_that_fails_when_it_runs_is_in_the_error_file(store):
    long = chat_line(1)
    long["body"]["messages"][0]["content"] = "word " * 9000
    batch = ended(store, make_batch(store, [chat_line(0), long, chat_line(2)])["id"])
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert {line["custom_id"] for line in results(store, batch["output_file_id"])} == {"line-0", "line-2"}
    (failed,) = results(store, batch["error_file_id"])
    assert failed["custom_id"] == "line-1" and failed["response"]["status_code"] == 400
    assert failed["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_batches_are_listed_and_the_input_may_go_while_one_runs(store):
    made = make_batch(store, [chat_line(number, max_tokens=20) for number in range(8)])
    assert store.request("DELETE", f"/v1/files/{made['input_file_id']}").status == 200
    assert ended(store, made["id"])["request_counts"]["completed"] == 8
    page = store.get("/v1/batches?limit=1").json()
    assert page["data"][0]["id"] == made["id"] and page["has_more"] and page["first_id"] == page["last_id"] == made["id"]
    assert store.get(f"/v1/batches?after={made['id']}&limit=100").json()["data"][0]["id"] != made["id"]


def slow(number: int, tokens: int = 400) -> dict:
    return chat_line(number, max_tokens=tokens, ignore_eos=True)


def test_a_cancelled_batch_keeps_what_it_has(store):
    lines = [chat_line(number) for number in range(4)] + [slow(number) for number in range(4, 200)]
    made = make_batch(store, lines)
    wait_for(store, made["id"], lambda batch: batch["request_counts"]["completed"] >= 4)
    reply = store.request("POST", f"/v1/batches/{made['id']}/cancel")
    assert reply.status == 200 and reply.json()["status"] in ("cancelling", "cancelled") and reply.json()["cancelling_at"]
    batch = ended(store, made["id"], 20)
    assert batch["status"] == "cancelled" and batch["cancelled_at"] and 4 <= batch["request_counts"]["completed"] < 200
    assert len(results(store, batch["output_file_id"])) == batch["request_counts"]["completed"]
    again = store.request("POST", f"/v1/batches/{made['id']}/cancel")
    assert again.status == 200 and again.json()["status"] == "cancelled"
    done = ended(store, make_batch(store, [chat_line(0)])["id"])
    refused = store.request("POST", f"/v1/batches/{done['id']}/cancel")
    assert refused.status == 400 and "completed" in refused.error["message"]


def test_an_expired_batch_lists_the_lines_that_did_not_run(store):
    lines = [chat_line(0), chat_line(1)] + [slow(number, 1500) for number in range(2, 200)]
    batch = ended(store, make_batch(store, lines, window="6s")["id"], 40)
    assert batch["status"] == "expired" and batch["expired_at"] >= batch["expires_at"] == batch["created_at"] + 6
    out, errors = results(store, batch["output_file_id"]), results(store, batch["error_file_id"])
    assert {line["custom_id"] for line in out + errors} == {line["custom_id"] for line in lines} and len(out) + len(errors) == 200
    assert all(line["error"]["code"] == "batch_expired" and line["response"] is None for line in errors) and len(out) >= 2


def test_other_requests_run_before_the_lines_of_a_batch(store):
    made = make_batch(store, [slow(number) for number in range(200)])
    wait_for(store, made["id"], lambda batch: batch["status"] == "in_progress")
    time.sleep(1)
    start = time.monotonic()
    assert store.chat("Say hello.").status == 200
    assert time.monotonic() - start < 10
    store.request("POST", f"/v1/batches/{made['id']}/cancel")
    ended(store, made["id"], 20)


def files_of(folder, id: str) -> dict[str, bytes]:
    return {name: (folder / "batches" / id / name).read_bytes() for name in os.listdir(folder / "batches" / id)}


def kill(server: Server) -> None:
    server.process.kill()
    server.process.wait()
    server.process.returncode = 0


@pytest.mark.features("faults")
def test_a_killed_batch_resumes_without_repeating_or_losing_a_line(tmp_path):
    """The server is killed four times in the middle. Written results stay byte for byte, and a partly written line is run again."""
    config = CONFIG | {"STORAGE__FOLDER": str(tmp_path), "STORAGE__BATCH_CONCURRENCY": "4"}
    lines = [chat_line(number, max_tokens=24, ignore_eos=True) for number in range(60)]
    before, done = b"", 0
    for _ in range(4):
        with Server(config, env=PACED) as server:
            if not done:
                id = make_batch(server, lines)["id"]
            floor = done + 3
            wait_for(server, id, lambda batch: batch["request_counts"]["completed"] >= floor)
            kill(server)
        now = files_of(tmp_path, id)["output.jsonl"]
        assert now.startswith(before) and now.count(b"\n") >= floor
        before, done = now[: now.rindex(b"\n") + 1], now.count(b"\n")
        # A partly written line, as a power failure may leave it.
        with (tmp_path / "batches" / id / "output.jsonl").open("ab") as file:
            file.write(b'{"id":"batch_req_1","custom_id":"line-59","resp')
    assert done < 60
    with Server(config) as server:
        batch = ended(server, id)
        assert batch["status"] == "completed" and batch["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
        content = server.get(f"/v1/files/{batch['output_file_id']}/content").body
        assert content.startswith(before)
        assert sorted(json.loads(line)["custom_id"] for line in content.splitlines()) == sorted(line["custom_id"] for line in lines)


def test_a_batch_killed_at_any_moment_ends_whole(tmp_path):
    """Short batches are killed at various moments: during validation, between lines and at the end."""
    config = CONFIG | {"STORAGE__FOLDER": str(tmp_path)}
    for step in range(8):
        with Server(config) as server:
            id = make_batch(server, [chat_line(number, max_tokens=2) for number in range(5)])["id"]
            time.sleep(0.12 * step)
            kill(server)
        with Server(config) as server:
            batch = ended(server, id)
            assert batch["status"] == "completed" and batch["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
            assert len({line["custom_id"] for line in results(server, batch["output_file_id"])}) == 5


@pytest.mark.features("faults")
def test_a_stop_drops_the_lines_that_run_and_the_next_start_runs_them(tmp_path):
    config = CONFIG | {"STORAGE__FOLDER": str(tmp_path)}
    with Server(config, env=PACED) as server:
        id = make_batch(server, [slow(number) for number in range(6)])["id"]
        wait_for(server, id, lambda batch: batch["status"] == "in_progress")
        time.sleep(0.5)
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert time.monotonic() - start < 5, "shutting down does not wait for a batch"
    with Server(config) as server:
        assert batch_of(server, id)["request_counts"]["failed"] == 0
        wait_for(server, id, lambda batch: batch["request_counts"]["completed"] >= 1)
        server.request("POST", f"/v1/batches/{id}/cancel")
        assert ended(server, id, 20)["request_counts"]["failed"] == 0


def test_a_full_disk_holds_a_batch_up_and_loses_nothing(tmp_path):
    """A limit on file size stands in for a full disk. It is lifted while the batch waits."""
    script = tmp_path / "limited"
    script.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {Server().binary} \"$@\"\n")
    script.chmod(0o755)
    folder = tmp_path / "store"
    # The limit also applies to the log file. On a slow machine, a log line per request would reach it before the results do.
    with Server(CONFIG | {"STORAGE__FOLDER": str(folder), "SERVER__LOG": "error"}, binary=script) as server:
        limit = lambda bytes: subprocess.run(["prlimit", f"--fsize={bytes}:", f"--pid={server.process.pid}"], check=True)
        limit(12_000)  # the input and the state fit, the results do not
        id = make_batch(server, [chat_line(number) for number in range(40)])["id"]
        wait_for(server, id, lambda batch: batch["request_counts"]["completed"] >= 5)
        wait_until(lambda: "results cannot be written" in server.output(), 60, "the disk is full")
        time.sleep(4)
        held = batch_of(server, id)
        assert held["status"] == "in_progress" and held["request_counts"]["completed"] < 40
        assert server.chat().status == 200
        limit("unlimited")
        batch = ended(server, id)
        assert batch["status"] == "completed" and batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
        assert len({line["custom_id"] for line in results(server, batch["output_file_id"])}) == 40


@pytest.mark.features("faults")
def test_a_batch_belongs_to_a_tenant_and_keeps_to_its_key(tmp_path):
    env = {"AUTH__KEYS_FILE": str(tmp_path / "keys.toml")}
    add = lambda name, *args: {"authorization": "Bearer " + cli("keys", "add", name, *args, env=env).stdout.split()[-1]}
    ann, bob = add("ann"), add("bob", "--model", "other")
    with Server(CONFIG | env | {"STORAGE__FOLDER": str(tmp_path / "store"), "STORAGE__MAX_BATCHES": "2"}, env=PACED) as server:
        lines = [chat_line(number, max_tokens=2) for number in range(3)]
        made = make_batch(server, lines, headers=ann)
        assert server.get(f"/v1/batches/{made['id']}", headers=bob).status == 404
        assert server.request("POST", f"/v1/batches/{made['id']}/cancel", headers=bob).status == 404
        assert server.get("/v1/batches", headers=bob).json()["data"] == []
        assert ended(server, made["id"], headers=ann)["request_counts"]["completed"] == 3
        # A batch fails if its key may not use the model.
        failed = ended(server, make_batch(server, lines, headers=bob)["id"], headers=bob)
        assert failed["status"] == "failed" and failed["errors"]["data"][0]["code"] == "model_not_allowed"
        # If a key is revoked in the middle, no further line runs.
        made = make_batch(server, [slow(number) for number in range(30)], headers=ann)
        other = make_batch(server, [slow(0)], headers=bob)
        wait_for(server, made["id"], lambda batch: batch["request_counts"]["completed"] >= 1, headers=ann)
        carl = add("carl", "--tenant", "ann")
        wait_until(lambda: server.get("/v1/models", headers=carl).status == 200, 10, "the new key is known")
        cli("keys", "revoke", "ann", env=env)
        batch = ended(server, made["id"], headers=carl)
        errors = results(server, batch["error_file_id"], headers=carl)
        assert errors and all(line["error"]["code"] == "invalid_api_key" for line in errors)
        assert ended(server, other["id"], headers=bob)["status"] == "failed"


def test_unfinished_batches_are_bounded(tmp_path):
    config = {"STORAGE__FOLDER": str(tmp_path), "STORAGE__MAX_BATCHES": "2", "STORAGE__BATCH_CONCURRENCY": "0"}
    with Server(CONFIG | config) as server:
        ids = [make_batch(server, [chat_line(0)])["id"] for _ in range(2)]
        file = upload(server, jsonl([chat_line(0)])).json()["id"]
        body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        reply = server.post("/v1/batches", body)
        assert reply.status == 429 and "storage.max_batches" in reply.error["message"]
        server.request("POST", f"/v1/batches/{ids[0]}/cancel")
        assert ended(server, ids[0], 20)["status"] == "cancelled"
        assert server.post("/v1/batches", body).status == 200


def names_of(folder, id: str) -> list[str]:
    return sorted(os.listdir(folder / "batches" / id))


def test_a_batch_that_has_ended_holds_nothing(tmp_path):
    config = CONFIG | {"STORAGE__FOLDER": str(tmp_path)}
    with Server(config) as server:
        failed = make_batch(server, [chat_line(0, temperature=9)])["id"]
        done = make_batch(server, [chat_line(0)])["id"]
        assert ended(server, failed)["status"] == "failed" and ended(server, done)["status"] == "completed"
        for id in [failed, done]:
            wait_until(lambda id=id: names_of(tmp_path, id) == ["batch.json"], 10, "the input is removed")
    # The state that remains if the process ends before it removes the input.
    (tmp_path / "batches" / failed / "input.jsonl").write_bytes(b"x")
    with Server(config) as server:
        assert batch_of(server, failed)["status"] == "failed" and names_of(tmp_path, failed) == ["batch.json"]


def test_storage_of_batches_counts_against_the_same_limit_as_files(tmp_path):
    """A batch keeps its input after the file is deleted, so deleting the file frees nothing."""
    config = {"STORAGE__FOLDER": str(tmp_path), "STORAGE__MAX_BYTES": "100000", "STORAGE__BATCH_CONCURRENCY": "0"}
    content = jsonl([chat_line(0)]).ljust(39_999) + b"\n"
    body = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    with Server(CONFIG | config) as server:
        file = upload(server, content).json()["id"]
        id = server.post("/v1/batches", body | {"input_file_id": file}).json()["id"]
        refused = server.post("/v1/batches", body | {"input_file_id": file})
        assert refused.status == 400 and "storage.max_bytes" in refused.error["message"]
        assert server.request("DELETE", f"/v1/files/{file}").status == 200
        assert upload(server, content).status == 200
        assert "storage.max_bytes" in upload(server, content).error["message"]
    with Server(CONFIG | config) as server:
        assert "storage.max_bytes" in upload(server, content).error["message"], "a restart counts the inputs of batches, too"
        server.request("POST", f"/v1/batches/{id}/cancel")
        assert ended(server, id, 20)["status"] == "cancelled"
        wait_until(lambda: upload(server, content).status == 200, 10, "the batch's input is removed")


def test_a_batch_that_waits_for_its_key_holds_up_nobody(tmp_path):
    env = {"AUTH__KEYS_FILE": str(tmp_path / "keys.toml")}
    add = lambda name, *args: {"authorization": "Bearer " + cli("keys", "add", name, *args, env=env).stdout.split()[-1]}
    held_up, fast = add("held-up", "--requests-per-minute", "4"), add("fast")
    config = CONFIG | env | {"STORAGE__FOLDER": str(tmp_path / "store"), "STORAGE__BATCH_CONCURRENCY": "1"}
    with Server(config) as server:
        waits = make_batch(server, [chat_line(number, max_tokens=2) for number in range(10)], headers=held_up)
        time.sleep(3)
        start = time.monotonic()
        runs = make_batch(server, [chat_line(number, max_tokens=2) for number in range(4)], headers=fast)
        assert ended(server, runs["id"], 30, headers=fast)["request_counts"]["completed"] == 4
        assert time.monotonic() - start < 10
        server.request("POST", f"/v1/batches/{waits['id']}/cancel", headers=held_up)


@pytest.mark.features("faults")
def test_a_line_that_is_too_long_by_now_fails_alone(tmp_path):
    config = CONFIG | {"STORAGE__FOLDER": str(tmp_path), "STORAGE__BATCH_CONCURRENCY": "1"}
    long = chat_line(2)
    long["body"]["messages"][0]["content"] = " " * 20_000
    with Server(config, env=PACED) as server:
        id = make_batch(server, [slow(0), slow(1), long, chat_line(3)])["id"]
        wait_for(server, id, lambda batch: batch["status"] == "in_progress")
        kill(server)
    with Server(config | {"LIMITS__MAX_BODY_BYTES": "10000"}) as server:
        batch = ended(server, id)
        assert batch["status"] == "completed" and batch["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
        (failed,) = results(server, batch["error_file_id"])
        assert failed["custom_id"] == "line-2" and failed["response"]["body"]["error"]["code"] == "request_too_large"


def test_lines_refer_to_items_and_store_only_if_they_say_so(store):
    body = {"model": MODEL, "input": "Hi", "max_output_tokens": 4}
    item = store.post("/v1/responses", body).json()["output"][0]["id"]
    refer = [{"type": "item_reference", "id": item}, {"role": "user", "content": "And?"}]
    bodies = [body | {"input": refer}, body | {"store": True}, body | {"input": [{"type": "item_reference", "id": "msg_nope"}]}]
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/responses", "body": body} for i, body in enumerate(bodies)]
    batch = ended(store, make_batch(store, lines, "/v1/responses")["id"])
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}, batch
    out = {line["custom_id"]: line["response"]["body"] for line in results(store, batch["output_file_id"])}
    assert out["0"]["store"] is False and store.get(f"/v1/responses/{out['0']['id']}").status == 404
    assert store.get(f"/v1/responses/{out['1']['id']}").status == 200
    (failed,) = results(store, batch["error_file_id"])
    assert failed["custom_id"] == "2" and failed["response"]["body"]["error"]["param"] == "input[0].id"
