#!/usr/bin/env python3
"""Add Gemma 4 Unified, which has no picture encoder, to vision.jsonl.gz.

    make_encoder_free.py vision.jsonl.gz

The language model is that of `gemma4`. The rows follow the definition of `Gemma4UnifiedVisionEmbedder` (transformers 5.24) in float64: a
patch of 48 x 48 pixels from 0 to 1, LayerNorm, a product with bias, LayerNorm, embeddings of the column and the row, LayerNorm, an RMS norm
without weights, a product. Logits are not known. Needs numpy and Pillow."""
import base64
import gzip
import json
import struct
import sys
import zlib

import numpy as np
from PIL import Image

SIDE, PATCH, CELL, HIDDEN, WIDTH, PLACES, MOST_ROWS, EVERY = 16, 3 * 48 * 48, 48, 64, 128, 280, 280, 5


def uniform(name, count):
    mask = 2**64 - 1
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 & mask
    out = np.empty(count, np.float32)
    for i in range(count):
        z = seed + i + 0x9E3779B97F4A7C15 & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        z ^= z >> 31
        out[i] = (z >> 40) / 2**23 - 1
    return out


def weights(name, shape, rule):
    u = uniform(name, int(np.prod(shape))).reshape(shape)
    return {
        "u": lambda: u,
        "norm": lambda: np.float32(1) + np.float32(0.25) * u,
        "small": lambda: np.float32(0.2) * u,
        "matrix": lambda: u * np.float32(2.1 / np.sqrt(shape[-1])),
    }[rule]().astype(np.float64)


def picture(w, h):
    x, y = np.meshgrid(np.arange(w), np.arange(h))
    pixels = np.stack([x * 255 // (w - 1), y * 255 // (h - 1), (37 * x + 91 * y) % 256], axis=-1)
    pixels[(4 * x - 2 * w) ** 2 * h * h + (4 * y - 2 * h) ** 2 * w * w < (w * h) ** 2] = (220, 40, 60)
    pixels[(w // 8 <= x) & (x < w // 3) & (h // 8 <= y) & (y < h // 3)] = (20, 200, 90)
    pixels[x * h // w == y] = (255, 255, 255)
    return pixels.astype(np.uint8)


TENSORS = [
    ["v.patch_embd.weight", [HIDDEN, PATCH], "matrix"],
    ["v.patch_embd.bias", [HIDDEN], "small"],
    ["v.patch_norm.1.weight", [PATCH], "norm"],
    ["v.patch_norm.1.bias", [PATCH], "small"],
    ["v.patch_norm.2.weight", [HIDDEN], "norm"],
    ["v.patch_norm.2.bias", [HIDDEN], "small"],
    ["v.patch_norm.3.weight", [HIDDEN], "norm"],
    ["v.patch_norm.3.bias", [HIDDEN], "small"],
    ["v.position_embd.weight", [2, PLACES, HIDDEN], "u"],
    ["mm.input_projection.weight", [WIDTH, HIDDEN], "matrix"],
]
METADATA = [
    ["clip.has_vision_encoder", "BOOL", None, True],
    ["clip.vision.projector_type", "STRING", None, "gemma4uv"],
    ["clip.vision.image_size", "UINT32", None, 224],
    ["clip.vision.patch_size", "UINT32", None, SIDE],
    ["clip.vision.embedding_length", "UINT32", None, HIDDEN],
    ["clip.vision.feed_forward_length", "UINT32", None, 0],
    ["clip.vision.block_count", "UINT32", None, 0],
    ["clip.vision.attention.head_count", "UINT32", None, 0],
    ["clip.vision.projection_dim", "UINT32", None, WIDTH],
    ["clip.vision.attention.layer_norm_epsilon", "FLOAT32", None, 1e-06],
    ["clip.vision.image_mean", "ARRAY", "FLOAT32", [0.0, 0.0, 0.0]],
    ["clip.vision.image_std", "ARRAY", "FLOAT32", [1.0, 1.0, 1.0]],
]


def size_of(w, h):
    """Both sides as long as the number of rows allows."""
    factor = np.sqrt(MOST_ROWS * CELL * CELL / (w * h))
    return int(factor * w / CELL) * CELL, int(factor * h / CELL) * CELL


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def rows_of(pixels, w):
    height, width, _ = pixels.shape
    down, across = height // CELL, width // CELL
    tiles = pixels.astype(np.float64).reshape(down, CELL, across, CELL, 3) / 255
    patches = tiles.transpose(0, 2, 4, 1, 3).reshape(down * across, PATCH)  # colour by colour, as the file's matrix
    x = layer_norm(patches, w["v.patch_norm.1.weight"], w["v.patch_norm.1.bias"])
    x = x @ w["v.patch_embd.weight"].T + w["v.patch_embd.bias"]
    x = layer_norm(x, w["v.patch_norm.2.weight"], w["v.patch_norm.2.bias"])
    row, column = np.divmod(np.arange(down * across), across)
    x = x + w["v.position_embd.weight"][0, column] + w["v.position_embd.weight"][1, row]
    x = layer_norm(x, w["v.patch_norm.3.weight"], w["v.patch_norm.3.bias"])
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x @ w["mm.input_projection.weight"].T


def case(size, w, before, behind):
    width, height = size_of(*size)
    given = picture(*size)
    resized = np.asarray(Image.fromarray(given).resize((width, height), Image.BICUBIC))
    rows = rows_of(resized, w)
    floats = rows.astype(np.float32).ravel()[::EVERY]
    position = len(before)
    chunks = [
        {"pos": 0, "tokens": before},
        {
            "pos": position,
            "rows": len(rows),
            "positions_used": len(rows),
            "width": width,
            "height": height,
            "rgb_crc32": f"{zlib.crc32(resized.tobytes()):08x}",
            "width_of_rows": WIDTH,
            "every_fifth_f32": base64.b64encode(struct.pack(f"<{len(floats)}f", *floats)).decode(),
        },
        {"pos": position + len(rows), "tokens": behind},
    ]
    return {"pictures": [list(size)], "expected": {"n_past": position + len(rows) + len(behind), "chunks": chunks, "logits": [], "greedy": []}}


def main(path):
    lines = [json.loads(line) for line in gzip.decompress(open(path, "rb").read()).splitlines()]
    gemma4 = next(line for line in lines if line["family"] == "gemma4")
    w = {name: weights(name, shape, rule) for name, shape, rule in TENSORS}
    tokens = [chunk["tokens"] for chunk in gemma4["cases"][0]["expected"]["chunks"] if "tokens" in chunk]
    cases = [{"prompt": gemma4["cases"][0]["prompt"], **case(size, w, *tokens)} for size in [(96, 96), (768, 768), (336, 960)]]
    mmproj = {"architecture": "clip", "metadata": METADATA, "tensors": TENSORS}
    own = {"family": "gemma4uv", "note": "no encoder", "lm": gemma4["lm"], "mmproj": mmproj, "cases": cases}
    lines = sorted([line for line in lines if line["family"] != "gemma4uv"] + [own], key=lambda line: line["family"])
    with gzip.GzipFile(path, "wb", compresslevel=9, mtime=0) as packed:
        packed.writelines(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
