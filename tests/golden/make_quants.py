#!/usr/bin/env python3
"""Writes the code books and quants/NAME.bin: random blocks of each tensor type, with the weights that the gguf package decodes from them.

    make_quants.py        (needs numpy and gguf, writes into its own folder and cuda/quant/books/)

A file has the bytes of the blocks, then their weights as little-endian float32. BLOCKS has the numbers of blocks, which the Rust test
derives from the length of the file. Scales (float16) are random bits except NaN and infinity, so the bits of every product can be
compared, and subnormal and huge scales occur.
"""

import pathlib

import numpy as np
from gguf import GGMLQuantizationType as T, dequantize
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES

BLOCKS = {1: 512, 32: 24, 64: 72, 256: 6}
# Byte offsets of the float16 fields in a block.
HALVES = {
    "F32": [],
    "F16": [0],
    "BF16": [],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "IQ1_S": [0],
    "IQ1_M": [],
    "TQ1_0": [52],
    "TQ2_0": [64],
    "MXFP4": [],
    "NVFP4": [],
}

rng = np.random.default_rng(20261121)
out = pathlib.Path(__file__).parent / "quants"
for name, halves in HALVES.items():
    block_size, block_bytes = GGML_QUANT_SIZES[T[name]]
    n = BLOCKS[block_size]
    blocks = rng.integers(0, 256, (n, block_bytes), dtype=np.uint8)
    for at in halves:
        half = rng.integers(0, 0x7C00, n, dtype=np.uint16) | (rng.integers(0, 2, n, dtype=np.uint16) << 15)
        half[0] = 0x3C00 + at  # about 1
        half[-1] = at + 1  # subnormal
        blocks[:, at : at + 2] = half.astype("<u2").view(np.uint8).reshape(n, 2)
    if name in ("F32", "BF16"):
        blocks[:, -1] &= 0xBF  # an exponent below 2^1: no NaN
    if name == "IQ1_M":
        blocks[:, 55] &= 0xBF  # the scale is spread over four bytes; this bit is the exponent's highest
    if name == "MXFP4":
        blocks[:3, 0] = 0, 1, 255  # subnormal scales, and the largest
    if name == "NVFP4":
        blocks[:64, :4] = np.arange(256).reshape(64, 4)  # every scale
    if name == "F32":
        weights = blocks.view("<f4").reshape(-1).copy()
    elif name == "F16":
        weights = blocks.view("<f2").reshape(-1).astype(np.float32)
    else:
        weights = dequantize(blocks.reshape(-1), T[name]).reshape(-1)
    assert weights.dtype == np.float32 and weights.size == n * block_size and not np.isnan(weights).any(), name
    (out / f"{name}.bin").write_bytes(blocks.tobytes() + weights.astype("<f4").tobytes())

# Code books: an entry lists its elements' indexes into the type's levels as four hexadecimal digits, the first element lowest.
books = pathlib.Path(__file__).parents[2] / "cuda" / "quant" / "books"
books.mkdir(exist_ok=True)
for name in ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"):
    kind = getattr(quants, name)
    kind.init_grid()
    index = np.searchsorted(kind.grid_map, kind.grid.reshape(kind.grid_shape)).astype(np.uint32)
    bits = 16 // kind.grid_shape[1]
    text = "".join(f"{entry:04x}" for entry in (index << np.arange(0, 16, bits)).sum(axis=1))
    lines = [f"// {kind.grid_shape[0]} entries of {kind.grid_shape[1]} indexes, {bits} bits each, written by tests/golden/make_quants.py"]
    lines += [f'"{text[at : at + 128]}"' for at in range(0, len(text), 128)]
    (books / f"{name.lower()}.inc").write_text("\n".join(lines) + "\n")
