"""`penstock convert` keeps the ids of a vocabulary. The tokenizer.json files are made from llama.cpp's vocabularies, with the
pre-tokenizers and merges of Hugging Face's library. The expected ids are llama.cpp's."""

from __future__ import annotations

import gzip
import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from checkpoint import GOLDEN, Checkpoint
from harness import cli

PATTERNS = {name: case["patterns"] for case in json.loads((GOLDEN / "pretokenizers.json").read_text())["cases"] for name in case["names"]}
BYTE_LEVEL = {"gpt-2": "gpt-2", "llama-bpe": "llama-bpe", "qwen2": "qwen2", "starcoder": "starcoder", "deepseek-llm": "deepseek-llm"}
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
CASES = (GOLDEN / "vocab" / "cases.txt").read_text().split("\n__ggml_vocab_test__\n")


def metadata(name: str) -> dict:
    """The metadata of a vocabulary in `tests/golden/vocab`."""
    data, at = gzip.decompress((GOLDEN / "vocab" / f"{name}.gguf.gz").read_bytes()), 24

    def take(kind: int):
        nonlocal at
        if kind == 8:
            (size,) = struct.unpack_from("<Q", data, at)
            at += 8 + size
            return data[at - size : at].decode()
        if kind == 9:
            element, count = struct.unpack_from("<IQ", data, at)
            at += 12
            return [take(element) for _ in range(count)]
        (found,) = struct.unpack_from("<" + FORMATS[kind], data, at)
        at += struct.calcsize(FORMATS[kind])
        return found

    pairs = {}
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        key = take(8)
        pairs[key] = take(take(4))
    return {key.removeprefix("tokenizer.ggml."): value for key, value in pairs.items()}


def added(vocab: dict) -> list:
    """Lists the control tokens and the user-defined tokens."""
    kinds = enumerate(vocab.get("token_type", []))
    return [{"id": i, "content": vocab["tokens"][i], "special": kind == 3} for i, kind in kinds if kind in (3, 4)]


def byte_level(vocab: dict, patterns: list) -> dict:
    split = lambda pattern: {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    ids = {token: i for i, token in enumerate(vocab["tokens"])}
    model = {"type": "BPE", "vocab": ids, "merges": vocab["merges"], "ignore_merges": vocab["pre"] == "llama-bpe"}
    steps = {"type": "Sequence", "pretokenizers": [*map(split, patterns), level]}
    return {"added_tokens": added(vocab), "pre_tokenizer": steps, "decoder": level, "model": model}


def sentence_piece(vocab: dict) -> dict:
    """Makes a merge of every way to cut a token into two tokens. Merges of tokens with better scores come first."""
    ids = {token: i for i, (token, kind) in enumerate(zip(vocab["tokens"], vocab["token_type"])) if kind == 1}
    cuts = [(token[:at], token[at:]) for token in ids for at in range(1, len(token))]
    merges = [cut for cut in cuts if cut[0] in ids and cut[1] in ids]
    merges.sort(key=lambda cut: -vocab["scores"][ids["".join(cut)]])
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    whole = {token: i for i, token in enumerate(vocab["tokens"])}
    model = {"type": "BPE", "vocab": whole, "merges": merges, "byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    return {"added_tokens": added(vocab), "normalizer": {"type": "Sequence", "normalizers": steps}, "model": model}


def checkpoint(folder: Path, count: int) -> Path:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 16,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "vocab_size": count, "tie_word_embeddings": True,
    }  # fmt: skip
    attention = [(f"self_attn.{part}_proj", [8, 8]) for part in "qkvo"]
    ffn = [("mlp.gate_proj", [16, 8]), ("mlp.up_proj", [16, 8]), ("mlp.down_proj", [8, 16])]
    norms = [("input_layernorm", [8]), ("post_attention_layernorm", [8])]
    layer = [(f"model.layers.0.{name}.weight", shape) for name, shape in attention + ffn + norms]
    whole = Checkpoint(config, [("model.embed_tokens.weight", [count, 8]), ("model.norm.weight", [8]), *layer])
    return whole.write(folder, "F16")


def convert(folder: Path, out: Path) -> None:
    done = cli("convert", folder, "-o", out)
    assert done.returncode == 0, done.stderr


def check_ids(name: str, file: Path) -> None:
    lines = (GOLDEN / "vocab" / f"{name}.ids").read_text().split("\n")
    expected = [[int(i) for i in line.split()] for line in lines][: len(CASES)]
    of = lambda text: json.loads(cli("tokenize", file, stdin=text).stdout)
    with ThreadPoolExecutor(2) as pool:
        for text, ids, got in zip(CASES, expected, pool.map(of, CASES)):
            assert got == ids, repr(text)


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_a_byte_level_vocabulary_keeps_its_ids(name, tmp_path):
    vocab = metadata(name)
    # Padding after the vocabulary has no effect.
    folder = checkpoint(tmp_path / "model", len(vocab["tokens"]) + 7)
    (folder / "tokenizer.json").write_text(json.dumps(byte_level(vocab, PATTERNS[BYTE_LEVEL[name]])))
    convert(folder, tmp_path / "model.gguf")
    check_ids(name, tmp_path / "model.gguf")


def test_sentencepiece_s_vocabulary_keeps_its_ids(tmp_path):
    vocab = metadata("llama-spm")
    folder = checkpoint(tmp_path / "model", len(vocab["tokens"]))
    (folder / "tokenizer.json").write_text(json.dumps(sentence_piece(vocab)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}))
    convert(folder, tmp_path / "model.gguf")
    check_ids("llama-spm", tmp_path / "model.gguf")


def protobuf(vocab: dict) -> bytes:
    """Encodes SentencePiece's ModelProto with pieces, scores, types and the model type BPE."""

    def varint(n: int) -> bytes:
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    field = lambda tag, data: varint(tag << 3 | 2) + varint(len(data)) + data
    rows = zip(vocab["tokens"], vocab["scores"], vocab["token_type"])
    pieces = (field(1, token.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind) for token, score, kind in rows)
    return b"".join(field(1, piece) for piece in pieces) + field(2, b"\x18\x02")


def test_a_tokenizer_model_keeps_its_ids(tmp_path):
    vocab = metadata("llama-spm")
    folder = checkpoint(tmp_path / "model", len(vocab["tokens"]))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(protobuf(vocab))
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    convert(folder, tmp_path / "model.gguf")
    check_ids("llama-spm", tmp_path / "model.gguf")
    for broken in (b"", b"\xff" * 40, protobuf(vocab)[:1000]):
        (folder / "tokenizer.model").write_bytes(broken)
        done = cli("convert", folder, "-o", tmp_path / "other.gguf")
        assert done.returncode == 1 and "panicked" not in done.stderr and not (tmp_path / "other.gguf").exists(), done.stderr


def test_older_files_of_byte_level_vocabularies(tmp_path):
    vocab = metadata("gpt-2")
    folder = checkpoint(tmp_path / "model", len(vocab["tokens"]))
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocab["tokens"])}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(vocab["merges"]) + "\n")
    convert(folder, tmp_path / "model.gguf")
    check_ids("gpt-2", tmp_path / "model.gguf")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "OtherTokenizer"}))
    done = cli("convert", folder, "-o", tmp_path / "other.gguf")
    assert done.returncode == 1 and "OtherTokenizer" in done.stderr


@pytest.mark.parametrize("name", ["llama3", "qwen2", "deepseek-v3", "gpt-4o", "unigram", "gemma"])
def test_small_vocabularies_are_converted_if_scores_give_their_merges(name, tmp_path):
    golden = json.loads((GOLDEN / "tokenizers" / f"{name}.json").read_text())
    vocab = golden["tokenizer"]["model"]["vocab"]
    folder = checkpoint(tmp_path / "model", len(vocab) + len(golden["tokenizer"]["added_tokens"]))
    (folder / "tokenizer.json").write_text(json.dumps(golden["tokenizer"]))
    done = cli("convert", folder, "-o", tmp_path / "model.gguf")
    if name == "gemma":
        # The order of its merges is not that of scores.
        assert done.returncode == 1 and "tokenizer.model" in done.stderr, done.stderr
        return
    assert done.returncode == 0, done.stderr


def test_an_unknown_pre_tokenizer_is_refused_with_its_pattern(tmp_path):
    vocab = metadata("gpt-2")
    folder = checkpoint(tmp_path / "model", len(vocab["tokens"]))
    (folder / "tokenizer.json").write_text(json.dumps(byte_level(vocab, [r"\p{N}{1,7}|\p{L}+"])))
    done = cli("convert", folder, "-o", tmp_path / "model.gguf")
    assert done.returncode == 1 and r"\p{N}{1,7}|\p{L}+" in done.stderr and not (tmp_path / "model.gguf").exists()


def test_a_token_without_a_row_is_refused(tmp_path):
    vocab = metadata("gpt-2")
    folder = checkpoint(tmp_path / "model", len(vocab["tokens"]) - 9)
    (folder / "tokenizer.json").write_text(json.dumps(byte_level(vocab, PATTERNS["gpt-2"])))
    done = cli("convert", folder, "-o", tmp_path / "model.gguf")
    assert done.returncode == 1 and "embedding" in done.stderr
