"""Writes tiny models and their adapters by rule: LoRA and control vectors in GGUF, and the folders of PEFT.

The numbers follow from an adapter's name and a tensor's (`tiny.uniform`), so `tests/golden/adapters.jsonl.gz` holds only shapes."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
from checkpoint import safetensors
from tiny import F16, F32, layout_values, uniform, write

GOLDEN = Path(__file__).parents[1] / "golden" / "adapters.jsonl.gz"
PROMPTS, *CASES = [json.loads(line) for line in gzip.decompress(GOLDEN.read_bytes()).splitlines()]
F = np.float32
TABLE = "token_embd.weight"


def base_values(name: str, shape) -> np.ndarray:
    if "rope_freqs" in name or "rope_factors" in name:
        return F(4.5) + F(3.5) * uniform(name, shape)
    return layout_values(name, shape)


def write_model(path: Path, case: dict) -> None:
    """Writes the model of a case."""
    if case["form"] == "peft":
        return write_converted(path, case["config"])
    kv = {"general.architecture": case["architecture"], "tokenizer.ggml.model": "no_vocab"}
    kv |= {key: float(v) if kind == "FLOAT32" else v for key, kind, _, v in case["metadata"]}
    write(path, kv, {name: (base_values(name, shape), F32) for name, shape in case["tensors"]})


def write_adapter(folder: Path, case: dict, name: str) -> Path:
    """Writes an adapter of a case and returns its path."""
    if case["form"] == "peft":
        return write_folder(folder / name, case, name)
    path = folder / f"{name}.gguf"
    {"lora": write_lora, "vector": write_vector}[case["form"]](path, case, name)
    return path


# --- GGUF ---


def halves(adapter: str, name: str, shape: list[int], rank: int) -> dict:
    """Both halves of a tensor's change. The table of tokens has their roles turned round."""
    *experts, rows, cols = shape
    a, b = (lambda half, *dims: uniform(f"{adapter}/{name}.{half}", [*experts, *dims]),) * 2
    if name == TABLE:
        return {"lora_a": a("lora_a", rows, rank), "lora_b": F(0.5) * b("lora_b", cols, rank)}
    return {"lora_a": a("lora_a", rank, cols) * F(2.1 / np.sqrt(cols)), "lora_b": F(0.5) * b("lora_b", rows, rank)}


def lora_tensors(case: dict, name: str) -> dict:
    adapter = case["adapters"][name]
    kind = F16 if adapter.get("f16") else F32
    pairs = ((tensor, halves(name, tensor, shape, rank or adapter["rank"])) for tensor, shape, rank in adapter["tensors"])
    return {f"{tensor}.{half}": (numbers, kind) for tensor, pair in pairs for half, numbers in pair.items()}


def write_lora(path: Path, case: dict, name: str) -> None:
    kv = {"general.architecture": case["architecture"], "general.type": "adapter", "adapter.type": "lora"}
    if (alpha := case["adapters"][name]["alpha"]) is not None:
        kv["adapter.lora.alpha"] = float(alpha)
    write(path, kv, lora_tensors(case, name))


def write_vector(path: Path, case: dict, name: str) -> None:
    layers = case["adapters"][name]["layers"]
    width = next(value for key, _, _, value in case["metadata"] if key.endswith(".embedding_length"))
    kv = {"general.architecture": "controlvector", "controlvector.model_hint": case["architecture"]}
    kv["controlvector.layer_count"] = len(layers)
    write(path, kv, {f"direction.{i}": (F(0.3) * uniform(f"{name}/direction.{i}", [width]), F32) for i in layers})


# --- PEFT ---

MODULES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def module_values(name: str, shape, key: str | None = None) -> np.ndarray:
    u = uniform(key or name, shape)
    if "magnitude" in name:
        return F(1.2) + F(0.25) * u
    if "lora_B" in name or "lora_embedding_B" in name:
        return F(0.5) * u
    if "lora_embedding_A" in name or "embed_tokens.weight" in name:
        return u
    return F(1) + F(0.25) * u if "norm" in name else u * F(2.1 / np.sqrt(shape[-1]))


def module_shapes(config: dict) -> dict:
    """The shape of each module's weights."""
    hidden, ffn, vocab, dim = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size", "head_dim"))
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    layer = {
        "input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.q_proj": [queries, hidden],
        "self_attn.k_proj": [keys, hidden], "self_attn.v_proj": [keys, hidden], "self_attn.o_proj": [hidden, queries],
        "mlp.gate_proj": [ffn, hidden], "mlp.up_proj": [ffn, hidden], "mlp.down_proj": [hidden, ffn],
    }  # fmt: skip
    shapes = {"model.embed_tokens": [vocab, hidden], "model.norm": [hidden], "lm_head": [vocab, hidden]}
    return shapes | {f"model.layers.{i}.{name}": shape for i in range(config["num_hidden_layers"]) for name, shape in layer.items()}


def paired(rows: np.ndarray, dim: int) -> np.ndarray:
    """Moves the rows of each head from halves to neighbours, as files of llama hold queries and keys."""
    return rows.reshape(-1, 2, dim // 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def write_converted(path: Path, config: dict) -> None:
    kv = {
        "vocab_size": config["vocab_size"], "context_length": config["max_position_embeddings"], "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"], "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"], "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"],
        "rope.dimension_count": config["head_dim"], "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(config["rope_theta"]),
    }  # fmt: skip
    tensors = {}
    for module, shape in module_shapes(config).items():
        numbers = module_values(f"{module}.weight", shape)
        if module.endswith(("q_proj", "k_proj")):
            numbers = paired(numbers, config["head_dim"])
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", module)
        name = f"blk.{layer[1]}.{MODULES[layer[2]]}" if layer else ENDS[module]
        tensors[f"{name}.weight"] = (numbers, F32)
    own = {"general.architecture": "llama", "tokenizer.ggml.model": "no_vocab"}
    write(path, own | {f"llama.{key}": value for key, value in kv.items()}, tensors)


def folder_tensors(case: dict, name: str) -> dict:
    adapter, shapes = case["adapters"][name], module_shapes(case["config"])
    wanted = {}
    for module, shape in shapes.items():
        layer = re.search(r"layers\.(\d+)\.", module)
        only = adapter.get("layers_to_transform")
        if module.split(".")[-1] not in adapter["target_modules"] or (only is not None and layer and int(layer[1]) not in only):
            continue
        fits = (rank for end, rank in adapter.get("rank_pattern", {}).items() if re.fullmatch(rf"(.*\.)?({end})", module))
        rank, (rows, cols) = next(fits, adapter["r"]), shape
        if module.endswith("embed_tokens"):
            wanted |= {f"{module}.lora_embedding_A": [rank, rows], f"{module}.lora_embedding_B": [cols, rank]}
            continue
        wanted |= {f"{module}.lora_A.weight": [rank, cols], f"{module}.lora_B.weight": [rows, rank]}
        if adapter.get("use_dora"):
            wanted[f"{module}.lora_magnitude_vector"] = [rows]
    wanted |= {f"{module}.weight": shapes[module] for module in adapter.get("modules_to_save", [])}
    full = {f"base_model.model.{key}": shape for key, shape in wanted.items()}
    return {key: module_values(key, shape, f"{name}/{key}") for key, shape in full.items()}


def write_folder(folder: Path, case: dict, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    plain = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": case["base"], "bias": "none", "lora_dropout": 0.0}
    (folder / "adapter_config.json").write_text(json.dumps(plain | case["adapters"][name]))
    (folder / "adapter_model.safetensors").write_bytes(safetensors(folder_tensors(case, name)))
    return folder
