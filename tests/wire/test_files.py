"""/v1/files over HTTP: uploads, lists, limits, and the state after a restart."""

import os
import time

import pytest
from harness import MODEL, Server, cli
from keep import form, upload

CONFIG = {"SERVER__DEFAULT_MODELS": MODEL, "SERVER__ON_DEMAND": "false", "ENGINE__KV_TOKENS": "2048"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def store(folder):
    limits = {"STORAGE__MAX_FILE_BYTES": str(3 << 20), "STORAGE__MAX_BYTES": str(8 << 20), "STORAGE__MAX_FILES": "40"}
    with Server(CONFIG | limits | {"STORAGE__FOLDER": str(folder)}) as running:
        yield running


def on_disk(folder) -> list[str]:
    return sorted(os.listdir(folder / "files"))


def test_a_file_comes_back_byte_by_byte_and_is_gone_when_deleted(store, folder):
    content = os.urandom(2_500_000)
    file = upload(store, content, "user_data", "a b.bin").json()
    assert set(file) == {"id", "object", "bytes", "created_at", "expires_at", "filename", "purpose", "status"}
    assert file["object"] == "file" and file["bytes"] == len(content) and file["filename"] == "a b.bin" and file["purpose"] == "user_data"
    assert file["expires_at"] is None and abs(file["created_at"] - time.time()) < 60
    assert store.get(f"/v1/files/{file['id']}").json() == file
    reply = store.get(f"/v1/files/{file['id']}/content")
    assert reply.body == content and reply.headers["content-disposition"] == "attachment"
    deleted = store.request("DELETE", f"/v1/files/{file['id']}")
    assert deleted.json() == {"id": file["id"], "object": "file", "deleted": True}
    for method, path in [("GET", ""), ("GET", "/content"), ("DELETE", "")]:
        reply = store.request(method, f"/v1/files/{file['id']}{path}")
        assert reply.status == 404 and reply.error["code"] == "not_found" and reply.error["param"] == "id"
    assert not [name for name in on_disk(folder) if name.startswith(file["id"])]


def test_the_parts_may_come_in_any_order(store):
    body, headers = form(
        [
            ("file", "x.jsonl", b"{}"),
            ("expires_after[seconds]", None, b"3600"),
            ("expires_after[anchor]", None, b"created_at"),
            ("purpose", None, b"batch"),
        ]
    )
    file = store.request("POST", "/v1/files", body, headers=headers).json()
    assert file["expires_at"] == file["created_at"] + 3600


def test_lists_have_pages(store):
    ids = [upload(store, b"x", purpose).json()["id"] for purpose in ["evals", "vision", "evals", "evals"]]
    page = store.get("/v1/files?purpose=evals&limit=2").json()
    assert [file["id"] for file in page["data"]] == [ids[3], ids[2]] and page["has_more"] and page["object"] == "list"
    assert page["first_id"] == ids[3] and page["last_id"] == ids[2]
    rest = store.get(f"/v1/files?purpose=evals&limit=2&after={ids[2]}").json()
    assert [file["id"] for file in rest["data"]] == [ids[0]] and not rest["has_more"]
    up = store.get("/v1/files?order=asc&purpose=evals").json()
    assert [file["id"] for file in up["data"]] == [ids[0], ids[2], ids[3]]
    for query, name in [("limit=0", "limit"), ("order=x", "order"), ("after=nope", "after"), ("colour=red", "colour")]:
        reply = store.get(f"/v1/files?{query}")
        assert reply.status == 400 and reply.error["param"] == name, reply.body


def test_a_wrong_part_is_named(store, folder):
    before = on_disk(folder)
    good = [("purpose", None, b"batch"), ("file", "a", b"x")]
    rows = [
        (good[:1], "file"),
        (good[1:], "purpose"),
        ([("purpose", None, b"fun"), good[1]], "purpose"),
        ([*good, ("colour", None, b"red")], "colour"),
        ([*good, good[1]], "file"),
        ([*good, ("expires_after[seconds]", None, b"5")], "expires_after[seconds]"),
        ([*good, ("expires_after[seconds]", None, b"4000")], "expires_after[anchor]"),
        ([*good, ("expires_after[anchor]", None, b"created_at")], "expires_after[seconds]"),
        ([*good, ("expires_after[anchor]", None, b"now")], "expires_after[anchor]"),
        ([good[0], ("file", None, b"x")], "file"),
        ([("purpose", None, b"x" * 1000), good[1]], "purpose"),
    ]
    for parts, param in rows:
        body, headers = form(parts)
        reply = store.request("POST", "/v1/files", body, headers=headers)
        assert reply.status == 400 and reply.error["param"] == param, (parts, reply.body)
    assert store.post("/v1/files", {"purpose": "batch"}).status == 415
    body, headers = form(good)
    foreign = store.request("POST", "/v1/files", body, headers=headers | {"origin": "https://evil.example"})
    assert foreign.status == 403
    assert store.request("POST", "/v1/files", body, headers=headers | {"origin": store.url}).status == 200
    assert len(on_disk(folder)) == len(before) + 2, "a refused upload leaves nothing behind"


def test_a_broken_form_gets_an_error_that_says_what_is_wrong(store, folder):
    before = on_disk(folder)
    body, headers = form([("purpose", None, b"batch"), ("file", "a", b"x" * 1000)])
    nameless = body.replace(b'; name="purpose"', b"")
    many, _ = form([("expires_after[anchor]", None, b"created_at")] * 20)
    rows = [
        (body[:-10], headers, "ends too early"),
        (body[:500], headers, "ends too early"),
        (b"", headers, "ends too early"),
        (b'{"purpose": "batch"}', headers, "ends too early"),
        (body, {"content-type": "multipart/form-data"}, "names no boundary"),
        (nameless, headers, "has no name"),
        (body.replace(b"Content-Disposition", b"X", 1), headers, "has no name"),
        (body.replace(b"Content-Disposition:", b"Content\x00Disposition", 1), headers, "cannot be read"),
        (many, {"content-type": "multipart/form-data; boundary=" + many[2:34].decode()}, "more than 16 parts"),
    ]
    for sent, with_type, words in rows:
        reply = store.request("POST", "/v1/files", sent, headers=with_type)
        assert reply.status == 400 and reply.error["code"] == "invalid_form" and words in reply.error["message"], (sent[:80], reply.body)
        assert reply.error["type"] == "invalid_request_error" and "JSON" not in reply.error["message"]
    assert on_disk(folder) == before, "no part of a refused form is stored"
    assert store.request("POST", "/v1/files", body, headers=headers).status == 200


def test_files_beyond_the_storage_limits_are_refused_and_leave_nothing(store, folder):
    before = on_disk(folder)
    reply = upload(store, b"x" * ((3 << 20) + 1))
    assert reply.status == 413 and reply.error["param"] == "file" and "storage.max_file_bytes" in reply.error["message"]
    kept = []
    while (reply := upload(store, b"y" * (3 << 20))).status == 200:
        kept.append(reply.json()["id"])
    assert reply.status == 400 and reply.error["code"] == "storage_limit_exceeded" and 1 <= len(kept) <= 2
    for id in kept:
        store.request("DELETE", f"/v1/files/{id}")
    small = []
    while (reply := upload(store, b"z")).status == 200:
        small.append(reply.json()["id"])
        assert len(small) <= 40
    assert reply.error["code"] == "storage_limit_exceeded" and "storage.max_files" in reply.error["message"]
    for id in small:
        store.request("DELETE", f"/v1/files/{id}")
    assert on_disk(folder) == before


def test_a_restart_finds_the_files_and_removes_partial_ones(tmp_path):
    config = CONFIG | {"STORAGE__FOLDER": str(tmp_path)}
    with Server(config) as server:
        file = upload(server, b"kept").json()
        server.process.kill()
        server.process.wait()
        server.process.returncode = 0
    (tmp_path / "files" / "file-x.part").write_bytes(b"half")
    (tmp_path / "files" / "file-y").write_bytes(b"no entry")
    (tmp_path / "files" / "file-z.json").write_text((tmp_path / "files" / f"{file['id']}.json").read_text().replace(file["id"], "file-z"))
    with Server(config) as server:
        page = server.get("/v1/files").json()
        assert page["data"] == [file]
        assert server.get(f"/v1/files/{file['id']}/content").body == b"kept"
        assert on_disk(tmp_path) == sorted([file["id"], f"{file['id']}.json"])
        # Two servers must not run the same batches.
        with Server(config) as second:
            reply = second.get("/v1/files")
            assert reply.status == 503 and reply.error["code"] == "storage_unavailable" and "storage.folder" in reply.error["message"]


def test_a_full_disk_keeps_nothing_of_an_upload(tmp_path):
    script = tmp_path / "limited"
    binary = Server().binary
    script.write_text(f"#!/bin/sh\ntrap '' XFSZ\nulimit -f 2048\nexec {binary} \"$@\"\n")
    script.chmod(0o755)
    folder = tmp_path / "store"
    with Server(CONFIG | {"STORAGE__FOLDER": str(folder)}, binary=script) as server:
        reply = upload(server, b"x" * (4 << 20))
        assert reply.status == 507 and reply.error["code"] == "insufficient_storage", reply.body
        assert on_disk(folder) == []
        assert upload(server, b"fits").status == 200


def test_tenants_do_not_see_each_others_files(tmp_path):
    keys = tmp_path / "keys.toml"
    env = {"AUTH__KEYS_FILE": str(keys)}
    secrets = [cli("keys", "add", name, env=env).stdout.split()[-1] for name in ["ann", "bob"]]
    with Server(CONFIG | env | {"STORAGE__FOLDER": str(tmp_path / "store")}) as server:
        ann, bob = ({"authorization": f"Bearer {secret}"} for secret in secrets)
        assert upload(server, b"x").status == 401
        file = upload(server, b"hers", headers=ann).json()
        assert server.get(f"/v1/files/{file['id']}/content", headers=ann).body == b"hers"
        assert server.get("/v1/files", headers=bob).json()["data"] == []
        for method, path in [("GET", ""), ("GET", "/content"), ("DELETE", "")]:
            assert server.request(method, f"/v1/files/{file['id']}{path}", headers=bob).status == 404
        batch = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        assert server.post("/v1/batches", batch, headers=bob).error["param"] == "input_file_id"
