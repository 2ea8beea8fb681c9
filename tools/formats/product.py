"""The content of packages: the binary, the facts that it prints about itself, and the files that every package contains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from formats import elf
from formats.archive import DATA, Tree, compress
from formats.notices import notices
from formats.problem import Problem

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = "Runs GGUF models and serves them to clients of OpenAI, Anthropic and Ollama"
COMPLETIONS = {
    "bash": "bash-completion/completions/penstock",
    "zsh": "zsh/{zsh}/_penstock",
    "fish": "fish/vendor_completions.d/penstock.fish",
}
# For people who build their own packages.
MAINTAINER = os.environ.get("PENSTOCK_MAINTAINER", "Penstock maintainers <penstock@packages.invalid>")


def text(path: str) -> bytes:
    return (ROOT / path).read_bytes()


def run(command: list, **options) -> str:
    """Runs a program and returns what it prints. A failure is raised as a Problem with the program's own message."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    except FileNotFoundError:
        raise Problem(f"{command[0]} is not installed") from None
    if done.returncode:
        raise Problem(f"{' '.join(map(str, command))} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def changes() -> list[tuple[str, str]]:
    """The releases in CHANGELOG.md, newest first: version and day. Their headings are `## VERSION - YYYY-MM-DD`."""
    releases = re.findall(r"^## (\d\S*) - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md").decode(), flags=re.M)
    if not releases:
        raise Problem("CHANGELOG.md: no heading such as `## 0.1.0 - 2026-11-23`")
    return releases


@dataclass
class Product:
    """A built binary, with the version, commit, target and features that its `--version` prints."""

    path: Path
    # Whether features for tests are accepted: to try the packaging, never to publish.
    for_tests: bool = False

    @cached_property
    def told(self) -> dict[str, str]:
        try:
            printed = run([self.path, "--version"])
        except OSError as error:
            raise Problem(f"{self.path} does not run here: {error.strerror}. Package it on a machine that can run it") from None
        lines = printed.splitlines()
        told = dict(re.findall(r"^(\w+): +(.*)$", printed, re.M))
        missing = [name for name in ("commit", "target", "features") if name not in told]
        if missing or not lines[0].startswith("penstock "):
            raise Problem(f"{self.path} --version does not tell {', '.join(missing) or 'its name'}: it is not a binary of this version")
        return told | {"version": lines[0].split()[1]}

    @property
    def version(self) -> str:
        """The version. It must be that of this source tree, because the tree's files go into the packages."""
        expected = tomllib.loads(text("Cargo.toml").decode())["workspace"]["package"]["version"]
        if self.told["version"] != expected:
            raise Problem(f"{self.path} is version {self.told['version']}, and this source tree is {expected}: build it here")
        return expected

    @property
    def features(self) -> list[str]:
        """Enabled features that matter to users. Features for tests are refused, or left out for a test."""
        features = [name for name in self.told["features"].split(", ") if name != "none"]
        unfit = [name for name in features if name != "cuda"]
        if unfit and not self.for_tests:
            raise Problem(f"{self.path} was built with the feature {', '.join(unfit)}, which is for tests")
        return [name for name in features if name not in unfit]

    @property
    def level(self) -> int:
        """Compression level of archives that hold the binary. Level 9 takes three times as long as 6 and saves 0.8 %. The size of packages
        for tests does not matter."""
        return 1 if self.for_tests else 6

    @property
    def variant(self) -> str:
        """`cuda` if the binary has the engine for NVIDIA GPUs in addition to the CPU's."""
        return "-".join(self.features)

    @cached_property
    def needs(self) -> elf.Needs:
        return elf.read(self.path)

    @cached_property
    def binary(self) -> bytes:
        """The binary without symbols."""
        if self.needs.is_stripped:
            return self.path.read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            stripped = Path(folder) / "penstock"
            run(["strip", "--strip-all", "-o", stripped, self.path])
            return stripped.read_bytes()

    @cached_property
    def date(self) -> int:
        """The time of every file in a package: SOURCE_DATE_EPOCH, or the day of the newest release in CHANGELOG.md."""
        told = os.environ.get("SOURCE_DATE_EPOCH")
        if told is None:
            return int(datetime.fromisoformat(changes()[0][1]).replace(tzinfo=timezone.utc).timestamp())
        if not told.isdigit():
            raise Problem(f"SOURCE_DATE_EPOCH is {told!r}, expected seconds since 1970")
        return int(told)

    @cached_property
    def notices(self) -> bytes:
        return notices(ROOT, self.told["target"], self.features).encode()

    @cached_property
    def commands(self) -> set[str]:
        return set(re.findall(r"^  ([a-z-]+)  ", run([self.path, "--help"]), re.M))

    def shares(self, zsh: str = "site-functions", packs_man: bool = False) -> Tree:
        """Manual pages and shell completions, as the binary prints them, for `share/`."""
        tree: Tree = {}
        if "completions" in self.commands:
            for shell, path in COMPLETIONS.items():
                tree[path.format(zsh=zsh)] = (run([self.path, "completions", shell]).encode(), DATA)
        if "man" in self.commands:
            with tempfile.TemporaryDirectory() as folder:
                run([self.path, "man", folder])
                for page in sorted(Path(folder).rglob("*.1")):
                    data, end = (compress(page.read_bytes()), ".gz") if packs_man else (page.read_bytes(), "")
                    tree[f"man/man1/{page.name}{end}"] = (data, DATA)
        return tree


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Problem(f"{name} is not installed (Debian package {package})")
    return found
