#!/usr/bin/env python3
"""Writes encoders/: weights, and the blocks that ggml's quantisers make from them.

    make_encoders.py LIBRARY     (needs numpy; LIBRARY: a shared library that exports ggml_quantize_chunk, such as the one in the wheel
                                  xllamacpp 2026.10.11549)

`weights.bin` has 8,192 weights as little-endian float32: three eighths are like those of a model, the rest are extreme. `NAME.bin` has the
blocks of a type. A type with a formula must give the same bits. A type with a search must have no larger squared error.
"""

import ctypes
import pathlib
import sys

import numpy as np

TYPES = {
    "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "TQ1_0": 34, "TQ2_0": 35, "MXFP4": 39,
}  # fmt: skip
BYTES = {
    "F16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q2_K": (256, 84),
    "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136),
    "BF16": (1, 2), "TQ1_0": (256, 54), "TQ2_0": (256, 66), "MXFP4": (32, 17),
}  # fmt: skip


def weights() -> np.ndarray:
    rng = np.random.default_rng(20261123)
    like_a_model = rng.normal(0, 0.03, (12, 256)) * rng.lognormal(0, 0.5, (12, 256))
    wild = np.zeros((20, 256))
    for row in range(12):
        # every magnitude of a float that a half-precision scale can hold
        wild[row] = rng.normal(0, 1, 256) * 2.0 ** rng.uniform(-149, 13, (8, 1)).repeat(32, 1).reshape(256)
    wild[12] = rng.choice([0.0, 1.0, -1.0], 256)
    wild[13] = 0.37
    wild[14] = -0.37
    wild[15] = np.abs(rng.normal(0, 1, 256))
    wild[16] = -np.abs(rng.normal(0, 1, 256))
    wild[17, rng.integers(0, 256, 5)] = [1.0, -3.0, 1e-30, -1e-42, 30000.0]
    wild[18] = np.round(rng.normal(0, 4, 256)) / 2  # ties
    # wild[19] stays zero
    return np.concatenate([like_a_model, wild]).astype(np.float32)


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ]  # fmt: skip
    out = pathlib.Path(__file__).parent / "encoders"
    out.mkdir(exist_ok=True)
    values = weights()
    values.tofile(out / "weights.bin")
    for name, kind in TYPES.items():
        size, width = BYTES[name]
        blocks = np.zeros(values.size // size * width, np.uint8)
        written = library.ggml_quantize_chunk(kind, values.ctypes.data, blocks.ctypes.data, 0, len(values), values.shape[1], None)
        assert written == blocks.size, (name, written)
        blocks.tofile(out / f"{name}.bin")


main()
