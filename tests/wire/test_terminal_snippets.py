"""Every command in the blocks of docs/terminal.md works as printed, with the real binary."""

import json
import os
import re
import shutil
import subprocess

import pytest
from harness import BINARY, MODEL, ROOT, Server, environment
from pseudo import Terminal
from test_cli import show
from tiny import VOCAB, Tiny

PAGE = (ROOT / "docs" / "terminal.md").read_text()
SECTIONS = dict(section.split("\n", 1) for section in PAGE.split("\n## ")[1:])


def lines_of(title):
    """The commands of a section, without their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", SECTIONS[title], re.S)
    return [re.sub(r" {2,}#.*", "", line) for block in blocks for line in block.splitlines()]


@pytest.fixture
def shell(tmp_path):
    """Runs a line as a user's shell does, in a separate folder and with a `penstock` on PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "penstock").symlink_to(BINARY)
    models = os.path.dirname(os.path.dirname(show(MODEL)["path"]))
    env = environment({"SERVER__MODELS_DIR": models}) | {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

    def run(line, **more):
        command = ["bash", "-e", "-o", "pipefail", "-c", line]
        done = subprocess.run(
            command, cwd=tmp_path, env=env | more, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, (line, done.stdout[-500:], done.stderr[-2000:])
        return done.stdout

    return run


def test_every_block_of_the_page_is_known():
    known = ["Asking and chatting", "Servers", "What the machine can do", "Measuring", "Shells"]
    assert [title for title in SECTIONS if "```sh" in SECTIONS[title]] == known


@pytest.mark.real_models
def test_the_block_about_asking_works(shell, tmp_path):
    chat, *others = lines_of("Asking and chatting")
    (tmp_path / "notes.txt").write_text("Ada likes green tea.")
    (tmp_path / "question.txt").write_text("What is the capital of France?")
    shutil.copy(show(MODEL)["path"], tmp_path / "some.gguf")
    for line in others:
        assert shell(line).strip(), line
    assert chat == f"penstock run {MODEL}"
    terminal = Terminal("--max-tokens", "12")
    terminal.prompt()
    assert terminal.ask("What is the capital of France?").startswith("The capital of France is Paris.")
    terminal.type("/bye\r")
    assert terminal.ends() == 0


def test_the_block_about_servers_works(shell):
    with Server({"SERVER__DEFAULT_MODELS": MODEL}) as server:
        ours = lambda line: line.replace("--port 9000", f"--port {server.port}").replace("http://llm.example:8080", server.url)
        said = [shell(ours(line), PENSTOCK_HOST=server.url) for line in lines_of("Servers")]
        assert MODEL in said[0] and "no model is loaded" in shell(f"penstock ps --port {server.port}")


def test_the_block_about_the_machine_works(shell):
    for line in lines_of("What the machine can do"):
        if "jq" in line and shutil.which("jq") is None:
            pytest.skip("jq is not installed")
        assert MODEL in shell(line), line


def test_the_block_about_measuring_works(shell, tmp_path):
    """A tiny model with a long context replaces the models, so that long measurements are short."""
    tiny = Tiny("llama", context_length=1 << 16, block_count=1, hidden=16, heads=2, kv_heads=1, dim=8, ffn=32)
    tiny.write(tmp_path / "model.gguf")
    for name in ("a", "b"):
        shutil.copy(tmp_path / "model.gguf", tmp_path / f"{name}.gguf")
    for line in lines_of("Measuring"):
        assert "cpu backend" in shell(line.replace(MODEL, "model.gguf")), line


def test_the_block_about_shells_works(shell, tmp_path):
    for line in lines_of("Shells"):
        if ">" in line:
            (tmp_path / line.split("~/")[1]).parent.mkdir(parents=True)
        shell(line)
    for made in re.findall(r"~/(\S+)", "\n".join(lines_of("Shells"))):
        path = tmp_path / made
        assert (path / "penstock.1").read_text() if path.is_dir() else "penstock" in path.read_text(), made


def test_a_file_in_the_format_of_the_page_is_loaded(tmp_path):
    (piece,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    (tmp_path / "talk.json").write_text(piece)
    terminal = Terminal("--max-tokens", "2")
    terminal.prompt()
    assert f"{len(json.loads(piece)['messages'])} messages" in terminal.ask(f"/load {tmp_path}/talk.json")
    terminal.type("/bye\r")
    assert terminal.ends() == 0
