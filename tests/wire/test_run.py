"""`penstock run`: one answer, a prompt on stdin, a chat on a terminal."""

import os
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from harness import BINARY, MODEL, ROOT, cli, environment
from test_cli import failed, show

GREEDY = ("--temperature", "0")
QUESTION = "What is the capital of France?"


class Terminal:
    """The command on a pseudo-terminal."""

    def __init__(self, *args: str):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execve(str(BINARY), [str(BINARY), "run", MODEL, *GREEDY, *args], environment() | {"TERM": "xterm"})
        self.seen = b""

    def until(self, text: str, seconds: float = 30) -> str:
        """Reads until `text` appears and returns what came before it."""
        end = time.monotonic() + seconds
        while text.encode() not in self.seen:
            assert time.monotonic() < end, f"{text!r} does not come: {self.seen!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.seen += os.read(self.fd, 4096)
        before, self.seen = self.seen.split(text.encode(), 1)
        return before.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def ends(self, seconds: float = 10) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if select.select([self.fd], [], [], 0.05)[0]:
                    self.seen += os.read(self.fd, 4096)
            except OSError:
                pass  # the terminal is gone
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"it does not end: {self.seen!r}")


def test_a_prompt_gets_one_answer():
    done = cli("run", MODEL, QUESTION, *GREEDY, "--max-tokens", "12")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.startswith("The capital of France is Paris.") and done.stdout.endswith("\n")


def test_a_prompt_on_stdin_is_the_same_prompt():
    answer = cli("run", MODEL, QUESTION, *GREEDY, "--max-tokens", "12").stdout
    assert cli("run", MODEL, *GREEDY, "--max-tokens", "12", stdin=QUESTION + "\n").stdout == answer
    failed(cli("run", MODEL, stdin=" \n"), "stdin", "empty")


def test_a_model_file_can_be_named():
    with tempfile.TemporaryDirectory() as folder:
        file = shutil.copy(show(MODEL)["path"], Path(folder, "some-model.gguf"))
        done = cli("run", file, QUESTION, *GREEDY, "--max-tokens", "12")
        assert done.returncode == 0 and done.stdout.startswith("The capital of France is Paris."), done.stderr
        failed(cli("run", Path(folder, "other.gguf"), QUESTION), "other.gguf")
    failed(cli("run", "nope:1b", QUESTION), "nope:1b")


def test_a_reader_that_leaves_is_not_an_error():
    process = subprocess.Popen(
        [BINARY, "run", MODEL, "Tell me a story.", *GREEDY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=ROOT
    )
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(20) != 0 and process.stderr.read() == b""


def test_an_interrupt_ends_the_answer():
    process = subprocess.Popen(
        [BINARY, "run", MODEL, "Write a very long story.", *GREEDY],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
    )
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 1 and b"interrupted" in process.stderr.read()


def test_a_chat_knows_its_commands():
    chat = Terminal("--max-tokens", "12")
    chat.until("> ")
    chat.type(QUESTION + "\r")
    chat.until("\r\n")
    first = chat.until("> ")
    assert first.startswith("The capital of France is Paris."), first
    chat.type("/nothing\r")
    chat.until("is not a command")
    chat.until("> ")
    chat.type("/help\r")
    chat.until("/clear")
    chat.until("> ")
    chat.type("/clear\r")
    chat.until("> ")
    chat.type(QUESTION + "\r")
    chat.until("\r\n")
    assert chat.until("> ") == first, "nothing of the conversation is left"
    chat.type("/bye\r")
    assert chat.ends() == 0


def test_ctrl_c_stops_only_the_answer_and_ctrl_d_leaves():
    chat = Terminal()
    chat.until("> ")
    chat.type("Write a very long story about the sea.\r")
    chat.until("\r\n")
    chat.until("sea")
    chat.type("\x03")
    chat.until("> ", 5)
    chat.type("\x03")
    chat.until("> ", 5)
    chat.type("\x04")
    assert chat.ends() == 0


def test_a_base_model_says_so_once_and_continues_the_text():
    done = cli("run", "gemma3:270m", "The capital of France is", *GREEDY, "--max-tokens", "3", timeout=120)
    assert done.returncode == 0 and done.stderr.count("is a base model") == 1, done.stderr
    assert done.stdout.startswith(" ") and done.stdout.strip(), "the word after the text"
