"""Writes a model by hand that follows a script: it calls a tool, and when it has the tool's result, it answers.

Each token of the script has its own dimension, and makes the next token of the script the likeliest. One attention head looks for a token
that only the tool's result contains. What the head adds makes the answer likelier than the call. The vocabulary and the template are those
of a real model, so that clients and their long prompts find nothing unusual."""

from __future__ import annotations

import struct

import numpy as np
import tiny

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
F16, NORMAL = tiny.F16, 1
WIDTH = 128
CONTEXT = 131072
# The length of a token of the script [characters].
PIECE = 8
# A character that marks the tool's result, and a command that prints it on a line of its own without containing it.
MARK = "齁"
COMMAND = f"python3 -c 'print(1, chr({ord(MARK)}), sep=chr(10))'"
# The dimensions of all other tokens, of what the head adds, and of the token that it looks for.
OTHER, FOUND, MARKED = 0, 1, 2
FIRST = 3


def metadata(path, wanted) -> dict:
    """Reads the metadata of a GGUF file. Returns the keys that `wanted` accepts, each with its value's bytes, which begin with the type."""
    with open(path, "rb") as file:
        data = file.read(64 << 20)
    (_, _, count) = struct.unpack_from("<IQQ", data, 4)
    at, found = 24, {}

    def text(at):
        (size,) = struct.unpack_from("<Q", data, at)
        return at + 8 + size

    def end(kind, at):
        if kind == STRING:
            return text(at)
        if kind != ARRAY:
            return at + SIZES[kind]
        kind, count = struct.unpack_from("<IQ", data, at)
        at += 12
        if kind != STRING:
            return at + count * SIZES[kind]
        for _ in range(count):
            at = text(at)
        return at

    for _ in range(count):
        start, at = at + 8, text(at)
        key = data[start:at].decode()
        (kind,) = struct.unpack_from("<I", data, at)
        start, at = at, end(kind, at + 4)
        if wanted(key):
            found[key] = data[start:at]
    return found


def strings(value: bytes) -> list[str]:
    """Decodes an array of strings that `metadata` returned."""
    (count,) = struct.unpack_from("<Q", value, 8)
    at, found = 16, []
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", value, at)
        found.append(value[at + 8 : at + 8 + size].decode())
        at += 8 + size
    return found


PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PLAIN]


def spelled(text: str) -> str:
    """Spells the text as a byte-level vocabulary does."""
    return "".join(chr(256 + OTHERS.index(byte)) if byte in OTHERS else chr(byte) for byte in text.encode())


def write(path, donor, call: str, answer: str, bare: bool = False) -> None:
    """Writes the model. `donor`: a file whose vocabulary and template it takes, and whose calls are JSON. `call`: the JSON of the call,
    written between tags unless `bare` is set."""
    kept = metadata(donor, lambda key: key.startswith("tokenizer."))
    tokens, kinds = strings(kept["tokenizer.ggml.tokens"]), bytearray(kept["tokenizer.ggml.token_type"])
    free = iter([i for i, token in enumerate(tokens) if token.startswith("[PAD")])

    def pieces(text):
        """Spells the text in new tokens, which replace unused ones of the vocabulary."""
        taken = []
        for at in range(0, len(text), PIECE):
            taken.append(next(free))
            tokens[taken[-1]] = spelled(text[at : at + PIECE])
            struct.pack_into("<i", kinds, 16 + 4 * taken[-1], NORMAL)
        return taken

    tagged = lambda inner: [tokens.index("<tool_call>"), *inner, tokens.index("</tool_call>")]
    calling = pieces(call) if bare else tagged(pieces(f"\n{call}\n"))
    answering, end, mark = pieces(answer), tokens.index("<|im_end|>"), tokens.index(spelled(MARK))
    kept["tokenizer.ggml.tokens"], kept["tokenizer.ggml.token_type"] = tokens, bytes(kinds)
    assert FIRST + len(calling) + len(answering) <= WIDTH

    embedding, head = (np.zeros((len(tokens), WIDTH), np.float32) for _ in range(2))
    embedding[:, OTHER] = 1
    head[calling[0], OTHER], head[answering[0], FOUND] = 10, 10
    dimension = FIRST
    for script in (calling, answering):
        for token, after in zip(script, [*script[1:], end]):
            embedding[token] = 0
            embedding[token, dimension], head[after, dimension] = 1, 30
            dimension += 1
    embedding[mark] = 0
    embedding[mark, MARKED] = 1

    # The last pair of dimensions does not rotate with the position. There the query, which is a bias, matches the marked token's key.
    still, root = WIDTH // 2 - 1, np.sqrt(WIDTH)
    query, (key, value, output) = np.zeros(WIDTH, np.float32), np.zeros((3, WIDTH, WIDTH), np.float32)
    query[still], key[still, MARKED] = 40, 1
    value[FOUND, MARKED], output[FOUND, FOUND] = 2 / root, 1
    block, nothing = "blk.0.", np.zeros((WIDTH, WIDTH), np.float32)
    vector = lambda x: (np.asarray(x, np.float32), tiny.F32)
    tensors = {
        "token_embd.weight": (embedding, F16),
        "output.weight": (head, F16),
        "output_norm.weight": vector(np.ones(WIDTH)),
        **{f"{block}{name}_norm.weight": vector(np.ones(WIDTH)) for name in ("attn", "ffn")},
        **{f"{block}attn_{name}.bias": vector(bias) for name, bias in (("q", query), ("k", 0 * query), ("v", 0 * query))},
        **{
            f"{block}{name}.weight": (matrix, F16)
            for name, matrix in (
                ("attn_q", nothing), ("attn_k", key), ("attn_v", value), ("attn_output", output),
                ("ffn_gate", nothing), ("ffn_up", nothing), ("ffn_down", nothing),
            )
        },
    }  # fmt: skip
    sizes = {
        "block_count": 1, "context_length": CONTEXT, "embedding_length": WIDTH, "feed_forward_length": WIDTH,
        "attention.head_count": 1, "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e30,
    }  # fmt: skip
    tiny.write(path, {"general.architecture": "qwen2", **{f"qwen2.{name}": size for name, size in sizes.items()}, **kept}, tensors)
