"""Models that are made on this machine: /api/create, /api/copy, blobs, `penstock create`, `cp` and `import ollama`."""

import hashlib
import http.client
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard
from harness import MODEL, Server, cli, wait_until
from hub import REPOSITORY, Hub

QUESTION = "What is the capital of France?"
SYSTEM = "You are Mario from Super Mario Bros."


def data_home() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def link(one, other):
    """Makes a hard link, or a copy on another file system."""
    try:
        os.link(os.path.realpath(one), other)
    except OSError:
        shutil.copyfile(one, other)


def store_with_model(folder: Path) -> Path:
    """Makes a store of its own with a link to the default model, and returns its folder."""
    store = folder / "models"
    source = data_home() / "penstock" / "models" / "smollm2+135m"
    shutil.copytree(source, store / source.name, copy_function=link)
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_with_model(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def maker(store):
    config = {"SERVER__DEFAULT_MODELS": MODEL, "SERVER__MODELS_DIR": str(store), "ENGINE__KV_TOKENS": "8192", "ENGINE__CONTEXT": "2048"}
    with Server(config) as running:
        yield running


def lines(reply) -> list[dict]:
    assert reply.status == 200, reply.body
    return [json.loads(line) for line in reply.body.splitlines()]


def refused(reply, *words: str, status=400) -> str:
    text = reply.json()["error"]
    assert reply.status == status and all(word in text for word in words), (reply.status, text)
    return text


def make(server, name, **fields):
    reply = server.post("/api/create", {"model": name, "stream": False, **fields})
    assert reply.status == 200 and reply.json() == {"status": "success"}, reply.body


def delete(server, name):
    assert server.request("DELETE", "/api/delete", {"model": name}).status == 200


def tags(server) -> set[str]:
    return {model["name"] for model in server.get("/api/tags").json()["models"]}


def prompt(server, model, messages) -> str:
    return server.post("/apply-template", {"model": model, "messages": messages}).json()["prompt"]


def say(content=QUESTION) -> list[dict]:
    return [{"role": "user", "content": content}]


def names(store: Path) -> set[str]:
    """What the store holds, apart from locks and uploads."""
    return {entry.name for entry in store.iterdir()} - {".locks", ".blobs"}


# The life of a variant


def test_a_variant_is_made_listed_shown_served_and_deleted(maker, store):
    fields = {"from": MODEL, "system": SYSTEM, "parameters": {"temperature": 0, "num_predict": 5, "stop": ["XYZ"]}}
    reply = maker.post("/api/create", {"model": "mario", **fields})
    stages = lines(reply)
    assert stages[-1] == {"status": "success"} and {"status": "writing manifest"} in stages
    assert "mario:latest" in tags(maker)
    listed = next(model for model in maker.get("/v1/models").json()["data"] if model["id"] == "mario")
    assert listed["parent"] == MODEL
    shown = maker.post("/api/show", {"model": "mario:latest"}).json()
    assert shown["system"] == SYSTEM and shown["details"]["parent_model"] == MODEL
    assert shown["modelfile"].startswith(f"FROM {MODEL}\n") and f'SYSTEM """{SYSTEM}"""' in shown["modelfile"]
    assert "stop                           \"XYZ\"" in shown["parameters"], shown["parameters"]
    assert SYSTEM in prompt(maker, "mario", say()) and SYSTEM not in prompt(maker, MODEL, say())
    assert "Own." in prompt(maker, "mario", [{"role": "system", "content": "Own."}, *say()])
    for path, field in (("/api/chat", "message"), ("/v1/chat/completions", "choices"), ("/v1/messages", "content")):
        more = {"max_tokens": 5} if path == "/v1/messages" else {}
        reply = maker.post(path, {"model": "mario", "messages": say(), "stream": False, **more})
        assert reply.status == 200 and reply.json()[field], (path, reply.body)
    usage = maker.post("/v1/chat/completions", {"model": "mario", "messages": say()}).json()["usage"]
    assert usage["completion_tokens"] <= 5, "num_predict holds at every door"
    weights = {path.stat().st_ino for path in (store / "smollm2+135m").glob("*.gguf")}
    assert {path.stat().st_ino for path in (store / "mario").glob("*.gguf")} == weights, "the weights are linked"
    delete(maker, "mario")
    assert "mario:latest" not in tags(maker) and names(store) == {"smollm2+135m"}
    refused(maker.post("/api/show", {"model": "mario"}), "model 'mario' not found", status=404)


def num_loads(server) -> int:
    """How often the default model was loaded."""
    text = server.get("/metrics").body.decode()
    return int(re.search(rf'^penstock_model_load_seconds_count\{{[^}}]*"{MODEL}"[^}}]*\}} (\d+)$', text, re.M)[1])


def test_making_a_variant_does_not_disturb_the_loaded_model(maker):
    assert maker.chat().status == 200
    loads = num_loads(maker)
    make(maker, "quiet", **{"from": MODEL, "system": "Be quiet."})
    assert {"quiet:latest", f"{MODEL}"} <= {model["name"] for model in maker.get("/api/ps").json()["models"]}
    assert "Be quiet." in prompt(maker, "quiet", say())
    assert maker.post("/api/chat", {"model": "quiet", "messages": say(), "stream": False}).status == 200
    delete(maker, "quiet")
    assert maker.chat().status == 200
    assert num_loads(maker) == loads, "the weights were loaded once"


def test_a_variant_inherits_and_outlives_its_origin(maker):
    make(maker, "first", **{"from": MODEL, "system": "One.", "parameters": {"temperature": 0.5}})
    make(maker, "second", **{"from": "first:latest", "parameters": {"top_k": 3}})
    delete(maker, "first")
    shown = maker.post("/api/show", {"model": "second"}).json()
    assert shown["system"] == "One." and "temperature" in shown["parameters"] and "top_k" in shown["parameters"]
    assert "One." in prompt(maker, "second", say())
    make(maker, "second", **{"from": "second", "system": "Two."})
    assert "Two." in prompt(maker, "second", say()), "a model may be made anew from itself"
    delete(maker, "second")


def test_messages_and_licences_come_along(maker):
    examples = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "two"}]
    make(maker, "sums", **{"from": MODEL, "messages": examples, "license": ["MIT", "more"], "system": "Sum."})
    rendered = prompt(maker, "sums", say("2+2?"))
    assert rendered.index("Sum.") < rendered.index("1+1?") < rendered.index("two") < rendered.index("2+2?")
    shown = maker.post("/api/show", {"model": "sums"}).json()
    assert shown["messages"] == examples and shown["license"] == "MIT\nmore"
    delete(maker, "sums")


def test_the_seed_of_a_model_makes_answers_equal(maker):
    make(maker, "seeded", **{"from": MODEL, "parameters": {"seed": 7, "temperature": 1.5, "num_predict": 16}})
    ask = lambda **more: maker.post("/api/generate", {"model": "seeded", "prompt": "Tell me", "stream": False, **more}).json()["response"]
    assert len({ask() for _ in range(3)}) == 1 and ask() == ask(options={"seed": 7})
    assert len({ask(options={"seed": seed}) for seed in range(4)}) > 1
    delete(maker, "seeded")


GO = """{{- range $i, $_ := .Messages }}{{- $last := eq (len (slice $.Messages $i)) 1 }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ if and (ne .Role "assistant") $last }}<|im_start|>assistant
{{ end }}{{ end }}"""


def test_templates_in_go_are_translated_and_shown_as_they_were_given(maker):
    make(maker, "go", **{"from": MODEL, "template": GO})
    assert prompt(maker, "go", say("a")) == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert maker.post("/api/show", {"model": "go"}).json()["template"] == GO
    make(maker, "go", **{"from": MODEL, "template": "[INST] {{ .System }} {{ .Prompt }} [/INST]", "system": "S"})
    assert prompt(maker, "go", say("a")) == "[INST] S a [/INST]"
    text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    make(maker, "go", **{"from": MODEL, "template": text})
    assert prompt(maker, "go", say("a")) == "<user>a"
    body = {"model": MODEL, "prompt": "a", "template": "U: {{ .Prompt }}\nA: ", "stream": False, "options": {"num_predict": 1}}
    assert maker.post("/api/generate", body).status == 200, "a request's template, too"
    delete(maker, "go")


def test_a_variant_survives_a_restart_and_may_be_served_by_name(store):
    config = {"SERVER__MODELS_DIR": str(store), "ENGINE__KV_TOKENS": "8192", "ENGINE__CONTEXT": "2048"}
    made = cli("create", "kept:v1", "-f", "-", stdin=f"FROM {MODEL}\nSYSTEM Kept.\n", env=config)
    assert made.returncode == 0 and "kept:v1 made" in made.stdout, made.stderr
    with Server(config, args=("--model", "kept:v1")) as server:
        assert "Kept." in prompt(server, "kept:v1", say())
        refused(server.request("DELETE", "/api/delete", {"model": "kept:v1"}), "the server was started with it", status=409)
    assert cli("rm", "kept:v1", env=config).returncode == 0


# Copies


def test_a_model_is_copied(maker, store):
    assert maker.post("/api/copy", {"source": MODEL, "destination": "user/copy:v2"}).status == 200
    assert "user/copy:v2" in tags(maker)
    assert prompt(maker, "user/copy:v2", say()) == prompt(maker, MODEL, say())
    refused(maker.post("/api/copy", {"source": "nope", "destination": "x"}), "model 'nope' not found", status=404)
    refused(maker.post("/api/copy", {"source": MODEL, "destination": "../x"}), "the name", "must begin")
    refused(maker.post("/api/copy", {"source": "user/copy:v2", "destination": MODEL}), "belongs to a model that is fetched")
    delete(maker, "user/copy:v2")
    assert names(store) == {"smollm2+135m"}


def test_models_may_be_made_copied_and_deleted_at_once(maker, store):
    """One after the other, since making a model takes milliseconds."""
    body = {"from": MODEL, "system": "At once.", "stream": False}
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda no: maker.post("/api/create", {"model": f"once:{no % 3}"} | body), range(12)))
        copies = list(pool.map(lambda no: maker.post("/api/copy", {"source": "once:0", "destination": f"copy:{no % 3}"}), range(9)))
        mixed = list(pool.map(lambda no: other_life(maker, no), range(16)))
    assert [reply.status for reply in made + copies] == [200] * 21, [reply.body for reply in made + copies if reply.status != 200]
    # 409: a model that a request uses is not deleted; 503: one that is being deleted takes no requests
    assert {reply.status for reply in mixed} <= {200, 404, 409, 503}, [reply.body for reply in mixed]
    assert {reply.status for reply in mixed[0::4]} == {200}, "making it is never refused"
    for name in tags(maker) & {f"{name}:{no}" for name in ("once", "copy") for no in range(3)}:
        delete(maker, name)
    assert names(store) == {"smollm2+135m"}


def other_life(server, no):
    """Makes, copies, deletes or asks the same model."""
    return [
        lambda: server.post("/api/create", {"model": "once:0", "from": MODEL, "stream": False}),
        lambda: server.post("/api/copy", {"source": "once:0", "destination": "copy:0"}),
        lambda: server.request("DELETE", "/api/delete", {"model": "once:0"}),
        lambda: server.post("/api/chat", {"model": "once:0", "messages": say(), "stream": False, "options": {"num_predict": 2}}),
    ][no % 4]()


def test_a_model_that_is_replaced_is_never_gone(maker, store):
    """Requests get the old model or the new one, while others replace it."""
    make(maker, "swap", **{"from": MODEL, "system": "One."})
    loads, template = num_loads(maker), {"template": "{{ .System }} {{ .Prompt }}"}
    variants = [{"system": "One."}, {"system": "Two.", **template}, {"system": "Three.", "parameters": {"num_ctx": 512}}]

    def replace(no):
        return maker.post("/api/create", {"model": "swap", "from": MODEL, "stream": False, **variants[no % 3]})

    def ask(no):
        body = {"model": "swap", "messages": say(), "max_tokens": 1}
        doors = [("/v1/chat/completions", body), ("/api/show", {"model": "swap"}), ("/tokenize", {"model": "swap", "prompt": "a"})]
        return maker.post(*doors[no % 3])

    with ThreadPoolExecutor(6) as pool:
        replaced = pool.map(replace, range(40))
        asked = list(pool.map(ask, range(300)))
        assert {reply.status for reply in replaced} == {200}
    assert [reply.body for reply in asked if reply.status != 200] == []
    assert num_loads(maker) == loads, "the weights were loaded once"
    delete(maker, "swap")
    assert names(store) == {"smollm2+135m"}


# The context


def test_the_context_of_a_made_model_is_its_own_at_all_doors(maker):
    make(maker, "short", **{"from": MODEL, "parameters": {"num_ctx": 64}})
    loads, long = num_loads(maker), "river " * 80
    for path, fields in (
        ("/v1/chat/completions", {"messages": say(long), "max_tokens": 2}),
        ("/v1/completions", {"prompt": long, "max_tokens": 2}),
        ("/v1/messages", {"messages": say(long), "max_tokens": 2}),
        ("/v1/embeddings", {"input": long}),
        ("/api/chat", {"messages": say(long), "options": {"num_predict": 2}}),
        ("/api/generate", {"prompt": long, "options": {"num_predict": 2}}),
    ):
        assert maker.post(path, {"model": MODEL, **fields}).status == 200, path
        reply = maker.post(path, {"model": "short", **fields})
        assert reply.status == 400 and b"maximum context length is 64 tokens" in reply.body and b"larger num_ctx" in reply.body, reply.body
    whole = maker.post("/v1/completions", {"model": "short", "prompt": "a river", "ignore_eos": True, "max_tokens": 500}).json()
    assert whole["usage"]["total_tokens"] == 64 and whole["choices"][0]["finish_reason"] == "length"
    shown = maker.post("/api/show", {"model": "short"}).json()
    assert shown["model_info"]["llama.context_length"] == 64 and "num_ctx                        64" in shown["parameters"]
    listed = {model["id"]: model["max_model_len"] for model in maker.get("/v1/models").json()["data"]}
    assert (listed["short"], listed[MODEL]) == (64, 2048)
    running = {model["name"]: model["context_length"] for model in maker.get("/api/ps").json()["models"]}
    assert (running["short:latest"], running[MODEL]) == (64, 2048)
    assert maker.post("/tokenize", {"model": "short", "prompt": "a"}).json()["max_model_len"] == 64
    assert num_loads(maker) == loads, "both names share the weights"
    delete(maker, "short")


def test_a_context_that_cannot_be_had_is_named(maker, store):
    note = "num_ctx is 100000, but the context has at most the 2048 tokens that the server is set to"
    stages = lines(maker.post("/api/create", {"model": "long", "from": MODEL, "parameters": {"num_ctx": 100_000}}))
    assert any(note in stage["status"] for stage in stages), stages
    assert maker.post("/api/show", {"model": "long"}).json()["model_info"]["llama.context_length"] == 2048
    assert maker.post("/v1/chat/completions", {"model": "long", "messages": say(), "max_tokens": 1}).status == 200
    delete(maker, "long")
    done = run(store, "create", "long", "-f", "-", stdin=f"FROM {MODEL}\nPARAMETER num_ctx 100000\n")
    assert done.returncode == 0 and "at most the 8192 tokens that the model was made for" in done.stderr, done.stderr
    assert run(store, "rm", "long").returncode == 0


# Uploads


def weights(store: Path) -> bytes:
    return next((store / "smollm2+135m").glob("*.gguf")).read_bytes()


def blob_path(data: bytes) -> str:
    return f"/api/blobs/sha256:{hashlib.sha256(data).hexdigest()}"


def test_an_upload_becomes_a_model(maker, store):
    data = weights(store)
    path = blob_path(data)
    assert maker.request("HEAD", path).status == 404
    assert maker.request("POST", path, data).status == 201
    assert maker.request("HEAD", path).status == 200 and maker.request("POST", path, data).status == 200
    make(maker, "uploaded", files={"model.gguf": path.rsplit("/", 1)[1]}, system="Up.")
    assert "Up." in prompt(maker, "uploaded", say())
    assert maker.post("/api/chat", {"model": "uploaded", "messages": say(), "stream": False}).status == 200
    delete(maker, "uploaded")
    assert maker.request("HEAD", path).status == 404, "the upload goes with its only model"


def test_wrong_uploads_are_refused_and_leave_nothing(maker, store):
    data = b"some bytes"
    wrong = f"/api/blobs/sha256:{'0' * 64}"
    refused(maker.request("POST", wrong, data), "digest mismatch", "sha256:0000", hashlib.sha256(data).hexdigest())
    for digest in ("sha256:00", "nope", "sha256:" + "g" * 64, "sha256:..%2F..%2Fetc%2Fpasswd"):
        refused(maker.request("POST", f"/api/blobs/{digest}", data), "invalid digest format")
        assert maker.request("HEAD", f"/api/blobs/{digest}").status == 400
    connection = http.client.HTTPConnection("127.0.0.1", maker.port, timeout=30)
    connection.putrequest("POST", blob_path(data))
    connection.putheader("content-length", str(1 << 60))
    connection.endheaders()
    reply = connection.getresponse()
    assert reply.status == 400 and b"are free" in reply.read()
    connection.close()
    connection = http.client.HTTPConnection("127.0.0.1", maker.port, timeout=30)
    connection.putrequest("POST", blob_path(data))
    connection.putheader("content-length", "1000")
    connection.endheaders(data)
    wait_until(lambda: any((store / ".blobs").iterdir()), 5, "the upload begins")
    connection.close()
    wait_until(lambda: not any((store / ".blobs").iterdir()), 10, "the upload that was cut is removed")
    page = {"origin": "http://evil.example", "content-type": "text/plain"}
    assert maker.request("POST", blob_path(data), data, headers=page).status in (403, 415)


def test_a_file_that_is_no_model_is_refused(maker, store):
    data = b"no model"
    assert maker.request("POST", blob_path(data), data).status == 201
    digest = blob_path(data).rsplit("/", 1)[1]
    before = names(store)
    create = lambda **fields: maker.post("/api/create", {"model": "bad", "stream": False, **fields})
    refused(create(files={"model.gguf": digest}), "GGUF")
    refused(create(files={"model.gguf": f"sha256:{'0' * 64}"}), "does not exist: upload it")
    refused(create(files={"../model.gguf": digest}), "leads out of the model")
    refused(create(files={"model.safetensors": digest}), "is not a GGUF file")
    refused(create(files={"model.gguf": "md5:00"}), "invalid digest format")
    assert names(store) == before and "bad:latest" not in tags(maker)


def test_weights_are_quantised(maker, store):
    make(maker, "small", **{"from": MODEL, "quantize": "q8_0"})
    shown = maker.post("/api/show", {"model": "small", "verbose": True}).json()
    assert shown["details"]["quantization_level"] == "Q8_0"
    kinds = {tensor["type"] for tensor in shown["tensors"]}
    assert "Q8_0" in kinds and all(tensor["name"] and tensor["shape"] for tensor in shown["tensors"])
    assert "tensors" not in maker.post("/api/show", {"model": "small"}).json()
    assert maker.post("/api/chat", {"model": "small", "messages": say(), "stream": False}).status == 200
    delete(maker, "small")
    reply = maker.post("/api/create", {"model": "x", "from": MODEL, "quantize": "Q9", "stream": False})
    refused(reply, "`Q9` is no file type: expected one of")


# Requests that are wrong


def test_wrong_requests_are_refused_by_name(maker, store):
    before = names(store)
    create = lambda **fields: maker.post("/api/create", {"model": "bad", "stream": False, **fields})
    refused(create(), "neither 'from' or 'files'")
    refused(create(**{"from": "nope"}), "model 'nope' not found", status=404)
    refused(create(**{"from": "bad"}), "would be made from itself")
    for path in ("/etc/passwd", "../x", "./model.gguf", "~/x", "model.gguf"):
        refused(create(**{"from": path}), "not a path")
    refused(create(**{"from": MODEL, "adapters": {"lora.gguf": "sha256:00"}}), "invalid digest format")
    refused(create(**{"from": MODEL, "parameters": {"tempreature": 1}}), "unknown parameter 'tempreature': did you mean temperature?")
    refused(create(**{"from": MODEL, "parameters": {"temperature": "hot"}}), "must be a number")
    refused(create(**{"from": MODEL, "template": "a\n{{ .Nope }}"}), "`template`: line 2: the field `.Nope`")
    refused(create(**{"from": MODEL, "template": "{% if %}"}), "`template`")
    refused(create(**{"from": MODEL, "messages": [{"role": "tool", "content": "x"}]}), "`messages[0].role`")
    refused(create(**{"from": MODEL, "sytem": "x"}), "`sytem`", "`system`")
    for name in ("../x", "a b", "x.gguf", "hf:a/b", "a:b:c"):
        refused(maker.post("/api/create", {"model": name, "from": MODEL, "stream": False}), "the name")
    stages = lines(maker.post("/api/create", {"model": MODEL, "from": MODEL}))
    assert "belongs to a model that is fetched" in stages[-1]["error"] and len(stages) == 1
    refused(maker.post("/api/push", {"model": MODEL}), "does not upload models", status=501)
    assert names(store) == before


def test_models_are_made_only_by_those_who_may_manage_them(store, tmp_path):
    config = {"SERVER__MODELS_DIR": str(store), "SERVER__DEFAULT_MODELS": MODEL}
    with Server(config) as server:
        far = {"x-forwarded-for": "203.0.113.1"}
        for method, path, body in (
            ("POST", "/api/create", {"model": "x", "from": MODEL}),
            ("POST", "/api/copy", {"source": MODEL, "destination": "x"}),
            ("POST", blob_path(b"x"), b"x"),
            ("HEAD", blob_path(b"x"), None),
        ):
            assert server.request(method, path, body, headers=far).status == 403, path


def test_bodies_may_be_compressed_with_zstd(maker):
    pack = zstandard.ZstdCompressor().compress
    head = {"content-encoding": "zstd", "content-type": "application/json"}
    body = json.dumps({"model": MODEL, "messages": say(), "stream": False, "options": {"num_predict": 1}}).encode()
    assert maker.request("POST", "/api/chat", pack(body), headers=head).status == 200
    assert maker.request("POST", "/v1/chat/completions", pack(body.replace(b'"options"', b'"metadata"')), headers=head).status in (200, 400)
    bomb = pack(b" " * (1 << 30))
    assert len(bomb) < 1 << 20 and maker.request("POST", "/api/chat", bomb, headers=head).status == 413
    refused(maker.request("POST", "/api/chat", b"no zstd", headers=head), "could not be decompressed")


# The command line


def run(store: Path, *args, **more):
    return cli(*args, env={"SERVER__MODELS_DIR": str(store)}, **more)


def test_the_command_line_makes_copies_lists_and_removes(store, tmp_path):
    modelfile = tmp_path / "Modelfile"
    settings = f'PARAMETER temperature 0\nPARAMETER num_keep 4\nSYSTEM """{SYSTEM}"""\nMESSAGE user Hi\n'
    modelfile.write_text(f"# Mario\nFROM {MODEL}\n{settings}")
    done = run(store, "create", "mario", "-f", modelfile)
    assert done.returncode == 0 and "mario made" in done.stdout, done.stderr
    assert "line 4: the parameter num_keep changes nothing" in done.stderr
    assert run(store, "cp", "mario:latest", "luigi").returncode == 0
    listed = {model["id"]: model for model in json.loads(run(store, "list", "--json").stdout)}
    assert listed["mario"]["on_disk"] and listed["mario"]["from"] == MODEL and listed["luigi"]["from"] == "mario"
    assert "made from smollm2:135m" in run(store, "list").stdout
    assert run(store, "show", "mario:latest").returncode == 0
    (tmp_path / "chat.json").write_text(json.dumps({"messages": say()}))
    rendered = run(store, "render", "mario", "--input", tmp_path / "chat.json")
    assert rendered.returncode == 0 and QUESTION in rendered.stdout, rendered.stderr
    answer = run(store, "run", "luigi", QUESTION)
    assert answer.returncode == 0 and answer.stdout.strip(), answer.stderr
    removed = run(store, "rm", "mario:latest")
    assert removed.returncode == 0 and "0 B freed" in removed.stdout, removed.stdout + removed.stderr
    assert run(store, "rm", "luigi").returncode == 0 and names(store) == {"smollm2+135m"}


def test_latest_is_understood_on_the_command_line(store):
    for name in ("smollm2:latest", "smollm2"):
        done = run(store, "show", name, "--json")
        assert done.returncode == 0 and json.loads(done.stdout)["id"] == MODEL, done.stderr


def test_a_model_to_start_from_that_is_not_on_disk_is_fetched(store, monkeypatch):
    hub, before = Hub({"tiny-Q8_0.gguf": weights(store)}), names(store)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    origin = f"hf:{REPOSITORY}:Q8_0"
    try:
        done = run(store, "create", "far", "-f", "-", stdin=f"FROM {origin}\nSYSTEM Far.\n")
        assert done.returncode == 0 and "far made" in done.stdout, done.stderr
        files = [path for path in hub.asked if "/resolve/" in path]
        assert run(store, "create", "farther", "-f", "-", stdin=f"FROM {origin}\n").returncode == 0
        assert len(files) == 1 and [path for path in hub.asked if "/resolve/" in path] == files, "it is fetched once"
        refused = run(store, "create", "gone", "-f", "-", stdin=f"FROM hf:{REPOSITORY}:Q2_K\n")
        assert refused.returncode == 1 and "Q2_K" in refused.stderr and "gone" not in names(store), refused.stderr
    finally:
        hub.stop()
    for name in ("far", "farther", origin):
        assert run(store, "rm", name).returncode == 0
    assert names(store) == before


def test_a_file_becomes_a_model(store, tmp_path):
    own = tmp_path / "own.gguf"
    link(next((store / "smollm2+135m").glob("*.gguf")), own)
    (tmp_path / "Modelfile").write_text("FROM ./own.gguf\n")
    done = run(store, "create", "own", "-f", tmp_path / "Modelfile", "--quantize", "q4_0")
    assert done.returncode == 0, done.stderr
    assert json.loads(run(store, "show", "own", "--json").stdout)["id"] == "own"
    assert run(store, "rm", "own").returncode == 0 and own.is_file()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM smollm2:135m\nFOO bar\n", "line 2: unknown instruction `FOO`"),
        ("SYSTEM x\n", "the file has no FROM"),
        ("FROM ./gone.gguf\n", "line 1: FROM ./gone.gguf: no such file"),
        ("FROM smollm2:135m\nADAPTER ./lora.gguf\n", "line 2: ADAPTER ./lora.gguf: no such file or folder"),
        ("FROM smollm2:135m\r\nSYSTEM \"x\r\n", 'line 2: the text in " that begins here does not end'),
        ('FROM smollm2:135m\nSYSTEM """x""" y\n', "line 2: the text in \"\"\" that begins here does not end"),
        ("FROM smollm2:135m # the model\n", "there is no model `smollm2:135m # the model`"),
        ("FROM /dev/zero\n", "line 1: FROM /dev/zero: it is a character device"),
        ("FROM smollm2:135m\nFROM smollm2:135m\n", "line 2: FROM stands in line 1 already"),
        ("FROM ./Modelfile\n", "not a GGUF file: starts with"),
        ('FROM smollm2:135m\nSYSTEM """x\n', "line 2: the text in \"\"\" that begins here does not end"),
        ("FROM smollm2:135m\nTEMPLATE {{ .Nope }}\n", "line 2: TEMPLATE: line 1: the field `.Nope`"),
        ("FROM smollm2:135m\nPARAMETER temperature hot\n", "line 2: PARAMETER: the parameter temperature must be a number"),
        ("FROM bad\n", "would be made from itself"),
        ("FROM nothing-like-it\n", "there is no model `nothing-like-it`"),
    ],
)
def test_a_wrong_modelfile_is_refused_with_its_line(store, tmp_path, text, words):
    path = tmp_path / "Modelfile"
    path.write_text(text)
    before = names(store)
    done = run(store, "create", "bad", "-f", path)
    assert done.returncode == 1 and words in done.stderr and done.stdout == "", done.stderr
    assert names(store) == before


# Ollama's folder


def blob(folder: Path, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / "blobs" / f"sha256-{digest}").write_bytes(data)
    return f"sha256:{digest}"


def ollama_model(folder: Path, name: str, parts: dict[str, bytes]):
    kind = "application/vnd.ollama.image."
    layers = [{"mediaType": kind + part, "digest": blob(folder, data), "size": len(data)} for part, data in parts.items()]
    path = folder / "manifests" / "registry.ollama.ai" / "library" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))


def test_models_of_ollama_are_imported_without_copying(store, tmp_path):
    folder = tmp_path / "ollama"
    params = json.dumps({"stop": ["<|im_end|>"], "temperature": 0}).encode()
    ollama_model(folder, "mymodel/latest", {"model": weights(store), "system": b"Imported.", "params": params, "license": b"MIT"})
    ollama_model(folder, "odd/7b", {"model": weights(store), "adapter": b"x"})
    done = run(store, "import", "ollama", "--from", folder)
    assert done.returncode == 1 and "mymodel imported" in done.stdout, done.stderr
    assert "odd:7b: the GGUF file is not usable" in done.stderr and "1 of 2 models were not imported" in done.stderr
    file = next((store / "mymodel").glob("*.gguf"))
    assert file.stat().st_ino in {path.stat().st_ino for path in (folder / "blobs").iterdir()}, "a hard link"
    with Server({"SERVER__MODELS_DIR": str(store), "ENGINE__KV_TOKENS": "8192"}, args=("--model", "mymodel:latest")) as server:
        assert "Imported." in prompt(server, "mymodel", say())
        assert server.post("/api/chat", {"model": "mymodel:latest", "messages": say(), "stream": False}).status == 200
    shutil.rmtree(folder)
    assert run(store, "show", "mymodel").returncode == 0, "the model stays without Ollama's folder"
    assert run(store, "rm", "mymodel").returncode == 0


def test_the_folder_is_found_by_its_variable_and_faults_are_named(store, tmp_path, monkeypatch):
    folder = tmp_path / "ollama"
    ollama_model(folder, "one/latest", {"model": weights(store)})
    damaged = next((folder / "blobs").iterdir())
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    done = run(store, "import", "ollama")
    assert done.returncode == 1 and "is damaged" in done.stderr, done.stderr
    assert "holds no model `two`" in run(store, "import", "ollama", "two").stderr
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    assert "it has no folder `manifests`" in run(store, "import", "ollama").stderr
    assert "one" not in names(store)
