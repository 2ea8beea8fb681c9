"""The life of models: loaded on demand, unloaded when idle or when another model needs the memory, pinned, with variants, and
administered."""

import json
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import MODEL, Server, cli, open_stream, sse_events, wait_until
from test_keys import Keys, bearer
from tiny import VOCAB, Tiny

TEMPLATE = "{% for m in messages %}{{ 's' if m.role == 'system' else '' }}{{ m.content }}{% endfor %}{{ 'x' if extra else '' }}"
# Single letters, so that text can be tokenized.
TOKENS = [f"<{i}>" for i in range(3)] + ["\u2581", *"abcdefghijklmnopqrstuvwxyz"]
TOKENS += [f"<{i}>" for i in range(len(TOKENS), VOCAB)]
IDS = [5, 6, 7]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three tiny models."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("one", "two", "three"), 1):
        metadata = {"tokenizer.chat_template": TEMPLATE, "tokenizer.ggml.tokens": TOKENS}
        Tiny("llama", seed=seed).write(folder / f"{name}.gguf", metadata=metadata)
    return folder


def entry(files, name: str, **more) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    source = f'source = {{ type = "file", path = "{files}/{name}.gguf" }}'
    return "\n".join(["[[models]]", f'id = "{name}"', source, *lines, ""])


def serve(files, tmp_path, *entries: str, default="one", **config) -> Server:
    """A server that offers the given entries, loads `default` at start, and has its own store."""
    path = tmp_path / "models.toml"
    path.write_text("\n".join(entries or (entry(files, "one"), entry(files, "two"), entry(files, "three"))))
    settings = {"SERVER__MODELS_DIR": str(tmp_path / "store"), "SERVER__DEFAULT_MODELS": default, "ENGINE__THREADS": "1"}
    return Server({**settings, **config}, ("--config", str(path)))


def complete(server, model="one", **fields):
    return server.post("/v1/completions", {"model": model, "prompt": IDS, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields})


def models(server, **kwargs) -> dict:
    return {model["id"]: model for model in server.get("/admin/models", **kwargs).json()["data"]}


def states(server) -> dict:
    return {name: model["state"] for name, model in models(server).items()}


def loaded(server) -> set:
    return {name for name, state in states(server).items() if state == "loaded"}


def slow_stream(server, model: str):
    """A stream that continues until it is closed or the context ends."""
    body = {"model": model, "prompt": IDS, "max_tokens": 250, "stream": True, "ignore_eos": True, "n": 16}
    return open_stream(server, "/v1/completions", body)


def hold(server, model: str):
    """Sends a request that keeps its model in use: the client does not read, so the request does not end."""
    connection = slow_stream(server, model)
    wait_until(lambda: models(server)[model]["requests_running"] > 0, 10, "the request runs")
    return connection


def test_every_model_of_the_configuration_is_offered_and_loaded_at_its_first_request(files, tmp_path):
    gone = '[[models]]\nid = "gone"\nsource = { type = "file", path = "/no/such.gguf" }\n'
    with serve(files, tmp_path, entry(files, "one"), entry(files, "two", aliases=["zwei"]), gone) as server:
        listed = server.get("/v1/models").json()["data"]
        assert [(model["id"], model["loaded"]) for model in listed] == [("one", True), ("two", False)]
        assert all(model["root"] == model["id"] and model["parent"] is None for model in listed)
        for path in ("/health", "/ready", "/metrics", "/v1/models", "/v1/models/two", "/models", "/admin/models"):
            assert server.get(path).status == 200
        assert loaded(server) == {"one"}, "reading the lists loads nothing"
        assert complete(server, "zwei").status == 200 and loaded(server) == {"one", "two"}
        assert complete(server, "gone").status == 404
        two = models(server)["two"]
        assert two["bytes"]["weights"] > 0 and two["bytes"]["cache"] > 0 and two["requests_running"] == 0
        assert abs(two["last_use"] - time.time()) < 30 and two["backend"] == "cpu" and not two["pinned"]
        assert server.metrics()[("penstock_models_loaded", ())] == 2


def test_without_on_demand_only_named_models_are_served(files, tmp_path):
    with serve(files, tmp_path, default="two", SERVER__ON_DEMAND="false") as server:
        assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["two"]
        assert complete(server, "one").status == 404


def test_the_least_recently_used_model_goes_and_a_pinned_one_stays(files, tmp_path):
    entries = (entry(files, "one", pinned=True), entry(files, "two"), entry(files, "three"))
    with serve(files, tmp_path, *entries, SERVER__MAX_LOADED_MODELS="2") as server:
        text = complete(server, "two").json()["choices"][0]["text"]
        assert complete(server, "one").status == 200 and loaded(server) == {"one", "two"}
        assert complete(server, "three").status == 200
        assert loaded(server) == {"one", "three"}, "the pinned model stays"
        assert complete(server, "two").json()["choices"][0]["text"] == text and loaded(server) == {"one", "two"}
        assert server.metrics()[("penstock_model_unloads_total", (("reason", "memory"),))] == 2


def test_the_memory_limit_counts_bytes(files, tmp_path):
    with serve(files, tmp_path) as server:
        assert complete(server, "two").status == 200
        size = models(server)["one"]["bytes"]["total"]
    with serve(files, tmp_path, SERVER__MODEL_MEMORY_BYTES=str(2 * size + size // 2)) as server:
        for name in ("one", "two", "one", "three"):
            assert complete(server, name).status == 200
        assert loaded(server) == {"one", "three"}, "two was used least recently"
    with serve(files, tmp_path, SERVER__MODEL_MEMORY_BYTES=str(size), SERVER__MODEL_WAIT_SECONDS="1") as server:
        assert complete(server, "two").status == 200 and loaded(server) == {"two"}


def test_a_model_in_use_stays_and_the_request_for_another_waits(files, tmp_path):
    config = {"SERVER__MAX_LOADED_MODELS": "1", "SERVER__MODEL_WAIT_SECONDS": "20", "SERVER__KEEP_ALIVE_SECONDS": "1"}
    with serve(files, tmp_path, **config) as server, ThreadPoolExecutor(2) as pool:
        busy = hold(server, "one")
        streamed = pool.submit(complete, server, "two", stream=True)
        plain = pool.submit(complete, server, "two")
        wait_until(lambda: models(server)["two"]["requests_waiting"] == 2, 10, "both requests wait")
        time.sleep(2.5)
        assert loaded(server) == {"one"} and not plain.done(), "a busy model is not unloaded"
        busy.close()
        assert plain.result(20).status == 200
        reply = streamed.result(20)
        assert reply.status == 200 and reply.body.startswith(b": loading the model, 1 s\n\n"), reply.body[:200]
        assert reply.body.count(b": loading the model") >= 2 and sse_events(reply.body)[-1] == "[DONE]"


def test_a_request_that_waits_too_long_or_behind_too_many_is_told_to_retry(files, tmp_path):
    config = {"SERVER__MAX_LOADED_MODELS": "1", "SERVER__MODEL_WAIT_SECONDS": "5", "LIMITS__MAX_QUEUE": "16", "LIMITS__MAX_PROMPTS": "16"}
    with serve(files, tmp_path, **config) as server, ThreadPoolExecutor(24) as pool:
        busy = hold(server, "one")
        replies = list(pool.map(lambda _: complete(server, "two"), range(24)))
        busy.close()
    assert Counter(reply.status for reply in replies) == {503: 16, 429: 8}, "16 wait in vain, and the queue is full for the others"
    # The request that triggers an unload may give up while the unload is in progress.
    codes = {503: {"model_no_room", "model_loading"}, 429: {"rate_limit_exceeded"}}
    assert all(reply.error["code"] in codes[reply.status] and int(reply.headers["retry-after"]) >= 1 for reply in replies)


def test_variants_share_one_load_and_have_parameters_of_their_own(files, tmp_path):
    fast = '[[models]]\nid = "one:fast"\nof = "one"\nmax_tokens = 3\nsystem = "be"\nsampling = { temperature = 0.0 }\n'
    fast += "chat_template_kwargs = { extra = true }\n"
    long = '[[models]]\nid = "one:long"\nof = "one"\ncontext = 128\n'
    with serve(files, tmp_path, entry(files, "one"), fast, long) as server:
        listed = {model["id"]: model for model in server.get("/v1/models").json()["data"]}
        assert (listed["one:fast"]["root"], listed["one:fast"]["parent"], listed["one"]["parent"]) == ("one", "one", None)
        assert listed["one:fast"]["loaded"] and not listed["one:long"]["loaded"], "a variant with another context is another load"
        asked = {"role": "user", "content": "a"}
        chat = lambda model: server.post("/apply-template", {"model": model, "messages": [asked]})
        assert chat("one").json()["prompt"] == "a"
        assert chat("one:fast").json()["prompt"] == "sbeax"
        own = {"messages": [{"role": "system", "content": "do"}, asked], "chat_template_kwargs": {"extra": False}}
        assert server.post("/apply-template", {"model": "one:fast", **own}).json()["prompt"] == "sdoa"
        reply = server.post("/v1/chat/completions", {"model": "one:fast", "messages": [asked], "ignore_eos": True})
        assert reply.status == 200 and reply.json()["usage"]["completion_tokens"] == 3 and reply.json()["model"] == "one:fast"
        assert complete(server, "one:fast", max_tokens=5).json()["usage"]["completion_tokens"] == 5
        assert server.post("/admin/models/unload", {"model": "one:fast"}).json()["state"] == "unloaded"
        assert states(server)["one"] == "unloaded"
    for text, parts in (
        ('of = "nothing"', ["`of`", "nothing"]),
        ('of = "one:fast"', ["`of`", "variant itself"]),
        ('of = "one"\nsize = 3', ["`size`", "`of`"]),
    ):
        path = tmp_path / "bad.toml"
        path.write_text("\n".join([entry(files, "one"), fast, f'[[models]]\nid = "x"\n{text}\n']))
        done = cli("--config", path, "serve", "--model", "one", env={"SERVER__MODELS_DIR": str(tmp_path / "store")})
        assert done.returncode == 1 and all(part in done.stderr for part in parts), done.stderr


def test_operators_load_and_unload_and_busy_models_need_force(files, tmp_path):
    with serve(files, tmp_path) as server:
        reply = server.post("/admin/models/load", {"model": "two"})
        assert reply.status == 200 and reply.json()["state"] == "loaded" and loaded(server) == {"one", "two"}
        assert server.post("/admin/models/unload", {"model": "two"}).json()["state"] == "unloaded"
        assert server.post("/admin/models/unload", {"model": "two"}).status == 200, "unloading an unloaded model changes nothing"
        busy = hold(server, "one")
        reply = server.post("/admin/models/unload", {"model": "one"})
        assert reply.status == 409 and reply.error["code"] == "model_in_use" and "force" in reply.error["message"]
        assert server.post("/models/unload", {"model": "one"}).status == 409
        assert server.post("/admin/models/unload", {"model": "one", "force": True}).json()["state"] == "unloaded"
        got = b""
        while b"engine has stopped" not in got:
            piece = busy.recv(65536)
            assert piece, f"the stream ends with the reason: {got[-300:]}"
            got += piece
        busy.close()
        for path, status, code in (("load", 404, "model_not_found"), ("unload", 404, "model_not_found"), ("pull", 400, "pull_failed")):
            reply = server.post(f"/admin/models/{path}", {"model": "nope"})
            assert (reply.status, reply.error["code"], reply.error["param"]) == (status, code, "model"), reply.body
            assert server.post(f"/admin/models/{path}", {"model": 3}).status == 400
            assert server.post(f"/admin/models/{path}", {"model": "one", "modle": 1}).error["param"] == "modle"
        for name in ("/etc/passwd", "../x.gguf", str(files / "one.gguf"), "one"):
            reply = server.post("/admin/models/pull", {"model": name})
            assert reply.status == 400 and reply.error["code"] == "pull_failed", reply.body
        assert server.get("/health").status == 200 and complete(server).status == 200


def test_the_model_endpoints_of_llama_cpp_work(files, tmp_path):
    with serve(files, tmp_path) as server:
        value = lambda name: {model["id"]: model["status"]["value"] for model in server.get("/models").json()["data"]}[name]
        assert (value("one"), value("two")) == ("loaded", "unloaded")
        assert server.post("/models/load", {"model": "two"}).json() == {"success": True}
        wait_until(lambda: value("two") == "loaded", 20, "the model is loaded")
        assert server.post("/models/unload", {"model": "two"}).json() == {"success": True} and value("two") == "unloaded"
        assert server.post("/models/load", {"model": "nope"}).status == 404


def follow(server, path: str):
    """Collects the events of a stream in a thread."""
    events, ready = [], threading.Event()

    def read():
        connection = server.connection(30)
        connection.request("GET", path)
        reply = connection.getresponse()
        for line in reply:
            ready.set()
            if line.startswith(b"data: "):
                events.append(json.loads(line[6:]))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert ready.wait(10)
    return events


def test_events_report_loads_and_unloads(files, tmp_path):
    with serve(files, tmp_path) as server:
        own, router = follow(server, "/admin/models/events"), follow(server, "/models/sse")
        complete(server, "two")
        server.post("/admin/models/unload", {"model": "two"})
        wait_until(lambda: len(own) >= 3 and len(router) >= 3, 10, "three events have arrived")
        assert [(event["model"], event["state"]) for event in own] == [("two", "loading"), ("two", "loaded"), ("two", "unloaded")]
        assert [event["data"]["status"] for event in router] == ["loading", "loaded", "unloaded"]


def test_idle_models_are_unloaded(files, tmp_path):
    with serve(files, tmp_path, entry(files, "one", pinned=True), entry(files, "two", idle_unload_minutes=0.1)) as server:
        complete(server, "two")
        time.sleep(3)
        assert loaded(server) == {"one", "two"}
        wait_until(lambda: loaded(server) == {"one"}, 20, "the idle model is unloaded")
        assert complete(server, "two").status == 200
        assert server.metrics()[("penstock_model_unloads_total", (("reason", "idle"),))] == 1


def test_only_some_keys_manage_models(files, tmp_path):
    keys = Keys(tmp_path / "keys.toml")
    user, admin = keys.add("user"), keys.add("ops", "--admin")
    assert "ADMIN" in keys.list()
    with serve(files, tmp_path, **keys.config) as server:
        for path in ("/admin/models", "/admin/models/events", "/models/sse"):
            reply = server.get(path, headers=bearer(user))
            assert reply.status == 403 and reply.error["code"] == "admin_required"
            assert server.get(path).status == 401
        for path in ("/admin/models/load", "/admin/models/unload", "/admin/models/pull", "/models/load", "/models/unload", "/models"):
            assert server.post(path, {"model": "two"}, headers=bearer(user)).status == 403, path
        assert server.get("/models", headers=bearer(user)).status == 200
        assert server.post("/admin/models/load", {"model": "two"}, headers=bearer(admin)).status == 200


def test_without_keys_models_are_managed_from_this_machine_only(files, tmp_path):
    with serve(files, tmp_path, SERVER__ALLOWED_HOSTS="llm.example") as server:
        for headers in ({"host": "llm.example"}, {"x-forwarded-for": "10.0.0.1"}):
            assert server.get("/admin/models", headers=headers).status == 403
            assert server.get("/v1/models", headers=headers).status == 200
        assert server.get("/admin/models").status == 200


def test_ps_and_stop_speak_to_the_server(files, tmp_path):
    with serve(files, tmp_path) as server:
        complete(server, "two")
        done = cli("ps", "--url", server.url)
        rows = [line.split() for line in done.stdout.splitlines()]
        assert done.returncode == 0 and rows[0][0] == "MODEL", done.stderr
        assert [row[:3] for row in rows[1:]] == [["one", "loaded", "cpu"], ["two", "loaded", "cpu"]]
        assert [model["id"] for model in json.loads(cli("ps", "--json", "--all", "--url", server.url).stdout)] == ["one", "two", "three"]
        done = cli("stop", "two", "--url", f"127.0.0.1:{server.port}")
        assert done.returncode == 0 and "two is not loaded" in done.stdout and loaded(server) == {"one"}
        done = cli("stop", "nope", "--url", server.url)
        assert done.returncode == 1 and "does not exist" in done.stderr
    done = cli("ps", "--url", server.url)
    assert done.returncode == 1 and "no server answers" in done.stderr


def storm_requests(name: str):
    """A request of each endpoint that takes a model."""
    chat = {"model": name, "messages": [{"role": "user", "content": "ab"}], "max_tokens": 4}
    return [
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/chat/completions", {**chat, "stream": True}),
        ("POST", "/v1/completions", {"model": name, "prompt": IDS, "max_tokens": 4}),
        ("POST", "/v1/completions", {"model": name, "prompt": IDS, "max_tokens": 4, "stream": True}),
        ("POST", "/v1/responses", {"model": name, "input": "ab", "max_output_tokens": 4}),
        ("POST", "/v1/responses", {"model": name, "input": "ab", "max_output_tokens": 4, "stream": True}),
        ("POST", "/v1/embeddings", {"model": name, "input": [IDS]}),
        ("POST", "/tokenize", {"model": name, "prompt": "ab"}),
        ("POST", "/detokenize", {"model": name, "tokens": IDS}),
        ("POST", "/apply-template", chat),
        ("GET", f"/tokenizer_info?model={name}", None),
    ]


def end_of(reply, is_stream: bool):
    """Classifies the end of a request: "served", "cut" (a stream whose last event is the error that the engine has stopped), or the status
    and code."""
    if reply.status != 200:
        return reply.status, reply.error["code"]
    if not is_stream:
        return "served"
    last = [line for line in reply.body.decode().split("\n") if line.startswith("data: ")][-1]
    if last == "data: [DONE]" or '"type":"response.completed"' in last or '"type":"response.incomplete"' in last:
        return "served"
    return "cut" if '"engine_stopped"' in last or '"type":"response.failed"' in last else last


RACED = {"served", "cut", (503, "engine_stopped"), (503, "model_no_room"), (503, "model_loading"), (429, "rate_limit_exceeded")}
# The possible results of an unload: its status, whether it was forced, and the state or the error code.
UNLOADS = {(200, force, state) for force in (False, True) for state in ("unloaded", "loading", "loaded")} | {(409, False, "model_in_use")}


def test_requests_of_every_endpoint_race_loads_and_unloads(files, tmp_path):
    """Row 84. Each request is served, or is refused with a status and a matching code. Nothing hangs or crashes. The race decides which
    requests are refused, but both results occur."""
    seen, unloads, stop = Counter(), Counter(), time.monotonic() + 20
    with serve(files, tmp_path, SERVER__MAX_LOADED_MODELS="2", SERVER__MODEL_WAIT_SECONDS="10") as server:

        def ask(seed: int):
            choice = random.Random(seed)
            while time.monotonic() < stop:
                method, path, body = choice.choice(storm_requests(choice.choice(("one", "two", "three"))))
                if path == "/apply-template":
                    body = {key: value for key, value in body.items() if key != "max_tokens"}
                reply = server.request(method, path, body)
                end = end_of(reply, is_stream=bool(body and body.get("stream")))
                seen[path.split("?")[0], end] += 1
                assert end in RACED, (path, reply.status, reply.body)

        def unload(seed: int):
            choice = random.Random(seed)
            while time.monotonic() < stop:
                body = {"model": choice.choice(("one", "two", "three")), "force": choice.random() < 0.5}
                reply = server.post("/admin/models/unload", body)
                # The state is `loading` if another request has already loaded the model again.
                told = reply.json()["state"] if reply.status == 200 else reply.error["code"]
                unloads[reply.status, body["force"], told] += 1
                time.sleep(0.02)

        with ThreadPoolExecutor(10) as pool:
            tasks = [pool.submit(ask, seed) for seed in range(8)] + [pool.submit(unload, seed) for seed in (100, 101)]
            for task in tasks:
                task.result(120)
        paths = {path for path, end in seen if end == "served"}
        assert len(paths) == 8, f"every endpoint was served: {seen}"
        assert any(end == (503, "engine_stopped") for _, end in seen), f"some requests met an unload: {seen}"
        assert set(unloads) <= UNLOADS and {(200, True, "unloaded"), (409, False, "model_in_use")} <= set(unloads), unloads
        assert server.get("/health").status == 200
        assert all(model["requests_running"] == 0 and model["requests_waiting"] == 0 for model in models(server).values())
        for name in ("one", "two", "three"):
            assert complete(server, name).status == 200


def test_sighup_reads_the_configuration_again_without_cutting_a_stream(files, tmp_path):
    with serve(files, tmp_path, entry(files, "one"), entry(files, "two")) as server:
        path = tmp_path / "models.toml"
        complete(server, "two")
        busy = hold(server, "two")

        def reload(text: str, says: str):
            before = server.output().count(says)
            path.write_text(text)
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: server.output().count(says) > before, 10, f"{says}: {server.output()}")

        three = entry(files, "three", aliases=["drei"])
        changed = "[server]\ndrain_seconds = 7\n[limits]\nmax_stop_sequences = 1\n"
        reload(entry(files, "one") + three + changed, "configuration was read again")
        server.wait_log("server.drain_seconds has changed: it needs a restart")
        assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["one", "three"]
        assert complete(server, "drei").status == 200 and complete(server, "two").status == 404
        assert complete(server, stop=["a", "b"]).status == 400
        assert server.metrics()[("penstock_models_loaded", ())] == 3, "the stream still holds its model"
        busy.close()
        wait_until(lambda: server.metrics()[("penstock_models_loaded", ())] == 2, 10, "the model is unloaded when its last stream ends")
        reload("[server]\nprot = 1\n", "the configuration stays as it was")
        assert complete(server, "drei").status == 200 and server.get("/ready").status == 200


def test_a_server_that_shuts_down_does_not_wait_for_a_load(files, tmp_path):
    """Row 82. SIGTERM arrives while a request waits for its model."""
    config = {"SERVER__MAX_LOADED_MODELS": "1", "SERVER__MODEL_WAIT_SECONDS": "60", "SERVER__DRAIN_SECONDS": "1"}
    with serve(files, tmp_path, **config) as server, ThreadPoolExecutor(1) as pool:
        busy = hold(server, "one")
        waiting = pool.submit(complete, server, "two")
        wait_until(lambda: models(server)["two"]["requests_waiting"] == 1, 10, "the request waits")
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        reply = waiting.result(20)
        assert reply.status == 503 and reply.error["code"] == "shutting_down", reply.body
        assert server.process.wait(20) == 0 and time.monotonic() - start < 10
        busy.close()


def resident(server) -> int:
    """Resident memory, including mapped files [bytes]."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


@pytest.mark.real_models
def test_unloading_gives_memory_back(files, tmp_path):
    """After a model of 98 MB is unloaded, its file is no longer mapped, and its cache is freed."""
    path = tmp_path / "models.toml"
    path.write_text(entry(files, "one"))
    with Server({"SERVER__DEFAULT_MODELS": "one", "ENGINE__KV_TOKENS": "8192"}, ("--config", str(path))) as server:
        complete(server)
        before = resident(server)
        for _ in range(3):
            assert server.complete("The history of the city of Paris. " * 100, max_tokens=2).status == 200
            taken = resident(server) - before
            assert taken > 90e6, "the weights are resident"
            assert cli("stop", MODEL, "--url", server.url).returncode == 0
            wait_until(lambda: resident(server) - before < 0.3 * taken, 10, f"{resident(server) - before} of {taken} bytes are still there")
