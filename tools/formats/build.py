"""Builds the binary that is packaged: its paths of the build's machine are cut, and its glibc may be chosen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from formats.problem import Problem
from formats.product import ROOT

TARGET_DIR = ROOT / "target" / "package"
GLIBC_TARGETS = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


def commit() -> str | None:
    """The checkout's commit, if the sources are those of one."""
    git = lambda *args: subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True)
    if not (ROOT / ".git").exists() or git("status", "--porcelain", "--untracked-files=no").stdout.strip():
        return None
    return git("rev-parse", "--short=12", "HEAD").stdout.strip() or None


def environment() -> dict[str, str]:
    """The environment of a build whose result does not tell where it was made."""
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    places = {ROOT: "/penstock", home: "/cargo"}
    env = dict(os.environ)
    env["RUSTFLAGS"] = " ".join(filter(None, [env.get("RUSTFLAGS"), *(f"--remap-path-prefix={a}={b}" for a, b in places.items())]))
    for name in ("CFLAGS", "CXXFLAGS"):
        env[name] = " ".join(filter(None, [env.get(name), *(f"-ffile-prefix-map={a}={b}" for a, b in places.items())]))
    told = commit()
    if told is not None:
        env.setdefault("PENSTOCK_BUILD", told)
    return env


def build(features: str, glibc: str | None) -> Path:
    """Builds the release binary and returns its path."""
    command = ["cargo", "build"]
    folder = TARGET_DIR
    if glibc is not None:
        if "cuda" in features:
            raise Problem("--glibc and --features cuda do not go together: nvcc's host code is compiled for this machine's glibc")
        if shutil.which("cargo-zigbuild") is None:
            raise Problem("--glibc needs cargo-zigbuild on PATH: pip install cargo-zigbuild ziglang")
        target = GLIBC_TARGETS[os.uname().machine]
        command, folder = ["cargo", "zigbuild", "--target", f"{target}.{glibc}"], TARGET_DIR / target
    command += ["--release", "--locked", "--bin", "penstock", "--target-dir", TARGET_DIR]
    command += ["--features", features] if features else []
    print(" ".join(map(str, command)), file=sys.stderr)
    if subprocess.run([str(part) for part in command], cwd=ROOT, env=environment()).returncode:
        raise Problem("the build failed")
    return folder / "release" / "penstock"
