"""`penstock pull` and its child processes."""

import os
import signal
import subprocess
import time

import pytest
from harness import BINARY, MODEL, environment, wait_until

# A package `pip` that says who runs it, and then waits.
PIP = """
import os, pathlib, sys, time
pathlib.Path(os.environ["SAID"]).write_text(f"{os.getpid()} {os.getcwd()} {sys.argv}")
time.sleep(120)
"""


@pytest.fixture
def scene(tmp_path):
    """A pull whose pip waits. Its working directory holds modules that must not be run."""
    (tmp_path / "site" / "pip").mkdir(parents=True)
    (tmp_path / "site" / "pip" / "__init__.py").write_text("")
    (tmp_path / "site" / "pip" / "__main__.py").write_text(PIP)
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    for name in ("pip", "zipfile", "shutil", "runpy", "threading"):
        (cwd / f"{name}.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w').write({name!r})\n")
    env = environment({"SERVER__MODELS_DIR": tmp_path / "store"}) | {"PYTHONPATH": str(tmp_path / "site"), "SAID": str(tmp_path / "said")}
    process = subprocess.Popen([str(BINARY), "pull", MODEL], cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    yield process, tmp_path
    process.kill()
    process.wait()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


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
    print(f"pip ended {time.monotonic() - start:.2f} s after the signal")
