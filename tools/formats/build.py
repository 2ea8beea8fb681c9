"""Builds the binary to package, without paths of the build machine and, on request, for an older glibc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from formats.problem import Problem
from formats.product import ROOT

TARGET_DIR = ROOT / "target" / "package"


@dataclass
class Wish:
    """What to build."""

    features: str = ""
    # Oldest glibc that the binary must run with. None: this machine's.
    glibc: str | None = None
    # Links the C library statically.
    is_static: bool = False
    profile: str = "release"


def commit() -> str | None:
    """The commit of the checkout, or None outside of a checkout and if files have changed."""
    git = lambda *args: subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True)
    if not (ROOT / ".git").exists() or git("status", "--porcelain", "--untracked-files=no").stdout.strip():
        return None
    return git("rev-parse", "--short=12", "HEAD").stdout.strip() or None


def environment(flags: list[str]) -> dict[str, str]:
    """The environment of a build whose result does not reveal where it was built."""
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    places = {ROOT: "/penstock", home: "/cargo"}
    env = dict(os.environ)
    env["RUSTFLAGS"] = " ".join([*env.get("RUSTFLAGS", "").split(), *flags, *(f"--remap-path-prefix={a}={b}" for a, b in places.items())])
    for name in ("CFLAGS", "CXXFLAGS"):
        env[name] = " ".join([*env.get(name, "").split(), *(f"-ffile-prefix-map={a}={b}" for a, b in places.items())])
    told = commit()
    if told is not None:
        env.setdefault("PENSTOCK_BUILD", told)
    return env


def build(wish: Wish) -> Path:
    """Builds the binary and returns its path."""
    if "cuda" in wish.features and (wish.glibc or wish.is_static):
        which, why = ("--glibc", "nvcc compiles for this machine's") if wish.glibc else ("--static", "the driver is a shared library")
        raise Problem(f"{which} and --features cuda do not go together: {why}")
    if wish.glibc and wish.is_static:
        raise Problem("--glibc and --static do not go together: a static binary needs no glibc")
    if wish.glibc and shutil.which("cargo-zigbuild") is None:
        raise Problem("--glibc needs cargo-zigbuild on PATH: pip install cargo-zigbuild ziglang")
    command, folder, flags = ["cargo", "build"], TARGET_DIR, []
    if wish.glibc or wish.is_static:
        # With an explicit target, build scripts and macros are still built for this machine.
        target = f"{os.uname().machine}-unknown-linux-gnu"
        folder = TARGET_DIR / target
        command = ["cargo", "zigbuild", f"--target={target}.{wish.glibc}"] if wish.glibc else ["cargo", "build", f"--target={target}"]
        flags = ["-Ctarget-feature=+crt-static"] if wish.is_static else []
    command += ["--profile", wish.profile, "--locked", "--bin", "penstock", "--target-dir", str(TARGET_DIR)]
    command += ["--features", wish.features] if wish.features else []
    print(" ".join(command), file=sys.stderr)
    if subprocess.run(command, cwd=ROOT, env=environment(flags)).returncode:
        raise Problem("the build failed")
    return folder / wish.profile / "penstock"
