"""`penstock pull`, downloads over HTTP, and the child processes of both."""

import signal
import subprocess
import time

import pytest
from harness import BINARY, MODEL, Server, environment, open_stream, wait_until
from tiny import Tiny

# The main module of a fake package `pip`: it reports its process id, directory and arguments, and then waits.
PIP = """
import os, pathlib, sys, time
pathlib.Path("half.whl").write_bytes(bytes(1000))
pathlib.Path(os.environ["SAID"]).write_text(f"{os.getpid()} {os.getcwd()} {sys.argv}")
time.sleep(120)
"""


def waiting_pip(tmp_path) -> dict:
    """Installs the fake pip. Returns the environment that selects it."""
    (tmp_path / "site" / "pip").mkdir(parents=True)
    (tmp_path / "site" / "pip" / "__init__.py").write_text("")
    (tmp_path / "site" / "pip" / "__main__.py").write_text(PIP)
    return {"PYTHONPATH": str(tmp_path / "site"), "SAID": str(tmp_path / "said")}


@pytest.fixture
def scene(tmp_path):
    """A pull whose pip waits. Its working directory contains modules that must not be run."""
    variables = waiting_pip(tmp_path)
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    for name in ("pip", "zipfile", "shutil", "runpy", "threading"):
        (cwd / f"{name}.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w').write({name!r})\n")
    env = environment({"SERVER__MODELS_DIR": tmp_path / "store"}) | variables
    process = subprocess.Popen([str(BINARY), "pull", MODEL], cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    yield process, tmp_path
    process.kill()
    process.wait()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ends before the file is opened, or before it is read
        return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_pip_is_the_installed_one_and_ends_with_the_pull(scene, how):
    process, tmp_path = scene
    said = tmp_path / "said"
    wait_until(lambda: (said.exists() and said.read_text()) or process.poll() is not None, 30, "pip starts")
    assert process.poll() is None, process.stdout.read().decode()
    pid, cwd, *argv = said.read_text().split()
    assert not (tmp_path / "owned").exists(), "modules of the working directory are not run"
    assert cwd.startswith(str(tmp_path / "store")) and "'download'," in argv
    assert alive(int(pid))
    start = time.monotonic()
    process.send_signal(how)
    process.wait(10)
    wait_until(lambda: not alive(int(pid)), 5, "pip ends")
    assert not list((tmp_path / "store").rglob("*.whl")), "partial files that no pull can resume are removed"
    print(f"pip ended {time.monotonic() - start:.2f} s after the signal")


@pytest.fixture
def serving(tmp_path):
    """A server whose pip waits, and the file to which pip reports."""
    Tiny("llama").write(tmp_path / "own.gguf")
    server = Server({"SERVER__MODELS_DIR": tmp_path / "store"}, args=("--model", str(tmp_path / "own.gguf")), env=waiting_pip(tmp_path))
    try:
        yield server.__enter__(), tmp_path / "said"
    finally:
        server.stop()


def pip_of(said) -> int:
    wait_until(lambda: said.exists() and said.read_text(), 30, "pip starts")
    return int(said.read_text().split()[0])


def test_a_download_continues_for_the_remaining_clients_and_ends_with_the_last(serving):
    server, said = serving
    clients = [open_stream(server, "/api/pull", {"model": MODEL}) for _ in range(2)]
    assert all(any(b"pulling" in line for line in client.makefile("rb")) for client in clients)
    pid = pip_of(said)
    clients[0].close()
    time.sleep(2)
    assert alive(pid), "another client waits for it"
    clients[1].close()
    wait_until(lambda: not alive(pid), 10, "pip ends")
    said.unlink()
    again = open_stream(server, "/api/pull", {"model": MODEL})
    assert alive(pip_of(said)), "the next pull starts at once"
    again.close()
    wait_until(lambda: b"was given up" in server.output().encode(), 10, "the log says that the download was given up")


def test_a_download_by_an_operator_continues_without_clients_and_ends_with_the_server(serving):
    server, said = serving
    follower = open_stream(server, "/admin/models/pull", {"model": MODEL, "stream": True})
    pid = pip_of(said)
    follower.close()
    ours = open_stream(server, "/api/pull", {"model": MODEL})
    ours.close()
    time.sleep(2)
    assert alive(pid)
    server.process.kill()
    wait_until(lambda: not alive(pid), 5, "pip ends")
