"""Writes the tiny picture models of `tests/golden/vision.jsonl.gz`, with their pictures: a language model and its picture encoder. Their
weights follow the rules that the reference had, so the answers are the reference's, too."""

from __future__ import annotations

import functools
import gzip
import json
import struct
import zlib

import numpy as np
from harness import ROOT
from tiny import F32, uniform, write

VOCAB = 320
# Shows pictures as the unused token 300, and no text of a role.
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<unused300>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
RULES = {"u": (0, 1), "norm": (1, 0.25), "small": (0, 0.2), "factor": (4.5, 3.5)}


@functools.cache
def families() -> dict[str, dict]:
    with gzip.open(ROOT / "tests" / "golden" / "vision.jsonl.gz", "rt") as lines:
        return {model["family"]: model for model in map(json.loads, lines)}


def values(name: str, shape, rule: str) -> np.ndarray:
    columns = {"matrix": shape[-1], "conv": int(np.prod(shape[1:]))}
    offset, factor = RULES.get(rule) or (0, 2.1 / np.sqrt(columns[rule]))
    return np.float32(offset) + np.float32(factor) * uniform(name, shape)


def vocabulary(specials: list[str], add_bos: bool) -> dict:
    """Byte-level BPE: the bytes, two newlines (the only merge), control tokens, unused ones."""
    is_kept = lambda byte: 33 <= byte < 127 or 161 <= byte < 173 or 174 <= byte
    shifted = iter(range(256, 512))
    tokens = [chr(byte) if is_kept(byte) else chr(next(shifted)) for byte in range(256)]
    newline = tokens[10]
    tokens += [newline * 2, *specials]
    unused = [f"<unused{i}>" for i in range(len(tokens), VOCAB)]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens + unused,
        "tokenizer.ggml.token_type": [1] * 257 + [3] * len(specials) + [5] * len(unused),
        "tokenizer.ggml.merges": [f"{newline} {newline}"], "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.eos_token_id": 258, "tokenizer.ggml.add_bos_token": add_bos,
    }  # fmt: skip


def write_part(path, part: dict, more: dict, changed: dict | None = None) -> None:
    kv = {"general.architecture": part["architecture"]} | {
        key: float(value) if kind == "FLOAT32" else value for key, kind, _, value in part["metadata"]
    }
    weights = {name: values(name, shape, rule) for name, shape, rule in part["tensors"]}
    for name, other in (changed or {}).items():
        weights[name] = np.broadcast_to(np.float32(other), weights[name].shape)
    write(path, kv | more, {name: (weight, F32) for name, weight in weights.items()})


def write_language(path, family: str = "gemma3", metadata: dict | None = None) -> None:
    """Writes the language model of a family with its vocabulary."""
    part = families()[family]["lm"]
    write_part(path, part, vocabulary(part["specials"], part["add_bos"]) | (metadata or {}))


def write_encoder(path, family: str = "gemma3", changed: dict | None = None) -> None:
    """Writes the picture encoder (mmproj) of a family. `changed`: other values of some tensors."""
    write_part(path, families()[family]["mmproj"], {}, changed)


def png(pixels: np.ndarray) -> bytes:
    """Encodes pixels [height, width, 3]."""
    height, width, _ = pixels.shape
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines.tobytes())) + chunk(b"IEND", b"")


def picture(w: int, h: int) -> bytes:
    """The picture of this size that the reference was given, as PNG: gradients with an ellipse, a box and a diagonal."""
    y, x = np.mgrid[:h, :w].astype(np.int64)
    pixels = np.stack([x * 255 // (w - 1), y * 255 // (h - 1), (37 * x + 91 * y) % 256], axis=2)
    pixels[(4 * x - 2 * w) ** 2 * h * h + (4 * y - 2 * h) ** 2 * w * w < (w * h) ** 2] = (220, 40, 60)
    pixels[(w // 8 <= x) & (x < w // 3) & (h // 8 <= y) & (y < h // 3)] = (20, 200, 90)
    pixels[x * h // w == y] = (255, 255, 255)
    return png(pixels.astype(np.uint8))


def entry(name, path, folder) -> str:
    return f'[[models]]\nid = "{name}"\nsource = {{ type = "file", path = "{path}" }}\nchat_template = "{folder}/chat.jinja"\n'


def write_seeing(folder) -> str:
    """Writes a model that sees, and the configuration that serves it as `eyes`. Returns the configuration's path."""
    (folder / "chat.jinja").write_text(TEMPLATE)
    write_language(folder / "eyes.gguf")
    write_encoder(folder / "mmproj-eyes.gguf")
    (folder / "config.toml").write_text('[server]\ndefault_models = ["eyes"]\n' + entry("eyes", folder / "eyes.gguf", folder))
    return str(folder / "config.toml")
