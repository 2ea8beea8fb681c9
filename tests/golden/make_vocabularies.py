"""Writes `vocab/NAME.gguf.gz`: the compressed metadata of a model file, without its tensors.

    tests/golden/make_vocabularies.py NAME=MODEL.gguf …

All vocabularies except `smollm2` are llama.cpp's `models/ggml-vocab-NAME.gguf`. `cases.txt` holds the texts of its `.inp` files (all are
equal), separated by lines `__ggml_vocab_test__`. `NAME.ids` is its `.out` file: one line of ids per text, without the token that begins a
text. `smollm2` is the vocabulary of SmolLM2-135M-Instruct Q4_1.
"""

import gzip
import struct
import sys
from pathlib import Path

# The sizes of GGUF's scalar types by id: u8 i8 u16 i16 u32 i32 f32 bool, then u64 i64 f64.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


def string_end(data: bytes, at: int) -> int:
    return at + 8 + struct.unpack_from("<Q", data, at)[0]


def value_end(data: bytes, at: int, kind: int) -> int:
    if kind == STRING:
        return string_end(data, at)
    if kind != ARRAY:
        return at + SIZES[kind]
    element, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if element in SIZES:
        return at + count * SIZES[element]
    for _ in range(count):
        at = value_end(data, at, element)
    return at


def without_tensors(data: bytes) -> bytes:
    magic, version, _, num_values = struct.unpack_from("<4sIQQ", data)
    assert magic == b"GGUF", "not a GGUF file"
    end = 24
    for _ in range(num_values):
        end = string_end(data, end)
        end = value_end(data, end + 4, struct.unpack_from("<I", data, end)[0])
    return struct.pack("<4sIQQ", magic, version, 0, num_values) + data[24:end]


def main() -> None:
    folder = Path(__file__).parent / "vocab"
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        packed = gzip.compress(without_tensors(Path(path).read_bytes()), 9, mtime=0)
        (folder / f"{name}.gguf.gz").write_bytes(packed)
        print(f"{name}: {len(packed):,} bytes")


main()
