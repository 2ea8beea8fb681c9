"""Writes adapters for the tiny models of `tiny.py`: LoRA as GGUF files and as PEFT folders."""

from __future__ import annotations

import json
import struct

import numpy as np
from tiny import F32, write

RANK = 4


def pairs(model, seed: int, size: float = 1.0, layers: int = 2) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The matrices A [rank, in] and B [out, rank] of some products of a tiny model, by the names of its tensors."""
    random = np.random.default_rng(seed)
    shapes = {"attn_v": (model.kv_width, model.hidden), "ffn_down": (model.hidden, model.ffn)}
    draw = lambda rows, cols: random.standard_normal((rows, cols), dtype=np.float32) * np.float32(size / np.sqrt(cols))
    names = [(f"blk.{layer}.{name}.weight", shape) for layer in range(layers) for name, shape in shapes.items()]
    return {name: (draw(RANK, cols), draw(rows, RANK)) for name, (rows, cols) in names}


def write_lora(path, model, seed: int = 7, size: float = 1.0, alpha: float = 2 * RANK, **metadata) -> None:
    """Writes a LoRA as a GGUF file."""
    kv = {"general.architecture": model.arch, "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float(alpha)}
    tensors = {}
    for name, (a, b) in pairs(model, seed, size).items():
        tensors |= {f"{name}.lora_a": (a, F32), f"{name}.lora_b": (b, F32)}
    write(path, kv | metadata, tensors)


def write_peft(folder, model, seed: int = 7, size: float = 1.0, alpha: float = 2 * RANK) -> None:
    """Writes the same LoRA as PEFT does."""
    names = {"attn_v": "self_attn.v_proj", "ffn_down": "mlp.down_proj"}
    tensors = {}
    for name, (a, b) in pairs(model, seed, size).items():
        _, layer, kind, _ = name.split(".")
        module = f"base_model.model.model.layers.{layer}.{names[kind]}"
        tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": alpha, "target_modules": ["v_proj", "down_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    head, data = {}, b""
    for name, array in tensors.items():
        head[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(head).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
