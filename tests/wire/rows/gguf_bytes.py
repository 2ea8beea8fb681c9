"""Builds GGUF files byte by byte: a small model that loads, in which a test can make every part wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
from tiny import value

ALIGNMENT = 32
VOCABULARY = ["<s>", "a", "b", "ab"]
HIDDEN = 8
F32 = 0


def text(s: str | bytes) -> bytes:
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(s)) + s


def integer(type_id: int, pack: str, number) -> bytes:
    """A metadata value, preceded by the id of its type: `integer(5, "<i", -1)` is an i32."""
    return struct.pack("<I", type_id) + struct.pack(pack, number)


def array(type_id: int, length: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IIQ", 9, type_id, length) + payload


@dataclass
class Tensor:
    name: str
    dims: tuple  # innermost dimension first
    data: bytes
    kind: int = F32
    offset: int | None = None  # None: directly after the previous tensor

    def entry(self, offset: int) -> bytes:
        dims = struct.pack(f"<I{len(self.dims)}Q", len(self.dims), *self.dims)
        return text(self.name) + dims + struct.pack("<IQ", self.kind, offset)


@dataclass
class File:
    """What a file claims about itself. `build` encodes it as it is, right or wrong."""

    pairs: list[tuple[str, object]]  # a value: an argument of `tiny.value`, or bytes that begin with the type's id
    tensors: list[Tensor]
    magic: bytes = b"GGUF"
    version: bytes = struct.pack("<I", 3)
    num_tensors: int | None = None
    num_pairs: int | None = None
    cut: int = 0  # number of bytes to cut from the end
    extra: bytes = field(default=b"")

    def set(self, key: str, new) -> "File":
        self.pairs = [(name, new if name == key else old) for name, old in self.pairs]
        return self if key in dict(self.pairs) else self.add(key, new)

    def add(self, key: str, new) -> "File":
        self.pairs.append((key, new))
        return self

    def without(self, key: str) -> "File":
        self.pairs = [(name, old) for name, old in self.pairs if name != key]
        return self

    def tensor(self, which: str, **changes) -> "File":
        (one,) = [tensor for tensor in self.tensors if tensor.name == which]
        for key, new in changes.items():
            setattr(one, key, new)
        return self

    def build(self) -> bytes:
        count = lambda stated, items: len(items) if stated is None else stated
        head = self.magic + self.version
        head += struct.pack("<QQ", count(self.num_tensors, self.tensors), count(self.num_pairs, self.pairs))
        for key, of_pair in self.pairs:
            head += text(key) + (of_pair if isinstance(of_pair, bytes) else value(of_pair))
        data = b""
        for tensor in self.tensors:
            data += bytes(-len(data) % ALIGNMENT)
            head += tensor.entry(len(data) if tensor.offset is None else tensor.offset)
            data += tensor.data
        whole = head + bytes(-len(head) % ALIGNMENT) + data + self.extra
        return whole[: len(whole) - self.cut]


def small() -> File:
    """A Llama with one layer and four tokens."""
    random = np.random.default_rng(7)
    matrix = lambda rows, cols: random.standard_normal((rows, cols), dtype=np.float32).tobytes()
    ones = np.ones(HIDDEN, np.float32).tobytes()
    h = HIDDEN
    tensors = [Tensor("token_embd.weight", (h, len(VOCABULARY)), matrix(len(VOCABULARY), h)), Tensor("output_norm.weight", (h,), ones)]
    tensors += [Tensor(f"blk.0.{name}.weight", (h,), ones) for name in ("attn_norm", "ffn_norm")]
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    tensors += [Tensor(f"blk.0.{name}.weight", (h, h), matrix(h, h)) for name in square]
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": h, "feed_forward_length": h}
    sizes |= {"attention.head_count": 1, "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-5}
    pairs = [("general.architecture", "llama")] + [(f"llama.{key}", number) for key, number in sizes.items()]
    pairs += [("tokenizer.ggml.model", "llama"), ("tokenizer.ggml.tokens", VOCABULARY), ("tokenizer.ggml.scores", [0.0, -1.0, -2.0, -3.0])]
    pairs += [("tokenizer.ggml.token_type", [3, 1, 1, 1]), ("tokenizer.ggml.bos_token_id", 0), ("tokenizer.ggml.eos_token_id", 0)]
    return File(pairs, tensors)
