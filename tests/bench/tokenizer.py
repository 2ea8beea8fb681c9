#!/usr/bin/env python3
"""Compares the tokenizing speed with splintr and Hugging Face's tokenizers: one thread, the same tokenizer.json and the same text.

    tokenizer.py VOCABULARY.gguf TEXT [--rounds 5] [--pre qwen2]

Needs gguf==0.19.0, tokenizers==0.23.3 and splintr-rs==0.22.0. PENSTOCK_BINARY names the release binary (target/release/penstock).
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}

import splintr  # noqa: E402
from gguf import GGUFReader  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
BINARY = os.environ.get("PENSTOCK_BINARY", str(ROOT / "target/release/penstock"))
SECONDS = 3


def tokenizer_json(vocabulary: str, pre: str) -> str:
    """Converts the vocabulary of a GGUF file to a tokenizer.json."""
    fields = GGUFReader(vocabulary).fields
    value = lambda key: fields[f"tokenizer.ggml.{key}"].contents()  # noqa: E731
    cases = json.loads((ROOT / "tests/golden/pretokenizers.json").read_text())["cases"]
    patterns = next(case["patterns"] for case in cases if pre in case["names"])
    split = lambda pattern: {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}  # noqa: E731
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokens, types = value("tokens"), value("token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "normalizer": None,
            "post_processor": None,
            "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(tokens) if types[i] == 3],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*map(split, patterns), byte_level]},
            "decoder": {**byte_level, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": "llama" in pre,
                "vocab": {token: i for i, token in enumerate(tokens)},
                "merges": value("merges"),
            },
        }
    )


def best(encode, text: str) -> tuple[float, list[int]]:
    end, seconds, ids = time.monotonic() + SECONDS, float("inf"), []
    while time.monotonic() < end or not ids:
        start = time.perf_counter()
        ids = encode(text)
        seconds = min(seconds, time.perf_counter() - start)
    return len(text.encode()) / seconds / 1e6, ids


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("vocabulary")
    parser.add_argument("text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pre", default="qwen2")
    args = parser.parse_args()
    text = Path(args.text).read_text(errors="replace")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.json")
        path.write_text(tokenizer_json(args.vocabulary, args.pre))
        peers = {
            "splintr": splintr.from_json(str(path)).encode,
            "tokenizers": lambda text, t=Tokenizer.from_file(str(path)): t.encode(text).ids,
        }
        run = lambda *more: json.loads(
            subprocess.run([BINARY, "tokenize", path, *more], input=text, text=True, stdout=-1, check=True).stdout
        )  # noqa: E731
        ours, rates = run(), {"penstock": [], **{name: [] for name in peers}}
        for _ in range(args.rounds):
            rates["penstock"].append(run("--time", str(SECONDS))["megabytes_per_second"])
            for name, encode in peers.items():
                rate, ids = best(encode, text)
                rates[name].append(rate)
                assert ids == ours, f"{name} returns different ids"
    print(f"{len(text.encode())} bytes, {len(ours)} tokens, the same ids from all")
    for name, all_rates in rates.items():
        print(f"{name:12} {statistics.median(all_rates):7.1f} MB/s (of {args.rounds}: {min(all_rates):.1f} to {max(all_rates):.1f})")


main()
