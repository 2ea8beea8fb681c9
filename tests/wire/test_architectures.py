"""Compares every architecture and its variants with a forward pass in numpy, by the Kullback-Leibler divergence of the next-token
distributions."""

import json
from pathlib import Path

import numpy as np
import pytest
from harness import cli
from oracle import Oracle
from tiny import F16, Q8_0, VOCAB, Tiny

ROUTED = {"expert_count": 5, "expert_used_count": 2}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 48}
LONG = {"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.19}

MODELS = {
    "llama": lambda: Tiny("llama"),
    "llama of one KV head": lambda: Tiny("llama", heads=5, kv_heads=1, dim=16),
    "llama 3 with rope_freqs": lambda: Tiny("llama", extra=["rope_freqs", "untied"], **{"rope.freq_base": 500000.0}),
    "llama with a part of the head rotated": lambda: Tiny("llama", **{"rope.dimension_count": 12}),
    "llama with biases": lambda: Tiny("llama", extra=["bias"]),
    "mistral with a window": lambda: Tiny("llama", **{"attention.sliding_window": 17}),
    "llama with linear scaling": lambda: Tiny("llama", **{"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}),
    "llama with yarn": lambda: Tiny("llama", dim=32, **YARN),
    "llama with longrope": lambda: Tiny("llama", extra=["longrope"], **LONG, **{"rope.scaling.type": "longrope"}),
    "mixtral": lambda: Tiny("llama", **ROUTED),
    "mixtral in Q8_0": lambda: Tiny("llama", kind=Q8_0, hidden=96, heads=4, dim=32, ffn=160, **ROUTED),
    "qwen2": lambda: Tiny("qwen2", **{"rope.freq_base": 1e6}),
    "qwen2 with yarn": lambda: Tiny("qwen2", dim=32, **YARN),
    "qwen3": lambda: Tiny("qwen3", extra=["untied"], **{"rope.freq_base": 1e6}),
    "qwen3 in F16": lambda: Tiny("qwen3", kind=F16),
    "gemma2": lambda: Tiny("gemma2", **{"attention.sliding_window": 19, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma2 of an early file": lambda: Tiny("gemma2"),
    "gemma3": lambda: Tiny("gemma3", **{"attention.sliding_window": 19, "block_count": 7, "rope.freq_base": 1e6}),
    "phi3": lambda: Tiny("phi3"),
    "phi3 with longrope and a window": lambda: Tiny(
        "phi3", extra=["longrope", "untied"], **LONG, **{"attention.sliding_window": 33, "rope.dimension_count": 16}
    ),
    "gpt2": lambda: Tiny("gpt2", kv_heads=6, norm_key="attention.layer_norm_epsilon"),
    "gpt2, untied": lambda: Tiny("gpt2", kv_heads=6, extra=["untied"], norm_key="attention.layer_norm_epsilon"),
    "qwen2moe": lambda: Tiny("qwen2moe", **ROUTED, **{"expert_feed_forward_length": 52, "expert_shared_feed_forward_length": 76}),
    "qwen2moe in Q8_0": lambda: Tiny(
        "qwen2moe",
        kind=Q8_0,
        hidden=64,
        heads=2,
        dim=32,
        **ROUTED,
        **{"expert_feed_forward_length": 96, "expert_shared_feed_forward_length": 160},
    ),
    "qwen3moe": lambda: Tiny("qwen3moe", expert_count=9, expert_used_count=4, expert_feed_forward_length=44),
}
# The last prompt is longer than LongRoPE's original context and every window. `penstock logits` runs steps of 256 rows.
LENGTHS = (1, 7, 60, 200)


def prompt(length: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(length).integers(0, VOCAB, length)]


def divergence(exact: np.ndarray, got: np.ndarray) -> float:
    log = lambda x: x.astype(np.float64) - x.max() - np.log(np.exp(x.astype(np.float64) - x.max()).sum())
    p, q = log(exact), log(got)
    return float((np.exp(p) * (p - q)).sum())


def check(name: str, folder, bar: float, *options):
    path, ids, out = folder / "tiny.gguf", folder / "ids.json", folder / "logits.npy"
    kv, weights = MODELS[name]().write(path)
    worst = 0.0
    for length in LENGTHS:
        ids.write_text(json.dumps([prompt(length)]))
        done = cli("logits", path, "--ids", ids, "--out", out, *options)
        assert done.returncode == 0, done.stderr
        exact = Oracle(kv, weights, length).logits(prompt(length))
        assert exact.std() > 0.3, "a flat distribution would hide errors"
        worst = max(worst, divergence(exact, np.load(out)[0]))
    print(f"{name}: {worst:.1e}")
    assert worst <= bar, f"{worst:.1e}"


@pytest.mark.parametrize("name", MODELS)
def test_the_cpu_agrees_with_numpy(name, tmp_path):
    check(name, tmp_path, 1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.features("cuda")
def test_the_gpu_agrees_with_numpy(name, tmp_path, gpu):
    check(name, tmp_path, 1e-3, "--backend", "cuda")


@pytest.fixture(scope="session")
def gpu(tmp_path_factory):
    """Skips its tests on a machine without a GPU."""
    folder = tmp_path_factory.mktemp("gpu")
    Tiny("llama").write(folder / "tiny.gguf")
    (folder / "ids.json").write_text("[[1]]")
    args = ("logits", folder / "tiny.gguf", "--ids", folder / "ids.json", "--out", folder / "logits.npy", "--backend", "cuda")
    done = cli(*args)
    if done.returncode != 0:
        assert "no CUDA device was found" in done.stderr, done.stderr
        pytest.skip("needs a GPU")
