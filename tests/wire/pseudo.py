"""Runs a `penstock run` chat on a pseudo-terminal."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

from harness import BINARY, MODEL, ROOT, environment

GREEDY = ("--temperature", "0")
# The line editor clears the rest of the line before it shows a prompt.
PROMPT, MORE = "\x1b[K> ", "\x1b[K. "


def plain(text: str) -> str:
    """The text that a user sees: without escape codes and spinner, with one kind of line break."""
    text = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)
    return re.sub(r"\r[⠀-⣿][^\r\n]*|\r *\r(?!\n)", "", text).replace("\r\n", "\n").rstrip("\r")


class Terminal:
    """The command on a pseudo-terminal. `state`: the folder of its history. Without it, the command keeps no history."""

    def __init__(self, *args: str, model: str = MODEL, columns: int = 0, state=None, env: dict[str, str] | None = None):
        history = [] if state else ["--nohistory"]
        command = [str(BINARY), "run", str(model), *GREEDY, *history, *map(str, args)]
        surroundings = environment() | {"TERM": "xterm", "XDG_STATE_HOME": str(state or "/nonexistent")} | (env or {})
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50 if columns else 0, columns, 0, 0))
            os.chdir(ROOT)
            os.execve(command[0], command, surroundings)
        self.seen = b""

    def until(self, text: str, seconds: float = 60) -> str:
        """Reads until `text` appears, and returns what came before it."""
        end = time.monotonic() + seconds
        while text.encode() not in self.seen:
            assert time.monotonic() < end, f"{text!r} does not appear: {self.seen!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.seen += os.read(self.fd, 4096)
        before, self.seen = self.seen.split(text.encode(), 1)
        return before.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def prompt(self, seconds: float = 60) -> str:
        """Returns the output up to the next prompt."""
        return plain(self.until(PROMPT, seconds))

    def ask(self, text: str) -> str:
        """Types a line, and returns the output up to the next prompt."""
        self.type(text + "\r")
        self.until("\r\n")
        return self.prompt()

    def ends(self, seconds: float = 20) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if select.select([self.fd], [], [], 0.05)[0]:
                    self.seen += os.read(self.fd, 4096)
            except OSError:
                pass  # the terminal is closed
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"the command does not end: {self.seen!r}")
