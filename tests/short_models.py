#!/usr/bin/env python3
"""Writes copies of the test models that have only their first layers, for tests whose claims do not depend on what a model says.

    tests/short_models.py STORE OUT

STORE and OUT are folders of models as `penstock pull` makes them. OUT gets a model for each one of STORE, with the same vocabulary, chat
template and manifest, and padded to the same size, so that the program takes it for the model that it fetched, until it compares the hash
(`penstock pull`). A prompt takes a tenth of the time and a token a third.
"""

import shutil
import struct
import sys
from pathlib import Path

LAYERS = 3
# bytes of a value by its type's number (the GGUF specification); 8 is a string, 9 an array
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Reader:
    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, form: str):
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def text(self) -> str:
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def skip(self, kind: int) -> None:
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, count = self.take("I"), self.take("Q")
            if inner in SIZES:
                self.at += SIZES[inner] * count
            else:
                for _ in range(count):
                    self.skip(inner)
        else:
            self.at += SIZES[kind]


def shortened(data: bytes) -> bytes:
    """The file with the first `LAYERS` layers alone."""
    reader = Reader(data)
    assert reader.take("I") == 0x46554747, "a GGUF file"
    version, tensors, pairs = reader.take("I"), reader.take("Q"), reader.take("Q")
    head, alignment = bytearray(), 32
    start = reader.at
    for _ in range(pairs):
        key = reader.text()
        kind = reader.take("I")
        value = reader.at
        reader.skip(kind)
        if key == "general.alignment":
            (alignment,) = struct.unpack_from("<I", data, value)
        if key.endswith(".block_count"):
            head += data[start:value] + struct.pack("<I", LAYERS)
            start = reader.at
    head += data[start : reader.at]
    found = []
    for _ in range(tensors):
        name = reader.text()
        shape = [reader.take("Q") for _ in range(reader.take("I"))]
        found.append((name, shape, reader.take("I"), reader.take("Q")))
    padded = lambda size: -(-size // alignment) * alignment
    base = padded(reader.at)
    ends = dict(zip(sorted(offset for *_, offset in found), sorted(offset for *_, offset in found)[1:] + [len(data) - base]))
    kept = [one for one in found if not one[0].startswith("blk.") or int(one[0].split(".")[1]) < LAYERS]
    infos, body = bytearray(), bytearray()
    for name, shape, kind, offset in kept:
        infos += struct.pack("<Q", len(name)) + name.encode() + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += struct.pack("<IQ", kind, len(body))
        body += data[base + offset : base + ends[offset]]
        body += bytes(padded(len(body)) - len(body))
    out = struct.pack("<IIQQ", 0x46554747, version, len(kept), pairs) + head + infos
    return out + bytes(padded(len(out)) - len(out)) + body


def main(store: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    for folder in sorted(path.parent for path in store.glob("*/manifest.json")):
        data = shortened((folder / "model.gguf").read_bytes())
        target = out / folder.name
        target.mkdir(parents=True)
        with (target / "model.gguf").open("wb") as file:
            file.write(data)
            file.truncate((folder / "model.gguf").stat().st_size)
        shutil.copy(folder / "manifest.json", target)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
