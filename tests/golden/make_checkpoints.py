"""Rewrites checkpoints.jsonl.gz: tiny checkpoints of many classes of `transformers`, without weights, and the logits that it computes.

    python make_checkpoints.py      (pip install torch==2.15.0 transformers==5.23.0 numpy)

The first line holds the prompts. Each other line holds a name, `config.json`, the names and shapes of the tensors (the weights follow from
them, see `layout_values` in `tests/wire/tiny.py`), and the float32 logits at the end of each prompt.
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
sys.path.append(str(HERE / "../wire"))
from tiny import layout_values  # noqa: E402

VOCAB = 97
LLAMA = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.5,
}  # fmt: skip
GPT = {"vocab_size": VOCAB, "n_positions": 256, "n_embd": 48, "n_layer": 3, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
FALCON = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 256}
ROPE = {"rope_theta": 10000.0}
LLAMA3 = ROPE | {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = ROPE | {
    "rope_type": "longrope", "original_max_position_embeddings": 64, "short_factor": [1.0 + 0.1 * i for i in range(6)],
    "long_factor": [1.5 + 0.5 * i for i in range(6)],
}  # fmt: skip
HALF = ROPE | {"rope_type": "default", "partial_rotary_factor": 0.5}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.0}
GEMMA = {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 24}

# The prefix of the class names before `Config` and `ForCausalLM`, and the settings
MODELS = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "llama 3": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "head_dim": 16}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with yarn": ("Llama", {"rope_parameters": YARN}),
    "llama with yarn and a factor": ("Llama", {"rope_parameters": YARN | {"attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0}}),
    "llama with linear scaling": ("Llama", {"rope_parameters": ROPE | {"rope_type": "linear", "factor": 2.0}}),
    "mistral with a window": ("Mistral", {"sliding_window": 17, "head_dim": 12}),
    "mixtral": ("Mixtral", LOCAL),
    "qwen2": ("Qwen2", {}),
    "qwen2 with windows in some layers": ("Qwen2", {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1}),
    "qwen2moe": ("Qwen2Moe", EXPERTS | {"shared_expert_intermediate_size": 40}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3moe": ("Qwen3Moe", EXPERTS | {"head_dim": 16, "norm_topk_prob": True}),
    "qwen3moe without normalised weights": ("Qwen3Moe", EXPERTS | {"head_dim": 16, "norm_topk_prob": False}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", GEMMA),
    "gemma3": ("Gemma3", GEMMA | {"num_hidden_layers": 7}),
    "phi3 with longrope": ("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 64, "sliding_window": 100}),
    "phi": ("Phi", {"partial_rotary_factor": 0.5, "num_key_value_heads": 4}),
    "granite": ("Granite", GRANITE),
    "granitemoe": ("GraniteMoe", LOCAL | GRANITE),
    "granitemoeshared": ("GraniteMoeShared", LOCAL | {"shared_intermediate_size": 40}),
    "olmo": ("Olmo", {"clip_qkv": 0.5}),
    "olmo2": ("Olmo2", {}),
    "olmo3 with yarn": ("Olmo3", {"sliding_window": 16, "num_hidden_layers": 5, "rope_parameters": YARN}),
    "olmoe": ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "cohere": ("Cohere", {"logit_scale": 0.3}),
    "cohere with norms of heads": ("Cohere", {"logit_scale": 0.3, "use_qk_norm": True}),
    "cohere2": ("Cohere2", {"sliding_window": 16, "num_hidden_layers": 5, "logit_scale": 0.3}),
    "stablelm": ("StableLm", {"rope_parameters": HALF, "use_qkv_bias": True}),
    "stablelm, parallel": ("StableLm", {"rope_parameters": HALF, "qk_layernorm": True, "use_parallel_residual": True}),
    "starcoder2 with a window": ("Starcoder2", {"sliding_window": 30}),
    "gpt2": ("GPT2", {}),
    "gpt big code": ("GPTBigCode", {}),
    "gpt neox": ("GPTNeoX", {"rope_parameters": HALF, "hidden_act": "gelu_new"}),
    "gpt neox, one branch after the other": (
        "GPTNeoX",
        {"rope_parameters": HALF, "hidden_act": "gelu_new", "use_parallel_residual": False},
    ),
    "falcon 7B": ("Falcon", {"multi_query": True, "parallel_attn": True, "activation": "gelu_new"}),
    "falcon 40B": ("Falcon", {"num_kv_heads": 2, "new_decoder_architecture": True, "activation": "gelu_new"}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "nemotron": ("Nemotron", {}),
    "arcee": ("Arcee", {}),
    "seed oss": ("SeedOss", {"head_dim": 16}),
}
LENGTHS = (1, 7, 50, 150)


def classes(family: str):
    config = getattr(transformers, f"{family}TextConfig" if family == "Gemma3" else f"{family}Config")
    return config, getattr(transformers, f"{family}LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")


def checkpoint(name: str, prompts) -> dict:
    family, settings = MODELS[name]
    config_class, model_class = classes(family)
    common = GPT if family in ("GPT2", "GPTBigCode") else FALCON if family == "Falcon" else LLAMA
    config = config_class(**common | settings)
    config._attn_implementation = "eager"
    model = model_class(config).eval().float()
    with tempfile.TemporaryDirectory() as folder:
        # A saved checkpoint's tensor names may differ from those in memory, so the weights are set through files.
        path = Path(folder)
        model.save_pretrained(path)
        shapes = {name: list(tensor.shape) for name, tensor in load_file(path / "model.safetensors").items()}
        weights = {name: torch.tensor(layout_values(name, shape)) for name, shape in shapes.items()}
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        model = model_class.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
        saved = json.loads((path / "config.json").read_text())
    with torch.no_grad():
        rows = [model(torch.tensor([prompt])).logits[0, -1].numpy() for prompt in prompts]
    assert min(row.std() for row in rows) > 0.1, f"{name}: a flat distribution would hide errors"
    logits = [[float(f"{x:.7g}") for x in row] for row in rows]
    return {"name": name, "config": saved, "tensors": sorted(shapes.items()), "logits": logits}


def main() -> None:
    random = np.random.default_rng(7)
    prompts = [[int(i) for i in random.integers(3, VOCAB, length)] for length in LENGTHS]
    lines = [json.dumps(prompts)]
    for name in MODELS:
        lines.append(json.dumps(checkpoint(name, prompts)))
        print(name, len(lines[-1]), flush=True)
    packed = gzip.compress("\n".join(lines).encode(), 9, mtime=0)
    (HERE / "checkpoints.jsonl.gz").write_bytes(packed)
    print(len(packed), "bytes")


if __name__ == "__main__":
    main()
