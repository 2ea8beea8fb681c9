"""Collects the licences of the libraries linked into the binary, which must be distributed with it."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path

from formats.problem import Problem

IS_LICENCE = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.I)
HEAD = """\
Penstock is licensed under the Apache License 2.0 (see LICENSE). Its binary contains the libraries below, under their own licences.
Where a library offers several licences, Penstock takes Apache-2.0 if it is among them, or else MIT. The standard library of Rust
(MIT OR Apache-2.0) and Swagger UI (Apache-2.0) are in it, too.
"""
CUDA = """\
The CUDA runtime (libcudart_static, Copyright NVIDIA Corporation) is linked in. NVIDIA's End User License Agreement for the CUDA Toolkit
permits its distribution as a part of an application: https://docs.nvidia.com/cuda/eula/
"""
RULE = "\n" + "-" * 80 + "\n"


def linked(root: Path, target: str, features: list[str]) -> list[dict]:
    """The packages whose code is linked into the binary, except ours and those that only tests or build scripts use."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={target}", "--features", ",".join(features)]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        raise Problem("cargo is not installed: it lists the libraries in the binary, whose licences the package must contain") from None
    if done.returncode:
        raise Problem(f"cargo metadata failed: {done.stderr.strip()}")
    data = json.loads(done.stdout)
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    todo, seen = [data["resolve"]["root"]], set()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        is_macro = any("proc-macro" in target["kind"] for target in packages[one]["targets"])
        links = [dep["pkg"] for dep in nodes[one]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        todo += [] if is_macro else links
    found = [packages[one] for one in seen if packages[one]["source"] is not None]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def notices(root: Path, target: str, features: list[str]) -> str:
    """Writes each library's name, version, licence and notices. Equal texts appear once."""
    packages = linked(root, target, features)
    users = defaultdict(list)
    for package in packages:
        folder = Path(package["manifest_path"]).parent
        # Some packages contain code of others, for example in C, with its licence next to it.
        for file in sorted(folder.rglob("*")):
            if file.is_file() and IS_LICENCE.match(file.name):
                lines = file.read_text(errors="replace").replace("\r\n", "\n").strip("\n").split("\n")
                users["\n".join(line.rstrip() for line in lines)].append(f"{package['name']} {package['version']}")
    names = [f"{package['name']} {package['version']}: {package['license'] or 'see below'}" for package in packages]
    parts = [HEAD + ("\n" + CUDA if "cuda" in features else "") + "\n" + "\n".join(names) + "\n"]
    for words, of in sorted(users.items(), key=lambda item: (item[1], item[0])):
        parts.append(f"{', '.join(dict.fromkeys(of))}\n\n{words}\n")
    # Data built into the binary, such as the libraries of the chat page.
    for file in sorted(root.glob("src/**/licences.txt")):
        parts.append(f"Parts of {file.parent.relative_to(root)}\n\n{file.read_text().strip()}\n")
    return RULE.join(parts)
