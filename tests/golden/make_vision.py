#!/usr/bin/env python3
"""Pack the results of a reference for tiny picture models into vision.jsonl.gz, one family per line.

    make_vision.py FOLDER vision.jsonl.gz      FOLDER has a file FAMILY.json per family

A file names a language model (`lm`) and a picture encoder (`mmproj`): metadata, and tensors with their shapes and a rule for their values
(tests/fixtures/vision.rs has the rules). Its `cases` have a prompt, the sizes of pictures, which follow from another rule, and what the
reference computes: chunks of tokens and rows, logits, greedy ids. Of the rows of a picture, every fifth float is kept, and of the
reference's inner stages and of other programs' results nothing."""
import base64
import gzip
import json
import struct
import sys
from pathlib import Path

EVERY = 5


def thin(chunk):
    chunk = {key: value for key, value in chunk.items() if key not in ("stages", "pixels_head")}
    if "embeddings_f32" in chunk:
        floats = memoryview(base64.b64decode(chunk.pop("embeddings_f32"))).cast("f")
        chunk["width_of_rows"] = len(floats) // chunk["rows"]
        kept = list(floats)[::EVERY]
        chunk["every_fifth_f32"] = base64.b64encode(struct.pack(f"<{len(kept)}f", *kept)).decode()
    return chunk


def main(folder, out):
    with gzip.GzipFile(out, "wb", compresslevel=9, mtime=0) as packed:
        for path in sorted(Path(folder).glob("*.json")):
            family = json.loads(path.read_text())
            if "mmproj" not in family:
                continue
            for case in family["cases"]:
                case.pop("llama_cpp", None)
                case["expected"]["chunks"] = [thin(chunk) for chunk in case["expected"]["chunks"]]
            packed.write(json.dumps(family, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
