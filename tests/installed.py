"""Installs packages of Penstock into empty places and talks to the installed program, for tests/wire/test_packages.py and
tests/bench/first_token.py. A place installs and removes its packages, and tells what is left of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import MODEL, ROOT, free_port

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def run(command: list, **options) -> str:
    """Runs a program and returns its output. If the program fails, raises an error with the program's own output."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@dataclass
class Running:
    """A running server from an installed package."""

    port: int
    process: subprocess.Popen

    def answer(self) -> str:
        """The answer to a question."""
        return "".join(piece for _, piece in self.pieces())

    def pieces(self):
        """The pieces of a streamed answer to a question, each with its time of arrival."""
        body = {"model": MODEL, "messages": QUESTION, "max_tokens": 16, "temperature": 0, "stream": True}
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as reply:
            for line in reply:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        if choice["delta"].get("content"):
                            yield time.monotonic(), choice["delta"]["content"]


class Place:
    """A folder for an installation, an environment without the user's settings, and the command that starts the installed program."""

    def __init__(self, folder: Path, models: Path):
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8"}
        self.env["PENSTOCK__SERVER__MODELS_DIR"] = str(models)
        self.prepare()
        self.before = self.files()

    def prepare(self) -> None:
        """Creates what must exist before a package is installed."""

    def close(self) -> None:
        """Stops what `prepare` has started."""

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if not path.is_dir() or path.is_symlink()}

    def left(self) -> list[str]:
        """The files that exist now and did not exist before the package was installed."""
        return sorted(self.files() - self.before)

    def command(self, *args: str) -> list:
        return [self.binary, *args]

    def penstock(self, *args: str) -> str:
        return run(self.command(*args), env=self.env, cwd=self.home)

    @contextmanager
    def serving(self, *args: str):
        """Yields a server of the default model once it is ready. The server must exit with 0 on SIGTERM."""
        port = free_port()
        log = open(self.folder / "server.log", "w+")
        command = [str(part) for part in self.command(*args, "serve", "--port", str(port))]
        process = subprocess.Popen(command, env=self.env, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_ready(port, process, Path(log.name))
            yield Running(port, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0, Path(log.name).read_text()
        finally:
            process.kill()
            process.wait()
            log.close()
            Path(log.name).unlink()


def wait_ready(port: int, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert process.poll() is None, f"the server ended with {process.returncode}:\n{log.read_text()}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as reply:
                if reply.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.01)
    raise TimeoutError(f"not ready after 120 s:\n{log.read_text()}")


class WheelPlace(Place):
    """A new virtual environment."""

    def prepare(self) -> None:
        self.venv = self.folder / "venv"
        run([sys.executable, "-m", "venv", self.venv])
        self.binary = self.venv / "bin" / "penstock"
        self.python = self.venv / "bin" / "python"
        self.pip = [self.python, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]
        # Otherwise pip would leave compiled files of its own modules.
        self.env |= {"PYTHONDONTWRITEBYTECODE": "1"}
        run([*self.pip, "list"], env=self.env)

    def install(self, package: Path) -> None:
        run([*self.pip, "install", "--no-index", package], env=self.env, cwd=self.home)

    def uninstall(self) -> None:
        run([*self.pip, "uninstall", "--yes", "penstock"], env=self.env, cwd=self.home)


class TarballPlace(Place):
    """A prefix such as /usr/local."""

    def prepare(self) -> None:
        self.prefix = self.folder / "local"
        self.prefix.mkdir()
        self.binary = self.prefix / "bin" / "penstock"

    def install(self, package: Path) -> None:
        run(["tar", "xf", package, "-C", self.prefix, "--strip-components=1"])
        with tarfile.open(package) as tar:
            self.installed = [self.prefix / Path(*Path(member.name).parts[1:]) for member in tar if member.isfile()]

    def uninstall(self) -> None:
        for path in self.installed:
            path.unlink()


class NpmPlace(Place):
    """A prefix for npm's global packages."""

    def prepare(self) -> None:
        self.prefix = self.folder / "npm"
        self.binary = self.prefix / "bin" / "penstock"
        npm = npm_path()
        assert npm is not None, "npm is not installed"
        self.env["PATH"] = f"{Path(npm).parent}:{self.env['PATH']}"
        self.npm = [npm, "--global", "--prefix", self.prefix, "--offline", "--no-audit", "--no-fund"]
        self.env["npm_config_cache"] = str(self.folder.parent / "npm-cache")

    def install(self, package: Path) -> None:
        run([*self.npm, "install", package], env=self.env, cwd=self.home)

    def uninstall(self) -> None:
        run([*self.npm, "uninstall", "penstock"], env=self.env, cwd=self.home)


def npm_path() -> str | None:
    """The path of the system's npm, or else of the one that tests/run installs."""
    return shutil.which("npm") or shutil.which("npm", path=str(ROOT / ".venv-node" / "bin"))


class DebPlace(Place):
    """This machine's files under an overlay: writes go to memory, and the machine stays unchanged. The overlay ends with the process that
    holds its namespace."""

    # dpkg's own lists, and what the system records about every change
    NOTES = ("/var/lib/dpkg/", "/var/log/", "/var/cache/", "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-")
    SCRIPT = """
    set -e
    mount -t tmpfs tmpfs {folder}/overlay
    mkdir {folder}/overlay/upper {folder}/overlay/work {folder}/overlay/root
    mount -t overlay overlay -o lowerdir=/,upperdir={folder}/overlay/upper,workdir={folder}/overlay/work {folder}/overlay/root
    mount --rbind /dev {folder}/overlay/root/dev
    mount -t proc proc {folder}/overlay/root/proc
    mount -t tmpfs tmpfs {folder}/overlay/root/run
    echo ready
    exec sleep infinity
    """

    def prepare(self) -> None:
        (self.folder / "overlay").mkdir()
        script = self.SCRIPT.format(folder=self.folder)
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        self.holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "ready\n":
            raise PermissionError(f"no overlay can be mounted: {self.holder.stderr.read().strip()}")
        self.root = self.folder / "overlay" / "root"
        self.models = Path(self.env.pop("PENSTOCK__SERVER__MODELS_DIR"))
        self.env |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}

    def close(self) -> None:
        self.holder.kill()
        self.holder.wait()

    def inside(self, *args, user: str | None = None) -> list:
        """A command that runs inside the overlay, as root or as another user."""
        as_user = ["--userspec", f"{user}:{user}"] if user else []
        return ["nsenter", "--target", str(self.holder.pid), "--mount", "chroot", *as_user, str(self.root), *args]

    def command(self, *args: str) -> list:
        """The command as systemd's unit starts it, with the unit's user and configuration."""
        return self.inside("/usr/bin/penstock", "--config", "/etc/penstock/penstock.toml", *args, user="penstock")

    def files(self) -> set[str]:
        """The files that differ from the machine's own."""
        upper = str(self.folder / "overlay" / "upper")
        find = ["nsenter", "--target", str(self.holder.pid), "--mount", "find", upper, "!", "-type", "d"]
        files = {path.removeprefix(upper) for path in run(find).splitlines()}
        return {path for path in files if not path.startswith(self.NOTES) and not self.is_unchanged(path)}

    def is_unchanged(self, path: str) -> bool:
        """Whether a file was rewritten with its old contents, as the lists of users are."""
        own = Path(path)
        return own.is_file() and run(self.inside("sha256sum", path)).split()[0] == run(["sha256sum", path]).split()[0]

    def install(self, package: Path) -> None:
        into = f"/tmp/{package.name}"
        data = package.read_bytes()
        subprocess.run(self.inside("tee", into), input=data, stdout=subprocess.DEVNULL, check=True)
        run(self.inside("dpkg", "--install", into), env=self.env)
        run(self.inside("rm", into))

    def bring_model(self) -> None:
        """Puts the test model into the service's folder, as the service's user."""
        name = MODEL.replace(":", "+")
        pack = subprocess.Popen(["tar", "c", "-C", self.models, name], stdout=subprocess.PIPE)
        run(self.inside("mkdir", "-p", "/var/lib/penstock/models", user="penstock"))
        run(self.inside("tar", "x", "-C", "/var/lib/penstock/models", "--no-same-owner", user="penstock"), stdin=pack.stdout)
        assert pack.wait() == 0

    def remove(self) -> None:
        run(self.inside("dpkg", "--remove", "penstock"), env=self.env)

    def uninstall(self) -> None:
        run(self.inside("dpkg", "--purge", "penstock"), env=self.env)


PLACES = {"whl": WheelPlace, "tar.gz": TarballPlace, "deb": DebPlace, "tgz": NpmPlace}


@contextmanager
def place_for(package: Path, folder: Path, models: Path):
    """A place for packages of this kind."""
    place = next(kind for end, kind in PLACES.items() if package.name.endswith(end))(folder, models)
    try:
        yield place
    finally:
        place.close()


def is_root() -> bool:
    return os.geteuid() == 0
