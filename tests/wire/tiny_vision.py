"""Writes the tiny picture models of `tests/golden/vision.jsonl.gz`: a language model and its picture encoder."""

from __future__ import annotations

import functools
import gzip
import json

from harness import ROOT
from tiny import F32, layout_values, write

VOCAB = 320


@functools.cache
def families() -> dict[str, dict]:
    with gzip.open(ROOT / "tests" / "golden" / "vision.jsonl.gz", "rt") as lines:
        return {model["family"]: model for model in map(json.loads, lines)}


def write_part(path, part: dict, more: dict) -> None:
    """The values follow from the tensors' names, not from the file's rules: no test of this folder compares logits of these models."""
    kv = {"general.architecture": part["architecture"]} | {
        key: float(value) if kind == "FLOAT32" else value for key, kind, _, value in part["metadata"]
    }
    write(path, kv | more, {name: (layout_values(name, shape), F32) for name, shape, _ in part["tensors"]})


def write_language(path, family: str = "gemma3", metadata: dict | None = None) -> None:
    """Writes the language model of a family, with a vocabulary of its own."""
    own = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [f"<{i}>" for i in range(VOCAB)],
        "tokenizer.ggml.scores": [0.0] * VOCAB, "tokenizer.ggml.token_type": [1] * VOCAB,
    }  # fmt: skip
    write_part(path, families()[family]["lm"], own | (metadata or {}))


def write_encoder(path, family: str = "gemma3") -> None:
    """Writes the picture encoder (mmproj) of a family."""
    write_part(path, families()[family]["mmproj"], {})
