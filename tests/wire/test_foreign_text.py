"""Text from other sources (models, checkpoints, settings, servers, file names) is printed with control characters escaped, into a pipe,
too, because tables and errors end up in logs and on other people's screens. Two outputs are not escaped, because programs read them: a
model's answer and the prompt that a template renders. test_terminal.py tests both on a terminal."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from checkpoint import Checkpoint, framed, golden
from harness import ROOT, Server, cli
from tiny import VOCAB, Tiny

# Sets the title, clears the screen, returns to the start of the line, and reverses the text that follows. Arguments of commands cannot
# contain NUL.
EVIL = "a\x1b]0;owned\x07\r\x9b2J\x7f\u202e\u2066b"
EVIL_0 = EVIL + "\x00"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_, MODELS = golden()


def clean(text: str, what) -> None:
    found = UNSAFE.search(text)
    assert not found, (what, found, text[max(0, found.start() - 60) : found.end() + 60])


def run(*args, says: str = "", **more):
    """Runs a command and checks everything that it prints. It may fail, but not panic."""
    done = cli(*args, **more)
    clean(done.stdout, args)
    clean(done.stderr, args)
    assert done.returncode in (0, 1, 2) and "panicked" not in done.stderr, (args, done.returncode, done.stderr)
    assert done.stdout or done.stderr, args
    assert says in done.stdout + done.stderr, (args, done.stdout, done.stderr)
    return done


def write(path, metadata=None, tensor: str = f"odd.{EVIL_0}"):
    """Writes a model with control characters in its name, keys, tensors and vocabulary."""
    tiny = Tiny("llama")
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + [f"{EVIL_0}{i}" for i in range(VOCAB - 256)]
    own = {
        "general.name": EVIL_0,
        "general.license": EVIL_0,
        f"evil.{EVIL_0}": EVIL_0,
        "evil.list": [EVIL_0] * 3,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [6] * 256 + [1] * (VOCAB - 256),
        "tokenizer.chat_template": "{{ raise_exception('" + EVIL_0 + "') }}",
    }
    tiny.vector(tensor, 4)
    tiny.write(path, metadata=own | (metadata or {}))
    return path


def entry(id: str, path) -> str:
    """The configuration of a model."""
    return f'[[models]]\nid = {json.dumps(id)}\nsource = {{type = "file", path = {json.dumps(str(path))}}}\n'


# Further metadata with control characters, by a name for the case.
FILES = {
    "plain": {},
    "architecture": {"general.architecture": EVIL_0},
    "vocabulary": {"tokenizer.ggml.model": EVIL_0},
    "pre-tokenizer": {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": EVIL_0, "tokenizer.ggml.merges": [EVIL_0]},
    "merges": {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": [f"{EVIL_0} {EVIL_0}"]},
    "scaling": {"llama.rope.scaling.type": EVIL_0},
    "template": {"tokenizer.chat_template": "{% " + EVIL_0 + " %}"},
    "filter": {"tokenizer.chat_template": "{{ messages | " + "nofilter('" + EVIL_0 + "') }}"},
    "count": {"llama.block_count": EVIL_0},
    "split": {"split.count": EVIL_0},
}


@pytest.mark.parametrize("which", FILES)
def test_every_command_escapes_the_text_of_a_file(tmp_path, which):
    model = write(tmp_path / f"{EVIL}.gguf", FILES[which])
    (tmp_path / "input.json").write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}))
    (tmp_path / "ids.json").write_text("[[300, 1]]")
    run("inspect", model)
    run("inspect", model, "--full")
    report = run("inspect", model, "--json")
    for args in (["show"], ["show", "--json"], ["tokenize"], ["render", "--input", tmp_path / "input.json"]):
        run(args[0], model, *args[1:], stdin="a")
    if report.returncode == 0:
        metadata = json.loads(report.stdout)["metadata"]
        assert metadata["general.name"]["value"] == EVIL_0, "JSON output keeps the text of the file"
        assert f"evil.{EVIL_0}" in metadata
    for flags in ([], ["--json", "--force"], ["--dry-run"], ["--dry-run", "--json"]):
        run("quantize", model, "--type", "Q8_0", "-o", tmp_path / f"out{EVIL}.gguf", *flags)
    run("eval", model, "--text", ROOT / "README.md", "--context", "16", "--chunks", "1", "--backend", "cpu")
    run("eval", model, "--reference", "exact", "--text", ROOT / "README.md", "--context", "16", "--chunks", "1", "--json")
    done = run("logits", model, "--ids", tmp_path / "ids.json", "--out", tmp_path / "none" / EVIL)
    assert done.returncode == 1
    for flags in ([], ["--json"], ["--plot", tmp_path / "plot.svg"]):
        run("bench", model, "--prompt", "4", "--gen", "2", "--repeat", "1", "--backend", "cpu", *flags)
    if (tmp_path / "plot.svg").exists():
        clean((tmp_path / "plot.svg").read_text(), "the drawing")
    answer = cli("run", model, "hello", "--max-tokens", "2")
    clean(answer.stderr, "what run says beside its answer")
    settings = tmp_path / "settings.toml"
    settings.write_text(entry("own", model) + f"family = {json.dumps(EVIL)}\n")
    for args in (["doctor"], ["doctor", "--json"], ["list"], ["list", "--all"], ["list", "--json"], ["show", "own"]):
        run("--config", settings, *args)


def test_errors_about_a_file_that_is_not_a_model_are_escaped(tmp_path):
    path = tmp_path / f"{EVIL}.gguf"
    path.write_text(EVIL_0)
    for command in ("inspect", "show", "tokenize", "eval", "bench", "quantize"):
        more = {"eval": ["--text", path], "quantize": ["--type", "F16"]}.get(command, [])
        assert run(command, path, *more).returncode == 1
    run("render", path, "--input", path)
    run("render", ROOT / "README.md", "--input", path)
    run("logits", path, "--ids", path, "--out", path)
    run("convert", path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": EVIL_0, "vocab": {}}, "added_tokens": [{"id": EVIL_0}]}))
    run("tokenize", tmp_path / "tokenizer.json", stdin="a")


def change_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def change_tokenizer(folder, **values):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | values))


CHECKPOINTS = {
    "plain": lambda folder: None,
    "class": lambda folder: change_config(folder, architectures=[EVIL_0], model_type=EVIL_0),
    "activation": lambda folder: change_config(folder, hidden_act=EVIL_0),
    "scaling": lambda folder: change_config(folder, rope_scaling={"rope_type": EVIL_0, "factor": EVIL_0}),
    "no JSON": lambda folder: (folder / "config.json").write_text(EVIL_0),
    "tokenizer": lambda folder: change_tokenizer(folder, model={"type": EVIL_0}),
    "token": lambda folder: change_tokenizer(folder, added_tokens=[{"id": 3, "content": EVIL_0, "special": True, "lstrip": True}]),
    "split": lambda folder: change_tokenizer(folder, pre_tokenizer={"type": EVIL_0}),
    "tensor": lambda folder: (folder / "model.safetensors").write_bytes(
        framed({EVIL_0: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}) + bytes(8)
    ),
    "type": lambda folder: (folder / "model.safetensors").write_bytes(framed({"x": {"dtype": EVIL_0}})),
    "index": lambda folder: (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {EVIL_0: EVIL}})),
    "template": lambda folder: (folder / "chat_template.jinja").write_text("{% " + EVIL_0),
}


@pytest.mark.parametrize("which", CHECKPOINTS)
def test_convert_escapes_the_text_of_a_checkpoint(tmp_path, which):
    of = next(iter(MODELS.values()))
    folder = Checkpoint(json.loads(json.dumps(of["config"])), of["tensors"]).write(tmp_path / f"c{EVIL}")
    change_config(folder, _name_or_path=EVIL_0)
    CHECKPOINTS[which](folder)
    for flags in ([], ["--json", "--force"], ["--dry-run"], ["--type", "Q8_0", "--dry-run", "--json"]):
        run("convert", folder, "-o", tmp_path / f"out{EVIL}.gguf", *flags)


def test_arguments_and_settings_are_escaped(tmp_path):
    for args in (["show", EVIL], ["run", EVIL], ["rm", EVIL], ["pull", EVIL], ["inspect", f"./{EVIL}"], ["serve", "--model", EVIL]):
        assert run(*args, says="\\u{1b}").returncode == 1
    for args in ([EVIL], ["quantize", "x", "--type", EVIL], ["list", f"--{EVIL}"], ["serve", "--port", EVIL], ["--config", EVIL, "list"]):
        # the argument parser leaves out terminal sequences
        run(*args, says="\\u{202e}")
    settings = tmp_path / "settings.toml"
    evil = json.dumps(EVIL)
    for text in (f"[server]\n{evil} = 1", f"[server]\nhost = {evil}", EVIL, f"[[models]]\nid = {evil}", entry(EVIL, EVIL)):
        settings.write_text(text)
        run("--config", settings, "list")
    assert run("list", env={"SERVER__HOST": EVIL}).returncode == 1
    (tmp_path / "keys.toml").write_text(f"[[keys]]\nname = {json.dumps(EVIL)}\nsha256 = {json.dumps(EVIL)}\n")
    run("keys", "list", env={"AUTH__KEYS_FILE": str(tmp_path / "keys.toml")})
    (tmp_path / "keys.toml").write_text(f"[[keys]]\nname = \"x\"\nmodels = [{json.dumps(EVIL)}]\nsha256 = \"{'0' * 64}\"\n")
    run("keys", "list", env={"AUTH__KEYS_FILE": str(tmp_path / "keys.toml")})
    run("keys", "add", EVIL, env={"AUTH__KEYS_FILE": str(tmp_path / "new.toml")})
    run("man", tmp_path / f"man{EVIL}")


def test_text_of_the_store_is_escaped(tmp_path):
    folder = tmp_path / "store" / EVIL
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(b"GGUF")
    source = {"type": "https", "url": f"https://{EVIL}"}
    manifest = {"id": EVIL, "source": source, "sha256": EVIL, "size": 4, "date": 0}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    env = {"SERVER__MODELS_DIR": str(tmp_path / "store")}
    assert "\\u{202e}" in run("list", env=env).stdout
    for args in (["list", "--json"], ["list", "--on-disk"], ["doctor"], ["doctor", "--json"], ["rm", EVIL]):
        run(*args, env=env)


@pytest.fixture(scope="module")
def hostile():
    """A server that returns such text, with the status that the test sets."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            model = {"id": EVIL_0, "state": EVIL_0, "backend": EVIL_0, "context": 1, "bytes": {"total": 1}, EVIL_0: [EVIL_0]}
            body = json.dumps({"data": [model], "id": EVIL_0, "error": {"message": EVIL_0}}).encode()
            self.send_response(type(self).status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("status", [200, 500])
def test_text_of_a_server_is_escaped(hostile, status):
    handler, url = hostile
    handler.status = status
    for args in (["ps"], ["ps", "--all"], ["ps", "--json"], ["stop", "m"], ["stop", "m", "--json"]):
        done = run(*args, "--url", url)
        assert done.returncode == (status == 500) and "\\u" in done.stdout + done.stderr, done
    cli("health", "--url", url)
    run("ps", "--url", f"http://{EVIL}")


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_is_escaped(tmp_path, form):
    model = write(tmp_path / f"{EVIL}.gguf", {"tokenizer.chat_template": "{{ messages[0].content }}"})
    bad = write(tmp_path / f"bad{EVIL}.gguf", FILES["scaling"])
    (tmp_path / "models.toml").write_text(entry("good", model) + entry("bad", bad))
    settings = {"SERVER__MODELS_DIR": tmp_path / "store", "SERVER__DEFAULT_MODELS": "good"}
    settings |= {"SERVER__LOG_FORMAT": form, "SERVER__LOG": "debug"}
    with Server(settings, ("--config", str(tmp_path / "models.toml"))) as server:
        assert server.post("/v1/completions", {"model": "bad", "prompt": "a"}).status >= 400
        assert server.post("/v1/completions", {"model": EVIL_0, "prompt": EVIL_0, EVIL_0: EVIL_0}).status >= 400
        assert server.post("/v1/completions", {"model": "good", "prompt": EVIL_0, "max_tokens": 2, EVIL_0: EVIL_0}).status == 200
        assert server.post("/admin/models/pull", {"model": f"hf:{EVIL}/x"}).status >= 400
        server.wait_log("could not be loaded")
        clean(server.output(), "the log")
