"""Text from other sources (models, files, templates, errors) cannot control a terminal, and reaches a program unchanged through
a pipe."""

import json
import os
import pty
import subprocess

import pytest
from harness import BINARY, MODEL, ROOT, cli, environment
from test_cli import show
from tiny import VOCAB, Tiny

# Sets the title, clears the screen, and reverses the text that follows.
EVIL = "a\x1b]0;owned\x07\x9b2J\u202eb"
CONTROLS = ["\x1b", "\x07", "\x9b", "\u202e"]


def on_terminal(*args, stdin=b"") -> str:
    """Runs a command on a terminal. Returns its output on stdout and stderr."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(BINARY), *map(str, args)], stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, env=environment() | {"TERM": "xterm"}, cwd=ROOT
    )
    os.close(theirs)
    process.stdin.write(stdin)
    process.stdin.close()
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        seen += part
    os.close(ours)
    process.wait(60)
    return seen.decode()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with control characters in its name, tensors and vocabulary."""
    path = tmp_path_factory.mktemp("evil") / "evil.gguf"
    tiny = Tiny("llama")
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + [f"{EVIL}{i}" for i in range(VOCAB - 256)]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [6] * 256 + [1] * (VOCAB - 256),
        "general.name": EVIL,
        "general.license": EVIL,
        "tokenizer.chat_template": "{{ raise_exception('" + EVIL + "') }}",
    }
    tiny.vector(f"odd.{EVIL}", 4)
    tiny.write(path, metadata=metadata)
    return path


def harmless(text: str) -> None:
    assert text and not [control for control in CONTROLS if control in text], repr(text)


def test_metadata_and_tensors_are_harmless(model):
    for args in (["show"], ["show", "--json"], ["inspect"], ["inspect", "--full"], ["inspect", "--json"]):
        harmless(on_terminal(*args, model))
    assert json.loads(cli("show", model, "--json").stdout)["name"] == EVIL, "a program gets the text unchanged"


def test_templates_and_their_errors_are_harmless(model, tmp_path):
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}\n\tend")
    (tmp_path / "i.json").write_text(json.dumps({"messages": [{"role": "user", "content": EVIL}]}))
    rendered = on_terminal("render", tmp_path / "t.jinja", "--input", tmp_path / "i.json")
    harmless(rendered)
    assert rendered.expandtabs().endswith("b\r\n        end"), repr(rendered)
    assert cli("render", tmp_path / "t.jinja", "--input", tmp_path / "i.json").stdout == f"{EVIL}\n\tend"
    failed = on_terminal("render", model, "--input", tmp_path / "i.json")
    harmless(failed)
    assert "owned" in failed, failed


def test_answers_are_harmless(model, tmp_path):
    template = tmp_path / "none.jinja"
    template.write_text("{{ messages[0].content }}")
    config = tmp_path / "c.toml"
    config.write_text(f"[[models]]\nid = 'evil'\nsource = {{ type = 'file', path = '{model}' }}\nchat_template = '{template}'\n")
    args = ("--config", config, "run", "evil", "hello", "--max-tokens", "64", "--temperature", "2", "--seed", "1")
    answer = on_terminal(*args)
    harmless(answer)
    assert "\ufffd" in answer
    piped = subprocess.run([str(BINARY), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, env=environment(), cwd=ROOT)
    assert piped.returncode == 0 and b"\x1b" in piped.stdout, (piped.stdout, piped.stderr)


def test_names_in_a_file_that_is_quantised_are_harmless(model, tmp_path):
    evil = tmp_path / f"{EVIL}.gguf"
    quantised = on_terminal("quantize", model, "--type", "Q8_0", "-o", evil)
    # The command itself writes this sequence to clear its line.
    harmless(quantised.replace("\r\x1b[K", ""))
    assert "odd." in quantised and evil.is_file()
    evil.unlink()
    evil.symlink_to(show(MODEL)["path"])
    warned = on_terminal("quantize", evil, "--type", "Q4_0", "--dry-run")
    harmless(warned)
    assert "is quantised already" in warned


def test_unknown_names_are_harmless():
    for args in (["show", EVIL], ["run", EVIL], ["rm", EVIL], ["pull", EVIL]):
        failed = on_terminal(*args)
        harmless(failed)


def test_a_huge_name_is_abbreviated(tmp_path):
    tiny = Tiny("llama")
    tiny.write(tmp_path / "huge.gguf", metadata={"general.name": "x" * 50_000_000})
    done = cli("show", tmp_path / "huge.gguf")
    assert done.returncode == 0 and len(done.stdout) < 100_000, (done.returncode, done.stderr[:1000])
