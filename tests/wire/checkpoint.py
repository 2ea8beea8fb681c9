"""Writes tiny Hugging Face checkpoints: config.json, safetensors in one file or several, and a tokenizer."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
from harness import ROOT
from tiny import layout_values

GOLDEN = ROOT / "tests" / "golden"


def bf16(x: np.ndarray) -> np.ndarray:
    """Rounds to bfloat16 (ties to even) and returns the bits."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


ENCODE = {"F32": lambda x: np.ascontiguousarray(x, np.float32), "F16": lambda x: np.ascontiguousarray(x, np.float16), "BF16": bf16}


def safetensors(tensors: dict, kind: str = "F32") -> bytes:
    """Encodes these arrays as a safetensors file."""
    header, data = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, array in tensors.items():
        encoded = ENCODE[kind](array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(encoded)]}
        data += encoded
    return framed(header) + bytes(data)


def framed(header: dict | bytes) -> bytes:
    """Encodes a header, preceded by its length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def write_tokenizer(folder: Path, count: int) -> None:
    """Writes a byte-level vocabulary, whose tokens are single bytes."""
    tokens = ["a", "b", "ab"] + [f"t{i}" for i in range(3, count)]
    added = [{"id": i, "content": tokens[i], "special": True} for i in range(3, 5)]
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": [["a", "b"]]}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "pre_tokenizer": level, "decoder": level, "model": model}))


class Checkpoint:
    """A checkpoint in memory. Tests change it, then write it."""

    def __init__(self, config: dict, shapes: list):
        self.config = config
        self.tensors = {name: layout_values(name, shape) for name, shape in shapes}

    def write(self, folder: Path, kind: str = "F32", shards: int = 1) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        text = self.config.get("text_config", self.config)
        write_tokenizer(folder, text["vocab_size"])
        if shards == 1:
            (folder / "model.safetensors").write_bytes(safetensors(self.tensors, kind))
            return folder
        names, weight_map = list(self.tensors), {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            own = names[shard::shards]
            (folder / file).write_bytes(safetensors({name: self.tensors[name] for name in own}, kind))
            weight_map |= dict.fromkeys(own, file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return folder


def golden() -> tuple[list, dict]:
    """The prompts of `checkpoints.jsonl.gz`, and its models by name."""
    lines = gzip.decompress((GOLDEN / "checkpoints.jsonl.gz").read_bytes()).decode().splitlines()
    models = [json.loads(line) for line in lines[1:]]
    return json.loads(lines[0]), {model["name"]: model for model in models}
