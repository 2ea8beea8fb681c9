"""Special files (FIFOs, sockets, devices, directories) are never waited for and never replaced, and the error names them. Text may still
come through a pipe.

No test names a device of the system as an output. If a bug replaced it, which root may do, every other process on the machine would break.
Devices are created in the test's folder. Open files are named by their paths in /proc, where nothing can be replaced."""

import json
import os
import re
import socket
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from checkpoint import Checkpoint, golden
from harness import BINARY, ROOT, Server, cli, environment
from pseudo import Terminal
from tiny import VOCAB, Tiny

_, MODELS = golden()
KINDS = ["FIFO", "link", "socket", "directory", "device"]
# The kinds to which a command may write a stream of text.
STREAMS = ["FIFO", "link", "device"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    words = [*"▁abcd", *(f"<{i}>" for i in range(VOCAB - 5))]
    metadata = {"tokenizer.chat_template": "{{ messages[0].content }}", "tokenizer.ggml.tokens": words}
    Tiny("llama").write(path, metadata=metadata)
    return path


@pytest.fixture
def checkpoint(tmp_path):
    name = next(iter(MODELS))
    return Checkpoint(json.loads(json.dumps(MODELS[name]["config"])), MODELS[name]["tensors"]).write(tmp_path / "checkpoint")


def special(path: Path, kind: str) -> Path:
    """Creates a special file at a path."""
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "link":
        os.mkfifo(path.with_name("behind"))
        path.symlink_to("behind")
    elif kind == "socket":
        here = os.getcwd()
        # A socket's address must be short.
        os.chdir(path.parent)
        socket.socket(socket.AF_UNIX).bind(path.name)
        os.chdir(here)
    elif kind == "directory":
        path.mkdir()
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    return path


def name_of(kind: str) -> str:
    return {"FIFO": "a FIFO", "link": "a FIFO", "socket": "a socket", "directory": "a directory", "device": "a character device"}[kind]


def refused(*args, words: list[str], **more) -> None:
    """Checks that the command exits with an error at once."""
    done = cli(*args, timeout=30, **more)
    assert done.returncode == 1 and not done.stdout, (args, done.returncode, done.stdout, done.stderr)
    assert all(word in done.stderr for word in words), (words, done.stderr)


# Outputs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_model_replaces_nothing_but_a_file(model, checkpoint, tmp_path, kind, force):
    out = special(tmp_path / "out", kind)
    before, there = out.lstat(), out.stat()
    for command in (["quantize", model, "--type", "Q8_0"], ["convert", checkpoint]):
        refused(*command, "-o", out, *force, words=[str(out), name_of(kind), "name a regular file"])
        assert (out.lstat().st_ino, out.stat().st_mode) == (before.st_ino, there.st_mode)
    assert not list(tmp_path.glob("*.partial"))


def test_a_model_does_not_replace_an_open_file(model, tmp_path):
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    for path in ("/proc/self/fd/1", link):
        refused("quantize", model, "--type", "Q8_0", "-o", path, "--force", words=[str(path), "is not replaced"])
    assert link.is_symlink()


def test_a_model_is_written_to_the_target_of_a_link_with_the_permissions_of_the_old_file(model, tmp_path):
    real, link = tmp_path / "real.gguf", tmp_path / "link.gguf"
    link.symlink_to("real.gguf")
    quantize = ("quantize", model, "--type", "Q8_0", "-o", link)
    assert cli(*quantize).returncode == 0 and link.is_symlink() and real.stat().st_size > 1000
    real.chmod(0o600)
    assert "exists" in cli(*quantize).stderr
    assert cli(*quantize, "--force").returncode == 0 and link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.gguf", "real.gguf"]


@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_written_to_streams_and_replace_no_other_special_file(model, tmp_path, kind):
    (tmp_path / "ids.json").write_text("[[1, 2, 3]]")
    out = special(tmp_path / "out", kind)
    before = out.stat()
    commands = {
        ("logits", model, "--ids", tmp_path / "ids.json", "--backend", "cpu", "--out", out): b"\x93NUMPY",
        ("bench", model, "--prompt", "4", "--gen", "2", "--repeat", "1", "--backend", "cpu", "--plot", out): b"<svg",
    }
    for command, magic in commands.items():
        if kind not in STREAMS:
            done = cli(*command)
            assert done.returncode == 1 and name_of(kind) in done.stderr, done.stderr
            continue
        got = []
        if kind != "device":
            reader = threading.Thread(target=lambda: got.append(out.read_bytes()))
            reader.start()
        done = cli(*command)
        assert done.returncode == 0, done.stderr
        if kind != "device":
            reader.join(10)
            assert got[0].startswith(magic), got[0][:100]
    assert (out.stat().st_ino, out.stat().st_mode) == (before.st_ino, before.st_mode)


def test_a_drawing_follows_the_table_if_both_go_to_stdout(model, tmp_path):
    command = [str(BINARY), "bench", str(model), *"--prompt 4 --gen 2 --repeat 1 --backend cpu --plot /proc/self/fd/1".split()]
    with open(tmp_path / "both", "wb") as both:
        subprocess.run(command, stdout=both, check=True, env=environment(), cwd=ROOT, timeout=60)
    text = (tmp_path / "both").read_text()
    assert "decode tok/s" in text and text.index("decode tok/s") < text.index("<svg") and text.rstrip().endswith("</svg>")
    piped = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment(), cwd=ROOT, timeout=60).stdout.decode()
    assert "decode tok/s" in piped and piped.rstrip().endswith("</svg>")


def test_manual_pages_replace_no_special_file(tmp_path):
    pages = tmp_path / "man"
    assert cli("man", pages).returncode == 0
    names = {path.name for path in pages.iterdir()}
    assert {"penstock.1", "penstock-keys-add.1", "penstock-quantize.1"} <= names
    (pages / "penstock-run.1").unlink()
    special(pages / "penstock-run.1", "socket")
    refused("man", pages, words=["penstock-run.1", "a socket"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_special_file_is_refused_as_a_key_file(tmp_path, kind, model):
    keys = special(tmp_path / "keys.toml", kind)
    before = keys.lstat()
    env = {"AUTH__KEYS_FILE": str(keys)}
    refused("keys", "add", "me", env=env, words=["keys.toml", name_of(kind), "not a regular file"])
    refused("keys", "list", env=env, words=["keys.toml", name_of(kind)])
    refused("serve", "--model", model, "--port", "0", env=env, words=["keys.toml", name_of(kind)])
    assert keys.lstat().st_ino == before.st_ino


def test_a_conversation_is_neither_read_from_a_fifo_nor_written_to_one(model, tmp_path):
    fifo = special(tmp_path / "fifo", "FIFO")
    (tmp_path / "state" / "penstock").mkdir(parents=True)
    os.mkfifo(tmp_path / "state" / "penstock" / "history")
    chat = Terminal("--max-tokens", "4", model=str(model), state=tmp_path / "state")
    assert "history is not used: it is a FIFO" in re.sub(r"\s+", " ", chat.prompt()).replace(f"{tmp_path}/state/penstock/", "")
    assert "a FIFO" in chat.ask(f"/load {fifo}")
    assert "a FIFO" in chat.ask(f"/save {fifo}") and stat.S_ISFIFO(fifo.stat().st_mode)
    chat.type("/bye\r")
    assert chat.ends() == 0


# Inputs


@pytest.mark.parametrize("kind", KINDS)
def test_no_command_waits_for_a_model(tmp_path, kind, model):
    (tmp_path / "ids.json").write_text("[[1]]")
    (tmp_path / "input.json").write_text('{"messages": []}')
    path = special(tmp_path / "m.gguf", kind)
    commands = [
        ("inspect", path),
        ("show", path),
        ("tokenize", path),
        ("render", path, "--input", tmp_path / "input.json"),
        ("quantize", path, "--type", "F16"),
        ("eval", path, "--text", ROOT / "README.md"),
        ("eval", model, "--reference", path, "--text", ROOT / "README.md"),
        ("logits", path, "--ids", tmp_path / "ids.json", "--out", tmp_path / "out.npy"),
        ("bench", path),
        ("run", path, "hello"),
        ("serve", "--model", path, "--port", "0"),
        ("pull", path),
    ]
    for command in commands:
        refused(*command, words=["m.gguf", name_of(kind)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"])
def test_no_file_of_a_checkpoint_is_waited_for(checkpoint, tmp_path, name, kind):
    (checkpoint / name).unlink(missing_ok=True)
    special(checkpoint / name, kind)
    refused("convert", checkpoint, "-o", tmp_path / "out.gguf", words=[name, name_of(kind)])


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "model-00002-of-00002.safetensors"])
def test_no_part_of_a_checkpoint_is_waited_for(checkpoint, tmp_path, name):
    config = next(iter(MODELS.values()))
    folder = Checkpoint(config["config"], config["tensors"]).write(tmp_path / "parts", shards=2)
    (folder / name).unlink()
    special(folder / name, "FIFO")
    refused("convert", folder, "-o", tmp_path / "out.gguf", words=[name, "a FIFO"])


def test_no_file_beside_a_model_is_waited_for(tmp_path):
    Tiny("llama").write(tmp_path / "m-00001-of-00002.gguf", metadata={"split.count": 2, "split.no": 0})
    special(tmp_path / "m-00002-of-00002.gguf", "FIFO")
    refused("inspect", tmp_path / "m-00001-of-00002.gguf", words=["m-00002-of-00002.gguf", "a FIFO"])
    Tiny("llama").write(tmp_path / "bare.gguf", metadata={"tokenizer.ggml.model": "no_such"})
    special(tmp_path / "tokenizer.json", "FIFO")
    refused("tokenize", tmp_path / "bare.gguf", words=["tokenizer.json", "a FIFO"])
    refused("tokenize", tmp_path / "tokenizer.json", words=["tokenizer.json", "a FIFO"])


def test_no_setting_is_waited_for(tmp_path, model):
    fifo = special(tmp_path / "fifo", "FIFO")
    refused("--config", fifo, "list", words=[str(fifo), "a FIFO"])
    serve = ("serve", "--model", model, "--port", "0")
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n")
    refused(*serve, env={"SERVER__TLS_CERT": str(fifo), "SERVER__TLS_KEY": str(tmp_path / "key.pem")}, words=["tls_cert", "a FIFO"])
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -keyout {tmp_path}/k.pem -out {tmp_path}/c.pem",
        shell=True,
        check=True,
        capture_output=True,
    )
    refused(*serve, env={"SERVER__TLS_CERT": str(tmp_path / "c.pem"), "SERVER__TLS_KEY": str(fifo)}, words=["tls_key", "a FIFO"])


def test_no_request_waits_for_a_model(tmp_path, model):
    """Covers every way to load a model whose file, template or tokenizer is a FIFO."""
    fifo = special(tmp_path / "fifo", "FIFO")
    entries = [f'[[models]]\nid = "file"\nsource = {{ type = "file", path = "{fifo}" }}']
    # A copy: models that share weights would fail together with the one whose template cannot be read.
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes())
    entries += [f'[[models]]\nid = "template"\nsource = {{ type = "file", path = "{other}" }}\nchat_template = "{fifo}"']
    (tmp_path / "models.toml").write_text("\n".join(entries))
    settings = {"SERVER__MODELS_DIR": tmp_path / "store", "SERVER__DEFAULT_MODELS": str(model)}
    with Server(settings, ("--config", str(tmp_path / "models.toml"))) as server:
        for name in ("file", "template"):
            posts = [
                ("/admin/models/load", {"model": name}),
                ("/models/load", {"model": name}),
                ("/api/generate", {"model": name}),
                ("/api/show", {"model": name}),
                ("/api/pull", {"model": name, "stream": False}),
                ("/admin/models/pull", {"model": name}),
                ("/v1/completions", {"model": name, "prompt": "a"}),
            ]
            for path, body in posts:
                reply = server.post(path, body, timeout=30)
                assert reply.status >= 400 or path == "/models/load", (path, name, reply.status, reply.body)
                assert str(fifo).encode() not in reply.body, "clients do not learn paths on the server"
        server.wait_log("it is a FIFO, not a regular file")
        assert server.get("/health").status == 200


def test_text_may_come_through_a_fifo(tmp_path, model):
    def through(name: str, text: str) -> Path:
        fifo = special(tmp_path / name, "FIFO")
        threading.Thread(target=fifo.write_text, args=(text,), daemon=True).start()
        return fifo

    message = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
    assert cli("render", model, "--input", through("input", message)).stdout == "hello"
    assert cli("render", model, "--input", "/dev/stdin", stdin=message).stdout == "hello"
    done = cli("logits", model, "--ids", through("ids", "[[1, 2]]"), "--out", tmp_path / "out.npy", "--backend", "cpu")
    assert done.returncode == 0 and (tmp_path / "out.npy").read_bytes().startswith(b"\x93NUMPY"), done.stderr
    words = "a b c d " * 40
    done = cli("eval", model, "--text", through("text", words), "--context", "16", "--chunks", "1", "--backend", "cpu")
    assert done.returncode == 0 and "perplexity" in done.stdout, done.stderr
