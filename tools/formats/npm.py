"""Makes an npm package whose command is the binary itself, without a Node process: `npm install -g FILE`, `npx penstock serve`."""

from __future__ import annotations

import json

from formats.archive import DATA, PROGRAM, Tree, tar_gz
from formats.product import SUMMARY, Product, text

CPUS = {"x86_64": "x64", "aarch64": "arm64"}
INDEX = """\
'use strict';
// The path of the binary, for programs that start it themselves: spawn(require('penstock').binary, ['serve']).
exports.binary = require('node:path').join(__dirname, 'bin', 'penstock');
"""
TYPES = """\
/** The path of the binary, for programs that start it themselves. */
export const binary: string;
"""
README = f"""\
# Penstock

{SUMMARY}: `npx penstock serve`. `penstock --help` lists the commands.
"""


def write(product: Product) -> tuple[str, bytes]:
    cpu = CPUS[product.needs.machine]
    manifest = {
        "name": "penstock",
        "version": product.version,
        "description": SUMMARY,
        "license": "Apache-2.0",
        "bin": {"penstock": "bin/penstock"},
        "main": "index.js",
        "types": "index.d.ts",
        "files": ["bin", "share", "index.js", "index.d.ts", "THIRD-PARTY.txt"],
        "os": ["linux"],
        "cpu": [cpu],
        # A static binary runs with any C library.
        **({"libc": ["glibc"]} if product.needs.glibc else {}),
    }
    tree: Tree = {
        "package.json": ((json.dumps(manifest, indent=2) + "\n").encode(), DATA),
        "bin/penstock": (product.binary, PROGRAM),
        "index.js": (INDEX.encode(), DATA),
        "index.d.ts": (TYPES.encode(), DATA),
        "README.md": (README.encode(), DATA),
        "LICENSE": (text("LICENSE"), DATA),
        "THIRD-PARTY.txt": (product.notices, DATA),
    }
    tree |= {f"share/{path}": file for path, file in product.shares().items()}
    pages = [f"share/{path}" for path in product.shares() if path.startswith("man/")]
    if pages:
        # npm -g links these into its prefix.
        manifest["man"] = pages
        tree["package.json"] = ((json.dumps(manifest, indent=2) + "\n").encode(), DATA)
    name = "-".join(filter(None, ["penstock", product.version, "linux", cpu, product.variant]))
    packed = {f"package/{path}": file for path, file in tree.items()}
    return f"{name}.tgz", tar_gz(packed, product.date, product.level, has_folders=False)
