"""Makes a tar archive in the layout of /usr/local. `tar xf FILE -C /usr/local --strip-components=1` installs it. It also runs in place."""

from __future__ import annotations

from formats.archive import DATA, PROGRAM, Tree, tar_gz
from formats.product import Product, text

DOCUMENTS = {"LICENSE": "LICENSE", "CHANGELOG.md": "CHANGELOG.md", "README.md": "README.md", "example.toml": "config/example.toml"}


def name(product: Product) -> str:
    system = "linux-gnu" if product.needs.glibc else "linux-static"
    return "-".join(filter(None, ["penstock", product.version, product.needs.machine, system, product.variant]))


def write(product: Product) -> tuple[str, bytes]:
    tree: Tree = {"bin/penstock": (product.binary, PROGRAM)}
    tree |= {f"share/{path}": file for path, file in product.shares().items()}
    tree |= {f"share/doc/penstock/{file}": (text(source), DATA) for file, source in DOCUMENTS.items()}
    tree["share/doc/penstock/THIRD-PARTY.txt"] = (product.notices, DATA)
    tree["lib/systemd/system/penstock.service"] = (text("deploy/systemd/penstock.service"), DATA)
    tree["share/doc/penstock/gpu.conf"] = (text("deploy/systemd/gpu.conf"), DATA)
    folder = name(product)
    return f"{folder}.tar.gz", tar_gz({f"{folder}/{path}": file for path, file in tree.items()}, product.date, product.level)
