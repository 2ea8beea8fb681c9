"""/v1/models, /health, /version and the documentation pages."""

from harness import MODEL, Server


def test_the_models_are_listed(server):
    reply = server.get("/v1/models")
    assert reply.status == 200
    listing = reply.json()
    assert listing["object"] == "list"
    entry = next(m for m in listing["data"] if m["id"] == MODEL)
    assert entry["object"] == "model" and isinstance(entry["created"], int) and isinstance(entry["owned_by"], str) and entry["owned_by"]
    sizes = entry["meta"]
    assert sizes["n_ctx_train"] == 8192 and sizes["n_embd"] % 64 == 0 and sizes["size"] > sizes["n_params"] // 8 > 0


def test_a_model_is_found_by_its_plain_and_its_encoded_name(server):
    for path in (f"/v1/models/{MODEL}", "/v1/models/smollm2%3A135m", "/v1/models/smollm2%3a135m"):
        reply = server.get(path)
        assert reply.status == 200, (path, reply.body)
        assert reply.json()["id"] == MODEL and reply.json()["object"] == "model"


def test_an_unknown_model_is_not_found(server):
    for path in ("nope", "meta-llama%2FLlama-3", "meta-llama/Llama-3", "..%2F..%2Fetc%2Fpasswd", "x" * 10_000, "%00", "%1b%5b31m"):
        reply = server.get(f"/v1/models/{path}")
        assert reply.status == 404, (path, reply.body)
        assert (
            reply.error["code"] == "model_not_found" and reply.error["param"] == "model" and reply.error["type"] == "invalid_request_error"
        )


def test_a_request_to_an_unknown_model_is_a_404(server):
    for model in ("nope", "../x", "a\u0000b", "m" * 10_240):
        for reply in (server.chat(model=model), server.complete(model=model)):
            assert reply.status == 404, (model[:20], reply.body)
            assert reply.error["code"] == "model_not_found" and reply.error["param"] == "model"


def test_health_ready_and_version_answer(server):
    assert server.get("/health").status == 200
    assert server.get("/ready").status == 200
    version = server.get("/version")
    assert version.status == 200 and version.json()["version"]


def test_an_unknown_route_is_a_404_and_an_unknown_method_a_405(server):
    reply = server.get("/v1/nothing")
    assert reply.status == 404 and reply.error["type"] == "invalid_request_error"
    reply = server.get("/v1/completions")
    assert reply.status == 405 and reply.error["type"] == "invalid_request_error"
    assert reply.headers["allow"] == "POST"
    reply = server.request("DELETE", "/health")
    assert reply.status == 405 and reply.headers["allow"] == "GET, HEAD"


def test_probes_may_use_head(server):
    for path in ("/health", "/ready", "/v1/models"):
        reply = server.request("HEAD", path)
        assert reply.status == 200 and reply.body == b"", (path, reply.body)


def test_the_documentation_loads_nothing_from_elsewhere(server):
    reply = server.get("/docs/")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert server.get("/docs/nothing.js").status == 404
    assert reply.status == 200, reply.status
    page = reply.body.decode()
    assert "swagger" in page.lower()
    assert 'src="http' not in page and 'href="http' not in page


def test_a_model_that_cannot_be_loaded_is_explained_in_the_log_and_not_to_clients(tmp_path):
    broken = tmp_path / "secretfolder" / "broken.gguf"
    broken.parent.mkdir()
    broken.write_bytes(b"no GGUF")
    with Server({}, args=("--model", MODEL, "--model", str(broken))) as server:
        messages = [{"role": "user", "content": "Hi"}]
        for path, fields in (("/v1/completions", {"prompt": "Hi"}), ("/v1/chat/completions", {"messages": messages})):
            reply = server.post(path, {"model": "broken", **fields})
            assert reply.status == 503 and reply.error["code"] == "model_load_failed", reply.body
            assert b"secretfolder" not in reply.body and "the server's log" in reply.error["message"]
        assert server.complete(max_tokens=1).status == 200
        log = open(server.log.name).read()
        assert log.count("secretfolder") == 1 and "not a GGUF file" in log, log


def test_a_similar_name_is_suggested(server):
    reply = server.chat("hi", model="smollm2:135")
    assert reply.status == 404 and reply.error["code"] == "model_not_found" and reply.error["param"] == "model"
    assert "did you mean smollm2:135m?" in reply.error["message"], reply.error
    assert "did you mean smollm2:135m?" in server.get("/v1/models/smollm2:136m").error["message"]
    assert "did you mean" not in server.chat("hi", model="gpt-4o").error["message"]
