"""Writes tiny models with random weights and odd sizes as GGUF files, with the tensor names of each architecture."""

from __future__ import annotations

import struct

import numpy as np

F32, F16, Q8_0 = 0, 1, 8
ALIGNMENT = 32


def q8_0(x: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Quantises to blocks (a float16 scale and 32 int8 each). Returns the blocks, and the weights that they represent."""
    blocks = x.reshape(-1, 32)
    scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    codes = np.round(blocks / np.maximum(scale.astype(np.float32), 1e-9)).clip(-127, 127).astype(np.int8)
    packed = np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=1)
    return packed.tobytes(), (codes * scale.astype(np.float32)).reshape(x.shape)


def encode(x: np.ndarray, kind: int) -> tuple[bytes, np.ndarray]:
    if kind == Q8_0:
        return q8_0(x)
    stored = x.astype(np.float16 if kind == F16 else np.float32)
    return stored.tobytes(), stored.astype(np.float32)


def bytes_of(flag: bool) -> bytes:
    return bytes([flag])


def value(v) -> bytes:
    """Encodes a metadata value after the id of its type: u32, f32, bool, string, or an array of strings, floats, integers or bools. Bytes
    are returned unchanged."""
    if isinstance(v, bytes):
        return v
    text = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    packers = {str: (8, text), float: (6, lambda x: struct.pack("<f", x)), int: (5, lambda x: struct.pack("<i", x)), bool: (7, bytes_of)}
    kind, pack = packers[type(v[0])]
    return struct.pack("<IIQ", 9, kind, len(v)) + b"".join(map(pack, v))


def write(path, kv: dict, tensors: dict) -> dict:
    """Writes a GGUF v3 file from `{name: (array, type)}`. Returns the weights that its tensors represent."""
    heads, data, meant = [], bytearray(), {}
    for name, (array, kind) in tensors.items():
        data += bytes(-len(data) % ALIGNMENT)
        encoded, meant[name] = encode(array, kind)
        dims = array.shape[::-1]
        key = name.encode()
        heads.append(struct.pack("<Q", len(key)) + key + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data)))
        data += encoded
    pairs = [struct.pack("<Q", len(k.encode())) + k.encode() + value(v) for k, v in kv.items()]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(heads), len(pairs)) + b"".join(pairs) + b"".join(heads)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT) + data)
    return meant


VOCAB, CONTEXT = 301, 256


class Tiny:
    """A model of the architecture `arch`. Keywords override metadata and sizes."""

    def __init__(
        self,
        arch: str,
        *,
        kind=F32,
        extra=(),
        hidden=84,
        heads=6,
        kv_heads=2,
        dim=24,
        ffn=108,
        seed=1,
        norm_key="attention.layer_norm_rms_epsilon",
        **kv,
    ):
        self.arch, self.kind, self.random = arch, kind, np.random.default_rng(seed)
        self.hidden, self.q, self.kv_width, self.dim, self.ffn = hidden, heads * dim, kv_heads * dim, dim, ffn
        self.extra = set(extra)
        self.kv = {
            "block_count": 2, "context_length": CONTEXT, "embedding_length": hidden, "feed_forward_length": ffn,
            "attention.head_count": heads, "attention.head_count_kv": kv_heads,
            "attention.key_length": dim, "attention.value_length": dim, norm_key: 1e-5,
        }  # fmt: skip
        self.kv |= kv
        self.tensors = {}

    def matrix(self, name, *shape, kind=None, spread=1.0):
        """Adds a matrix whose products have about the size of its inputs."""
        x = self.random.standard_normal(shape, dtype=np.float32) * np.float32(spread / np.sqrt(shape[-1]))
        self.tensors[name] = (x, self.kind if kind is None else kind)

    def vector(self, name, size, centre=1.0):
        self.tensors[name] = (np.float32(centre) + np.float32(0.2) * self.random.standard_normal(size, dtype=np.float32), F32)

    def norm(self, name, size, biased=False):
        self.vector(name + ".weight", size)
        if biased:
            self.vector(name + ".bias", size, 0)

    def biased(self, name, rows, cols, bias):
        self.matrix(name + ".weight", rows, cols)
        if bias:
            self.vector(name + ".bias", rows, 0)

    def attention(self, b):
        h, gpt2 = self.hidden, self.arch == "gpt2"
        bias = self.arch in ("qwen2", "qwen2moe") or "bias" in self.extra
        if self.arch in ("phi3", "gpt2"):
            self.biased(b + "attn_qkv", self.q + 2 * self.kv_width, h, gpt2)
        else:
            for m, width in (("q", self.q), ("k", self.kv_width), ("v", self.kv_width)):
                self.biased(b + "attn_" + m, width, h, bias)
        if self.arch in ("qwen3", "qwen3moe", "gemma3"):
            self.norm(b + "attn_q_norm", self.dim)
            self.norm(b + "attn_k_norm", self.dim)
        self.biased(b + "attn_output", h, self.q, gpt2 or "bias" in self.extra)

    def feed_forward(self, b):
        h, ffn, bias = self.hidden, self.ffn, self.arch == "gpt2" or "bias" in self.extra
        if experts := self.kv.get("expert_count"):
            width = self.kv.get("expert_feed_forward_length", ffn)
            self.matrix(b + "ffn_gate_inp.weight", experts, h, kind=F32, spread=3.0)
            for m, shape in (("gate", (width, h)), ("up", (width, h)), ("down", (h, width))):
                self.matrix(b + f"ffn_{m}_exps.weight", experts, *shape)
            if shared := self.kv.get("expert_shared_feed_forward_length"):
                self.matrix(b + "ffn_gate_inp_shexp.weight", h, kind=F32)
                for m, shape in (("gate", (shared, h)), ("up", (shared, h)), ("down", (h, shared))):
                    self.matrix(b + f"ffn_{m}_shexp.weight", *shape)
            return
        if self.arch == "phi3":
            self.matrix(b + "ffn_up.weight", 2 * ffn, h)
        else:
            if self.arch != "gpt2":
                self.biased(b + "ffn_gate", ffn, h, bias)
            self.biased(b + "ffn_up", ffn, h, bias)
        self.biased(b + "ffn_down", h, ffn, bias)

    def write(self, path, context: int = CONTEXT, metadata=None, vocab: int = VOCAB):
        """Writes the file with additional metadata. Returns its metadata and weights."""
        gpt2, gemma = self.arch == "gpt2", self.arch.startswith("gemma")
        self.matrix("token_embd.weight", vocab, self.hidden, spread=1.0 if gemma else 3.0)
        if gpt2:
            self.matrix("position_embd.weight", CONTEXT, self.hidden, spread=2.0, kind=F32)
        if "untied" in self.extra:
            self.matrix("output.weight", vocab, self.hidden)
        if "rope_freqs" in self.extra:
            self.tensors["rope_freqs.weight"] = (np.linspace(1, 8, self.dim // 2, dtype=np.float32), F32)
        if "longrope" in self.extra:
            pairs = self.kv.get("rope.dimension_count", self.dim) // 2
            for which, end in (("long", 12), ("short", 1.4)):
                self.tensors[f"rope_factors_{which}.weight"] = (np.linspace(1, end, pairs, dtype=np.float32), F32)
        for layer in range(self.kv["block_count"]):
            b = f"blk.{layer}."
            self.norm(b + "attn_norm", self.hidden, gpt2)
            self.attention(b)
            self.norm(b + "ffn_norm", self.hidden, gpt2)
            self.feed_forward(b)
            if gemma:
                self.norm(b + "post_attention_norm", self.hidden)
                self.norm(b + "post_ffw_norm", self.hidden)
        self.norm("output_norm", self.hidden, gpt2)
        kv = {"general.architecture": self.arch, "general.name": f"tiny {self.arch}"} | {f"{self.arch}.{k}": v for k, v in self.kv.items()}
        own = {
            "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [f"<{i}>" for i in range(VOCAB)],
            "tokenizer.ggml.scores": [0.0] * VOCAB, "tokenizer.ggml.token_type": [1] * VOCAB,
        }  # fmt: skip
        metadata = metadata or {}
        kv |= metadata if "tokenizer.ggml.model" in metadata else own | metadata
        return kv, write(path, kv, self.tensors)


def uniform(name: str, shape) -> np.ndarray:
    """Numbers in [-1, 1) that follow from a tensor's name, as `tests/fixtures/architectures.rs` draws them."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(40)).astype(np.float64) / 2**23 - 1).astype(np.float32).reshape(shape)


def layout_values(name: str, shape) -> np.ndarray:
    """Computes the weights of a tensor from its name and shape (outermost dimension first), as `tests/fixtures/architectures.rs` does."""
    u = uniform(name, shape)
    if "ssm_a" in name:
        return -(np.float32(0.5) + np.abs(u))
    if name.endswith(".weight") and "norm" in name:
        return np.float32(1) + np.float32(0.25) * u
    if name.endswith(".weight") and "embd" in name:
        return u
    return u * np.float32(2.1 / np.sqrt(shape[-1])) if len(shape) > 1 else np.float32(0.2) * u


def write_layout(path, layout: dict) -> None:
    """Writes a model of `tests/golden/embeddings.jsonl.gz` or `draft_heads.jsonl.gz`."""
    kv = {"general.architecture": layout["architecture"]} | {
        key: float(v) if kind == "FLOAT32" else v for key, kind, _, v in layout["metadata"]
    }
    write(path, kv, {name: (layout_values(name, shape), F32) for name, shape in layout["tensors"]})
