"""Adapters over a model: names, the field `lora`, default scales, adapters that come and go, and what is refused."""

import hashlib
import os
import threading
import time

import pytest
from harness import Server, cli, wait_until
from hub import REPOSITORY, Hub
from tiny import VOCAB, Tiny
from tiny_adapter import write_lora, write_peft

CHAT = "{% for m in messages %}{{ m.content }}{% endfor %}"
# A token per character, so that texts have tokens.
TOKENS = ["<unk>", "<s>", "</s>", *map(chr, range(33, 127)), "\u2581"]
TOKENIZER = {
    "tokenizer.chat_template": CHAT, "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": TOKENS + [f"<{i}>" for i in range(VOCAB - len(TOKENS))],
    "tokenizer.ggml.scores": [0.0] * VOCAB, "tokenizer.ggml.token_type": [2, 3, 3] + [1] * (VOCAB - 3),
}  # fmt: skip
PROMPT = [5, 17, 42, 9, 88, 31, 7, 120, 3, 64]
NAMES = ("base", "one", "two", "peft")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model, and its adapters `one` (a file, and a folder that says the same) and `two`."""
    folder = tmp_path_factory.mktemp("adapters")
    model = Tiny("llama")
    model.write(folder / "base.gguf", metadata=TOKENIZER)
    write_lora(folder / "one.gguf", model, seed=1)
    write_peft(folder / "peft", model, seed=1)
    write_lora(folder / "two.gguf", model, seed=2)
    write_lora(folder / "other.gguf", Tiny("llama", hidden=96, heads=6), seed=3)
    write_lora(folder / "arch.gguf", Tiny("qwen2"), seed=3)
    (folder / "cut.gguf").write_bytes((folder / "one.gguf").read_bytes()[:-64])
    paths = {name: f"{name}.gguf" for name in ("one", "two", "other", "arch", "cut")} | {"peft": "peft"}
    entry = lambda name, path: f'[[adapters]]\nid = "{name}"\nof = "base"\npath = "{folder / path}"\n'
    (folder / "config.toml").write_text(
        "".join(entry(name, path) for name, path in paths.items())
        + f'{entry("half", "one.gguf")}aliases = ["one-half"]\nscale = 0.5\n'
        + f'[[models]]\nid = "second"\nsource = {{ type = "file", path = "{folder / "second.gguf"}" }}\n'
    )
    Tiny("llama", seed=9).write(folder / "second.gguf", metadata=TOKENIZER)
    return folder


def settings(files, **more) -> dict:
    return {"SERVER__MODELS_DIR": str(files / "store"), "ENGINE__THREADS": "1", **more}


@pytest.fixture(scope="module")
def server(files):
    args = ("--model", str(files / "base.gguf"), "--config", str(files / "config.toml"))
    with Server(settings(files, SERVER__ADAPTER_FOLDERS=str(files)), args) as server:
        yield server


@pytest.fixture
def plain(server):
    """The server, with no default adapters before and after."""
    assert server.post("/lora-adapters", []).status == 200
    yield server
    assert server.post("/lora-adapters", []).status == 200


def scores(server, model: str, **fields) -> list[float]:
    """The log-probabilities of the prompt and of a greedy answer."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 1, **fields}
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    return reply.json()["choices"][0]["logprobs"]["token_logprobs"][1:]


def differ(one, other) -> bool:
    return max(abs(a - b) for a, b in zip(one, other)) > 1e-3


def refused(reply, words: str, param: str | None = "lora", status: int = 400) -> None:
    assert reply.status == status, reply.body
    error = reply.json()["error"]
    assert words in error["message"] and error["param"] == param, error


def listed(server) -> dict[str, dict]:
    return {adapter["name"]: adapter for adapter in server.get("/lora-adapters").json()}


def test_an_adapter_is_a_model_of_the_list(server, files):
    models = {model["id"]: model for model in server.get("/v1/models").json()["data"]}
    assert models["base"]["parent"] is None and models["base"]["root"] == "base"
    one = models["one"]
    assert (one["parent"], one["root"], one["kind"], one["loaded"]) == ("base", str(files / "one.gguf"), "chat", True)
    assert server.get("/v1/models/one-half").json()["id"] == "half"
    tags = {model["name"]: model for model in server.get("/api/tags").json()["models"]}
    assert tags["one:latest"]["adapter"] == "one.gguf" and "adapter" not in tags["base:latest"]
    shown = server.post("/api/show", {"model": "one"}).json()
    assert shown["adapter"] == "one.gguf" and shown["modelfile"].startswith("FROM base\nADAPTER ./one.gguf")
    status = {model["id"]: model for model in server.get("/admin/models").json()["data"]}["two"]
    assert (status["parent"], status["root"], status["state"]) == ("base", "base", "loaded")


def test_the_name_of_an_adapter_answers_with_it(plain):
    found = {name: scores(plain, name) for name in NAMES}
    assert differ(found["base"], found["one"]) and differ(found["one"], found["two"]) and differ(found["base"], found["two"])
    assert not differ(found["one"], found["peft"]), "the file and the folder say the same"
    half = scores(plain, "half")
    assert differ(half, found["one"]) and differ(half, found["base"])
    assert found == {name: scores(plain, name) for name in NAMES}, "again, from the cache"
    assert "model=one" in plain.output() and "adapters=half:0.5" in plain.output()


@pytest.mark.parametrize("path, body", [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}),
    ("/v1/responses", {"input": "abc", "max_output_tokens": 2}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}),
    ("/api/chat", {"messages": [{"role": "user", "content": "abc"}], "stream": False, "options": {"num_predict": 2}}),
    ("/api/generate", {"prompt": "abc", "stream": False, "options": {"num_predict": 2}}),
    ("/tokenize", {"prompt": "abc"}),
    ("/v1/embeddings", {"input": [PROMPT]}),
])  # fmt: skip
def test_every_door_takes_the_name(server, path, body):
    reply = server.post(path, {"model": "one", **body})
    assert reply.status == 200, reply.body


def test_a_request_chooses_adapters_by_id_or_by_name(plain):
    adapters = listed(plain)
    number = adapters["one"]["id"]
    one, base = scores(plain, "one"), scores(plain, "base")
    assert scores(plain, "base", lora=[{"id": number, "scale": 1}]) == one == scores(plain, "two", lora=[{"name": "one", "scale": 1.0}])
    assert scores(plain, "base", lora=[{"name": "one", "scale": 0.5}]) == scores(plain, "half")
    assert scores(plain, "one", lora=[{"name": "one", "scale": 0}]) == base
    assert scores(plain, "one", lora=[]) == one, "an empty list asks for nothing"
    both = scores(plain, "base", lora=[{"name": "one", "scale": 1}, {"name": "two", "scale": -0.5}])
    assert differ(both, one) and differ(both, scores(plain, "two"))
    other_order = scores(plain, "base", lora=[{"name": "two", "scale": -0.5}, {"name": "one", "scale": 1}])
    assert not differ(both, other_order)


def test_wrong_choices_are_refused_by_name(server):
    ask = lambda lora, model="base": server.post("/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 1, "lora": lora})
    refused(ask([{"id": 999, "scale": 1}]), "no adapter has the id 999")
    refused(ask([{"name": "nope", "scale": 1}]), "no adapter has the name `nope`")
    refused(ask([{"name": "base", "scale": 1}]), "no adapter has the name `base`")
    refused(ask([{"name": "one", "scale": 1}, {"name": "one", "scale": 1}]), "named twice")
    refused(ask([{"name": "one", "scale": 1}], "second"), "does not belong to the weights of the model `second`")
    refused(ask([{"name": "one"}]), "is required", "lora[0].scale")
    refused(ask([{"name": "one", "scale": 1e9}]), "must be from -1000 to 1000", "lora[0].scale")
    refused(ask([{"name": "one", "scale": 1}] * 9), "8 are allowed")
    refused(ask({"one": 1}), "must be an array")
    raw = server.request("POST", "/v1/completions", b'{"model": "base", "prompt": [1], "lora": [{"name": "one", "scale": 1e999}]}')
    assert raw.status == 400


def test_default_scales_are_those_of_requests_to_the_model_itself(plain):
    one, two, base = scores(plain, "one"), scores(plain, "two"), scores(plain, "base")
    number = listed(plain)["one"]["id"]
    answer = plain.post("/lora-adapters", [{"id": number, "scale": 1.0}]).json()
    assert {adapter["name"]: adapter["scale"] for adapter in answer if adapter["scale"]} == {"one": 1.0}
    assert scores(plain, "base") == one and scores(plain, "two") == two
    assert scores(plain, "base", lora=[{"name": "one", "scale": 0}]) == base
    refused(plain.post("/lora-adapters", [{"id": 999, "scale": 1}]), "no adapter has the id 999", None)
    assert scores(plain, "base") == one, "a refused list changes nothing"
    assert plain.post("/lora-adapters", {"id": 0}).status == 400
    plain.post("/lora-adapters", [])
    assert scores(plain, "base") == base


def test_an_adapter_that_cannot_be_used_is_named_with_its_file(server, files):
    for name, file, words in [("other", "other.gguf", "blk.0"), ("arch", "arch.gguf", "qwen2"), ("cut", "cut.gguf", "")]:
        reply = server.post("/v1/completions", {"model": name, "prompt": PROMPT, "max_tokens": 1})
        assert reply.status == 400, reply.body
        error = reply.json()["error"]
        assert error["code"] == "adapter_failed" and error["param"] == "model", error
        assert f"`{name}`" in error["message"] and file in error["message"] and words in error["message"], error
        assert str(files) not in error["message"]


def test_a_changed_file_is_read_again(files, tmp_path):
    model = Tiny("llama")
    write_lora(tmp_path / "a.gguf", model, seed=1)
    args = ("--model", str(files / "base.gguf"), "--adapter", f"a={tmp_path / 'a.gguf'}")
    with Server(settings(tmp_path), args) as server:
        first = scores(server, "a")
        write_lora(tmp_path / "b.gguf", model, seed=2)
        os.replace(tmp_path / "b.gguf", tmp_path / "a.gguf")
        time.sleep(1.2)
        second = scores(server, "a")
        assert differ(first, second)
        (tmp_path / "a.gguf").write_bytes(b"GGUF")
        time.sleep(1.2)
        assert server.post("/v1/completions", {"model": "a", "prompt": PROMPT}).status == 400
        write_lora(tmp_path / "a.gguf", model, seed=2)
        assert scores(server, "a") == second, "a failure is not kept"


def test_adapters_come_and_go_below_permitted_folders(server, files, tmp_path):
    load = lambda **body: server.post("/v1/load_lora_adapter", body)
    outside = tmp_path / "outside.gguf"
    write_lora(outside, Tiny("llama"))
    reply = load(lora_name="new", lora_path="one.gguf")
    assert reply.status == 200 and b"Success" in reply.body, reply.body
    assert scores(server, "new") == scores(server, "one")
    assert {model["id"]: model for model in server.get("/v1/models").json()["data"]}["new"]["parent"] == "base"
    refused(load(lora_name="new", lora_path="two.gguf"), "loaded already", "lora_name")
    assert load(lora_name="new", lora_path=str(files / "two.gguf"), load_inplace=True).status == 200
    assert scores(server, "new") == scores(server, "two")
    refused(load(lora_name="one", lora_path="two.gguf"), "belongs to a served model", "lora_name")
    refused(load(lora_name="bad", lora_path="cut.gguf"), "cut.gguf", "lora_path")
    refused(load(lora_name="far", lora_path=str(outside)), "server.adapter_folders", "lora_path")
    refused(load(lora_name="far", lora_path="../outside.gguf"), "server.adapter_folders", "lora_path")
    assert load(lora_name="x", lora_path="one.gguf", base_model_name="nope").status == 404
    assert "bad" not in listed(server)
    unload = lambda name: server.post("/v1/unload_lora_adapter", {"lora_name": name})
    assert unload("new").status == 200 and "new" not in listed(server)
    assert unload("new").status == 404 and server.post("/v1/completions", {"model": "new", "prompt": [1]}).status == 404
    refused(unload("one"), "the configuration", "lora_name")


def test_no_folder_means_no_loading(files):
    with Server(settings(files), ("--model", str(files / "base.gguf"))) as server:
        refused(server.post("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "one.gguf"}), "it lists none", "lora_path")


def test_keys_cover_adapters_and_only_operators_change_them(files, tmp_path):
    env = settings(files, AUTH__KEYS_FILE=str(tmp_path / "keys.toml"), SERVER__ADAPTER_FOLDERS=str(files))
    key = lambda *args: cli("keys", "add", *args, env=env).stdout.split()[-1]
    limited, admin = key("limited", "--model", "base", "--model", "one"), key("boss", "--admin")
    bearer = lambda key: {"authorization": f"Bearer {key}"}
    args = ("--model", str(files / "base.gguf"), "--config", str(files / "config.toml"))
    with Server(env, args) as server:
        ids = lambda key: {model["id"] for model in server.get("/v1/models", headers=bearer(key)).json()["data"]}
        assert ids(limited) == {"base", "one"} and {"two", "half"} < ids(admin)
        found = server.get("/v1/models/one", headers=bearer(limited)).json()
        assert found["root"] == "one.gguf", "a client learns no path"
        assert [adapter["name"] for adapter in server.get("/lora-adapters", headers=bearer(limited)).json()] == ["one"]

        def ask(model, **more):
            return server.post("/v1/completions", {"model": model, "prompt": [1], "max_tokens": 1, **more}, headers=bearer(limited))

        assert ask("one").status == 200 and ask("two").status == 403
        assert ask("base", lora=[{"name": "one", "scale": 1}]).status == 200
        refused(ask("base", lora=[{"name": "two", "scale": 1}]), "may not use the model `two`", "lora", 403)
        for path, body in [("/lora-adapters", []), ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "one.gguf"}),
                           ("/v1/unload_lora_adapter", {"lora_name": "a"})]:  # fmt: skip
            assert server.post(path, body, headers=bearer(limited)).status == 403
        assert server.post("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "one.gguf"}, headers=bearer(admin)).status == 200
        server.headers_of_checks = bearer(admin)


@pytest.mark.parametrize("args, words", [
    (["--adapter", "a=missing.gguf"], "no such file or folder"),
    (["--adapter", "a@nope=one.gguf"], "there is no model `nope`"),
    (["--adapter", "base=one.gguf"], "also belongs to the model `base`"),
    (["--adapter", "a=one.gguf", "--adapter", "a=two.gguf"], "two adapters have this id"),
    (["--adapter", "one.gguf"], "NAME=PATH"),
    (["--adapter", "a=cut.gguf"], "cut.gguf"),
    (["--adapter", "a=hf:o/r"], "`penstock pull --adapter hf:o/r` fetches it"),
    (["--adapter", "a=https://o/r"], "addresses are not fetched"),
])  # fmt: skip
def test_mistakes_are_reported_at_start(files, args, words):
    done = cli("serve", "--port", "0", "--model", "base.gguf", *args, env=settings(files), cwd=files)
    assert done.returncode != 0 and words in done.stderr, done.stderr


def test_an_adapter_of_a_hub_is_fetched_once_and_used(files, tmp_path, monkeypatch):
    peft = {path.name: path.read_bytes() for path in (files / "peft").iterdir()}
    hub = Hub({**peft, "README.md": b"an adapter"})
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    name, env = f"hf:{REPOSITORY}", settings(tmp_path)
    run = lambda *args: cli(*args, env=env, cwd=files)
    try:
        fetched = run("pull", "--adapter", name)
        assert fetched.returncode == 0 and "is on disk" in fetched.stdout, fetched.stderr
        assert run("pull", "--adapter", name).returncode == 0
        assert len([path for path in hub.asked if path.endswith("/adapter_model.safetensors")]) == 1, "what is on disk is verified"
        refused = run("pull", "--adapter", f"{name}/other")
        assert refused.returncode != 0 and "other/adapter_config.json" in refused.stderr, refused.stderr
    finally:
        hub.stop()
    args = ("--model", str(files / "base.gguf"), "--adapter", f"far={name}", "--adapter", f"near={files / 'peft'}")
    with Server(env, args) as server:
        assert scores(server, "far") == scores(server, "near") and differ(scores(server, "far"), scores(server, "base"))
    assert run("rm", "--adapter", name).returncode == 0
    gone = run("rm", "--adapter", name)
    assert gone.returncode != 0 and "is not on disk" in gone.stderr


def test_a_chat_in_the_terminal_takes_an_adapter(files):
    fixed = ("--temperature", "0", "--max-tokens", "8")
    ask = lambda *args: cli("run", "base.gguf", *fixed, *args, "abc", env=settings(files), cwd=files)
    plain, adapted = ask(), ask("--adapter", "one.gguf")
    assert plain.returncode == adapted.returncode == 0, adapted.stderr
    assert plain.stdout != adapted.stdout
    assert "no such file" in ask("--adapter", "missing.gguf").stderr


def test_more_adapters_than_places_and_memory_are_all_served(files, tmp_path):
    model, names = Tiny("llama"), [f"a{i}" for i in range(12)]
    for i, name in enumerate(names):
        write_lora(tmp_path / f"{name}.gguf", model, seed=i + 1)
    (tmp_path / "config.toml").write_text("".join(f'[[adapters]]\nid = "{name}"\npath = "{tmp_path / name}.gguf"\n' for name in names))
    args = ("--model", str(files / "base.gguf"), "--config", str(tmp_path / "config.toml"))
    with Server(settings(tmp_path, ENGINE__MAX_ADAPTERS="2", ENGINE__ADAPTER_CACHE_BYTES=str(1 << 20)), args) as server:
        alone = {name: scores(server, name) for name in names}
        found, faults = {}, []

        def work(name):
            try:
                found.setdefault(name, []).append(scores(server, name))
            except BaseException as error:  # noqa: BLE001
                faults.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in names * 2]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not faults and all(results == [alone[name]] * 2 for name, results in found.items())
        metrics = server.metrics()
        value = lambda name: next(value for (key, *_), value in metrics.items() if key == name)
        assert value("penstock_adapter_loads_total") >= 12 and value("penstock_adapter_host_bytes") <= 1 << 20
        text = server.get("/metrics").body.decode()
        assert 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""}' in text


def test_running_and_waiting_adapters_are_told_to_gateways(server):
    over = threading.Event()

    def work():
        while not over.is_set():
            server.post("/v1/completions", {"model": "one", "prompt": PROMPT, "max_tokens": 200, "n": 16, "ignore_eos": True})

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: 'running_lora_adapters="one"' in server.get("/metrics").body.decode(), 30, "the adapter runs")
    finally:
        over.set()
        thread.join()
    gone = lambda: 'running_lora_adapters="",waiting_lora_adapters=""' in server.get("/metrics").body.decode()
    wait_until(gone, 10, "the request is over")


def test_an_activated_adapter_changes_the_prompt_from_its_last_invocation(files, tmp_path):
    model = Tiny("llama")
    ids = b"".join(i.to_bytes(4, "little") for i in (200, 201))
    array = (9).to_bytes(4, "little") + (4).to_bytes(4, "little") + (2).to_bytes(8, "little") + ids
    write_lora(tmp_path / "alora.gguf", model, seed=1, **{"adapter.alora.invocation_tokens": array})
    args = ("--model", str(files / "base.gguf"), "--adapter", f"alora={tmp_path / 'alora.gguf'}")
    with Server(settings(tmp_path), args) as server:
        def of(model, prompt):
            body = {"model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 1}
            return server.post("/v1/completions", body).json()["choices"][0]["logprobs"]["token_logprobs"][1:]

        assert of("alora", PROMPT) == of("base", PROMPT), "without its tokens it is off"
        prompt = [*PROMPT, 200, 201, 11, 12, 13]
        with_it, without = of("alora", prompt), of("base", prompt)
        assert with_it[: len(PROMPT)] == without[: len(PROMPT)] and differ(with_it[len(PROMPT) + 1 :], without[len(PROMPT) + 1 :])


def test_sighup_takes_adapters_in_and_out(files, tmp_path):
    config = tmp_path / "config.toml"
    entry = lambda name: f'[[adapters]]\nid = "{name}"\npath = "{files / "one.gguf"}"\n'
    config.write_text(entry("a"))
    with Server(settings(tmp_path), ("--model", str(files / "base.gguf"), "--config", str(config))) as server:
        before = scores(server, "a")
        config.write_text(entry("b"))
        server.process.send_signal(1)
        wait_until(lambda: "b" in listed(server) and "a" not in listed(server), 10, "the list follows")
        assert scores(server, "b") == before and server.post("/v1/completions", {"model": "a", "prompt": [1]}).status == 404


def upload(server, path) -> str:
    """Uploads a file. Returns its digest."""
    data = path.read_bytes()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert server.request("POST", f"/api/blobs/{digest}", data, {"content-type": "application/octet-stream"}).status == 201
    return digest


def test_ollama_makes_models_with_an_adapter(files, tmp_path):
    with Server(settings(tmp_path), ("--model", str(files / "base.gguf"), "--config", str(files / "config.toml"))) as server:
        one = scores(server, "one")
        base = {"base.gguf": upload(server, files / "base.gguf")}
        create = lambda model, **body: server.post("/api/create", {"model": model, "stream": False, **body})
        assert create("ground", files=base).status == 200
        assert create("pirate", **{"from": "ground"}, adapters={"one.gguf": upload(server, files / "one.gguf")}).status == 200
        folder = {name: upload(server, files / "peft" / name) for name in ("adapter_config.json", "adapter_model.safetensors")}
        assert create("folder", files=base, adapters=folder).status == 200
        assert server.post("/api/copy", {"source": "pirate", "destination": "copy"}).status == 200
        assert scores(server, "pirate") == one == scores(server, "copy") and not differ(scores(server, "folder"), one)
        assert differ(scores(server, "ground"), one)
        shown = server.post("/api/show", {"model": "pirate"}).json()
        assert shown["adapter"] == "adapter.gguf" and "ADAPTER ./adapter.gguf" in shown["modelfile"]
        for wrong, words in [
            ({"a.gguf": base["base.gguf"]}, "holds no adapter"),
            ({"a.txt": base["base.gguf"]}, "no file of an adapter"),
            ({"adapter_config.json": folder["adapter_config.json"]}, "is one GGUF file, or the files"),
            ({"a.gguf": "sha256:" + "0" * 64}, "upload it to /api/blobs first"),
        ]:
            reply = create("wrong", **{"from": "ground"}, adapters=wrong)
            assert reply.status == 400 and words in reply.json()["error"], reply.body
        assert "has an adapter already" in create("twice", **{"from": "pirate"}, adapters=folder).json()["error"]
        (tmp_path / "Modelfile").write_text(f"FROM ground\nADAPTER {files / 'peft'}\n")
        done = cli("create", "local", "-f", str(tmp_path / "Modelfile"), env=settings(tmp_path))
        assert done.returncode == 0, done.stderr
        wait_until(lambda: "local" in {model["id"] for model in server.get("/v1/models").json()["data"]}, 15, "the list follows")
        assert not differ(scores(server, "local"), one)
