#!/usr/bin/env python3
"""Writes small copies of the test models, for tests whose claims do not depend on what a model knows.

    tests/small_models.py STORE OUT

STORE and OUT are folders of models as `penstock pull` makes them. OUT gets a model for each one of STORE with the same architecture,
vocabulary, chat template and manifest, padded to the same size, so that the program takes it for the model that it fetched, until it
compares the hash (`penstock pull`). It has two layers with a hidden size of 64 and random weights: a token takes about a millisecond.

Its answers have the form of a real model's. They are words, which depend on the prompt through attention, and end after `WORDS` of them.
Strings of constrained answers end after `STRING_WORDS`, arrays after an element or two, numbers after a digit. It knows one fact: if the
conversation contains the word " France", it answers `FACT`. For this, some dimensions of the hidden state say in which state the last
token leaves the answer, and columns of the output matrix say which tokens follow a state.
"""

import os
import re
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "wire"))
from tiny import F32, Q8_0, write  # noqa: E402

WIDTH, LAYERS, HEADS, HEAD, FFN = 64, 2, 2, 32, 96
WORDS, STRING_WORDS = 20, 3
FACT = ["The", " capital", " of", " France", " is", " Paris", "."]
# The dimensions of the hidden state: a constant, the states (how many words of a text, of a string, or of the fact are written), whether
# the token names the topic of the fact, whether one of the conversation does, free ones.
TEXT = 1
STRING = TEXT + WORDS + 1
KNOWN = STRING + STRING_WORDS + 1
NAMED = KNOWN + len(FACT)
TOPIC, FREE = NAMED + 1, NAMED + 2
# a token's type that is ordinary text
NORMAL = 1
# formats of a metadata value by its type's number (the GGUF specification); 8 is a string, 9 an array
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Reader:
    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, form: str):
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def text(self) -> str:
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def value(self, kind: int):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(FORMATS[kind])


def metadata(data: bytes) -> tuple[dict, dict[str, bytes]]:
    """The values of a file's metadata, and the bytes of each value and its type."""
    reader = Reader(data)
    assert reader.take("I") == 0x46554747, "a GGUF file"
    _, _, pairs = reader.take("I"), reader.take("Q"), reader.take("Q")
    values, raw = {}, {}
    for _ in range(pairs):
        key = reader.text()
        start = reader.at
        values[key] = reader.value(reader.take("I"))
        raw[key] = data[start : reader.at]
    return values, raw


def automaton(values: dict) -> tuple[np.ndarray, np.ndarray]:
    """For each token, the state in which it leaves an answer, and by how much its logit rises in each state; column 0 holds in all."""
    spaces = str.maketrans("▁ĠĊĉč", "  \n\t\r")
    tokens = [token.translate(spaces) for token in values["tokenizer.ggml.tokens"]]
    leaves, rises = np.full(len(tokens), TEXT), np.zeros((len(tokens), FREE), np.float32)
    before_word = [*range(TEXT, TEXT + WORDS), *range(STRING, STRING + STRING_WORDS)]
    end_of_text, end_of_string, end_of_fact = STRING - 1, KNOWN - 1, NAMED - 1
    types, words = values["tokenizer.ggml.token_type"], 0
    for token, text in enumerate(tokens):
        if re.fullmatch(" [A-Za-z]{2,}", text):
            state = before_word[words % len(before_word)]
            words += 1
            leaves[token], rises[token, state] = state + 1, 25
        elif re.match(r'["\[\]{},:]', text):
            leaves[token] = STRING
            rises[token, 0] = 5 * (text[0] in "]}") - 5 * len(text)
            rises[token, end_of_string] = 70 if text[0] == '"' else 40
        else:
            leaves[token] = end_of_string if text.isdigit() else TEXT
            rises[token, 0] = 0 if text.isdigit() else -50 if text.isspace() or types[token] != NORMAL else -25
    for at, text in enumerate(FACT):
        token = tokens.index(text)
        leaves[token] = KNOWN + at
        rises[token] = 0
        if at == 0:
            rises[token, [0, TEXT, TOPIC]] = -60, 60, 60
        else:
            rises[token, KNOWN + at - 1] = 75
    eos = values["tokenizer.ggml.eos_token_id"]
    rises[eos] = 0
    rises[eos, [TEXT, STRING, end_of_string]] = 15, 30, 30
    rises[eos, [end_of_text, end_of_fact]] = 75
    return leaves, rises


def attend_to_topic(block: dict) -> None:
    """Makes the first head look for the topic's word, with the dimension of keys that rotates least, and write what it finds."""
    block["attn_q.weight"][:HEAD] = 0
    block["attn_q.weight"][HEAD - 1, 0] = 4
    block["attn_q.weight"][2 * HEAD - 1] = 0
    block["attn_k.weight"][HEAD - 1] = 0
    block["attn_k.weight"][HEAD - 1, NAMED] = 4
    block["attn_v.weight"][0] = 0
    block["attn_v.weight"][0, NAMED] = 1
    block["attn_output.weight"][:, 0] = block["attn_output.weight"][:, HEAD] = 0
    block["attn_output.weight"][TOPIC, 0] = 1.5


def weights(values: dict) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    leaves, rises = automaton(values)
    tokens = np.arange(len(leaves))
    normal = lambda *shape, size=1.0: random.standard_normal(shape, dtype=np.float32) * np.float32(size)
    qwen, gemma = (values["general.architecture"] == arch for arch in ("qwen2", "gemma3"))

    def quiet(matrix):
        """Keeps what a layer adds out of the dimensions of the states."""
        matrix[:FREE] = 0
        return matrix

    embedding = normal(len(leaves), WIDTH)
    embedding[:, :FREE] = 0
    embedding[:, 0] = embedding[tokens, leaves] = 4
    embedding[leaves == KNOWN + FACT.index(" France"), NAMED] = 4
    output = normal(len(leaves), WIDTH, size=0.8)
    # the state's dimensions are about 3 after the last norm
    output[:, :FREE] = rises / 3
    tensors = {
        "token_embd.weight": embedding / np.float32(np.sqrt(WIDTH) if gemma else 1),
        "output.weight": output,
        "output_norm.weight": np.ones(WIDTH, np.float32),
    }
    for layer in range(LAYERS):
        block = {
            "attn_norm.weight": np.ones(WIDTH),
            "attn_q.weight": normal(HEADS * HEAD, WIDTH, size=0.3),
            "attn_k.weight": normal(HEAD, WIDTH, size=0.3),
            "attn_v.weight": normal(HEAD, WIDTH, size=0.15),
            "attn_output.weight": quiet(normal(WIDTH, HEADS * HEAD, size=0.15)),
            "ffn_norm.weight": np.ones(WIDTH),
            "ffn_gate.weight": normal(FFN, WIDTH, size=0.15),
            "ffn_up.weight": normal(FFN, WIDTH, size=0.15),
            "ffn_down.weight": quiet(normal(WIDTH, FFN, size=0.1)),
        }
        if layer == 0:
            attend_to_topic(block)
        if qwen:
            block |= {f"attn_{name}.bias": normal(size) for name, size in (("q", HEADS * HEAD), ("k", HEAD), ("v", HEAD))}
        if gemma:
            block |= {f"attn_{name}_norm.weight": np.ones(HEAD) for name in "qk"}
            block |= {f"post_{name}_norm.weight": np.ones(WIDTH) for name in ("attention", "ffw")}
        tensors |= {f"blk.{layer}.{name}": tensor.astype(np.float32) for name, tensor in block.items()}
    return tensors


def write_small(path: Path, data: bytes) -> None:
    """Writes the file with the weights of a small model."""
    values, raw = metadata(data)
    sizes = {
        "embedding_length": WIDTH,
        "block_count": LAYERS,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "rope.dimension_count": HEAD,
    }
    kv = raw | {f"{values['general.architecture']}.{name}": size for name, size in sizes.items()}
    write(path, kv, {name: (tensor, F32 if tensor.ndim == 1 else Q8_0) for name, tensor in weights(values).items()})


def main(store: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    for folder in sorted(path.parent for path in store.glob("*/manifest.json")):
        data = (folder / "model.gguf").read_bytes()
        target = out / folder.name
        target.mkdir(parents=True)
        write_small(target / "model.gguf", data)
        os.truncate(target / "model.gguf", len(data))
        shutil.copy(folder / "manifest.json", target)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
