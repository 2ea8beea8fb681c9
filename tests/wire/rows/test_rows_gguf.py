"""Rows 1 to 16: files that are not valid models. Each fails its own load with an error that says what is wrong, and affects nothing
else."""

import json
import re
import shutil
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gguf_bytes import File, array, integer, small, text
from harness import MODEL, Server, cli, wait_until
from test_broken_models import TEXT, original, serve  # noqa: F401

HUGE = 1 << 63
u32, i32, i64 = (lambda n: integer(4, "<I", n)), (lambda n: integer(5, "<i", n)), (lambda n: integer(11, "<q", n))
TOKENS, SCORES, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"


def patched(at: bytes, skip: int, new: bytes) -> bytes:
    """The file, in which `new` replaces the bytes after the first `at`."""
    whole = small().build()
    start = whole.index(at) + len(at) + skip
    return whole[:start] + new + whole[start + len(new) :]


def nested(depth: int) -> bytes:
    return array(9, 1) + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 0, 0)


def with_tensor(**changes) -> bytes:
    return small().tensor("blk.0.attn_q.weight", **changes).build()


def sized(key: str, new) -> bytes:
    return small().set(f"llama.{key}", new).build()


def merged(*merges: str) -> bytes:
    file = small().without(SCORES).set("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "gpt-2")
    return file.add("tokenizer.ggml.merges", list(merges)).build()


# By row: a name for the file, its bytes, and a pattern that matches the error.
ROWS = {
    1: {
        "bad magic": (File([], [], magic=b"GGML").build(), "not a GGUF file"),
        "no bytes": (b"", "magic number|empty"),
        "version 0": (File([], [], version=b"\0\0\0\0").build(), "version 0 "),
        "version 1": (File([], [], version=b"\1\0\0\0").build(), "version 1 "),
        "version 4": (File([], [], version=b"\4\0\0\0").build(), "version 4 "),
        "big-endian": (File([], [], version=b"\0\0\0\3").build(), "big-endian"),
    },
    3: {
        f"{n} {what}": (File([], [], **{key: n}).build() + bytes(4096), f"{n} {words} do not fit")
        for n in (HUGE, 2**64 - 1)
        for what, key, words in (("tensors", "num_tensors", "tensors"), ("pairs", "num_pairs", "metadata pairs"))
    },
    4: {
        "of 2^63 bytes": (patched(text("general.architecture"), 4, struct.pack("<Q", HUGE)), "bytes long, but"),
        "past the end": (patched(text("general.architecture"), 4, struct.pack("<Q", 1 << 20)), "is 1048576 bytes long"),
        "a key of 2^64 - 1": (patched(b"GGUF", 20, struct.pack("<Q", 2**64 - 1)), "bytes long, but"),
    },
    5: {
        **{f"of 2^63 of type {t}": (small().add("x", array(t, HUGE)).build(), "is an array of 9223372036854775808") for t in range(13)},
        "nested 10,000 deep": (small().add("x", nested(10_000)).build(), "nests arrays deeper"),
    },
    6: {
        "a value's": (small().add("x", struct.pack("<I", 13)).build(), "unknown value type 13"),
        "a value's, negative": (small().add("x", struct.pack("<i", -1)).build(), "unknown value type 4294967295"),
        "an array's": (small().add("x", array(255, 1, bytes(8))).build(), "unknown type 255"),
        "a tensor's": (with_tensor(kind=42), "unknown type 42"),
        "a tensor's, negative": (with_tensor(kind=2**32 - 1), "unknown type 4294967295"),
        "a tensor's, withdrawn": (with_tensor(kind=4), "unknown type 4"),
    },
    7: {
        "key": (small().add("tokenizer.ggml.model", "llama").build(), "occurs twice"),
        "empty key": (small().add("", 1).build(), "has 0 bytes"),
        "tensor": (File(small().pairs, [*small().tensors, small().tensors[-1]]).build(), "occurs twice"),
        "empty tensor": (with_tensor(name=""), "has 0 bytes"),
    },
    8: {
        **{f"{n}": (small().add("general.alignment", u32(n)).build(), f"alignment is {n}") for n in (0, 3, 1 << 31)},
        "text": (small().add("general.alignment", "32").build(), "alignment is of type string"),
        "i64": (small().add("general.alignment", i64(32)).build(), "alignment is of type i64"),
    },
    9: {
        "five dimensions": (with_tensor(dims=(8, 8, 1, 1, 1)), "5 dimensions"),
        "no dimension": (with_tensor(dims=()), "0 dimensions"),
        "2^32 - 1 dimensions": (patched(b"blk.0.attn_q.weight", 0, b"\xff" * 4), "4294967295 dimensions"),
        "a dimension of 0": (with_tensor(dims=(8, 0)), r"shape \[8, 0\]"),
        "a dimension of -1": (with_tensor(dims=(8, 2**64 - 1)), "expected dimensions"),
        "2^32 x 2^32": (with_tensor(dims=(1 << 32, 1 << 32)), "overflows"),
        "2^62 float32": (with_tensor(dims=(1 << 62,)), "overflows"),
        "wraps to 256 bytes": (with_tensor(dims=(1 << 31, 1 << 31, 4, 4)), "overflows"),
        "half a block": (with_tensor(dims=(8, 8), kind=8), "multiple of the Q8_0 block"),
        "another shape": (with_tensor(dims=(8, 4)), "shape|expected"),
    },
    10: {
        "an offset near 2^64": (with_tensor(offset=2**64 - 32), "overflows|past the end"),
        "an end near 2^64": (with_tensor(offset=2**64 - 4096), "overflows|past the end"),
        "an end of 2^63": (with_tensor(offset=HUGE), "overflows|past the end"),
        "two that wrap together": (
            small().tensor("blk.0.attn_q.weight", dims=(1 << 60,)).tensor("blk.0.attn_k.weight", dims=(1 << 60,)).build(),
            "past the end|overflows",
        ),
    },
    11: {
        "past the end": (with_tensor(offset=1 << 20), "past the end"),
        "misaligned": (with_tensor(offset=33), "not a multiple of the alignment"),
        "overlapping": (with_tensor(offset=0), "overlaps"),
    },
    12: {"one byte": (File(small().pairs, small().tensors, cut=1).build(), "past the end")},
    14: {
        **{
            f"{key} {n}": (sized(key, u32(n)), key.replace(".", r"\."))
            for key in ("attention.head_count", "attention.head_count_kv", "block_count", "embedding_length", "feed_forward_length")
            for n in (0, 1 << 31, 2**32 - 1)
            if not (key == "attention.head_count_kv" and n == 0)
        },
        "negative": (sized("attention.head_count", i32(-1)), r"head_count"),
        "text": (sized("block_count", "one"), r"block_count"),
        "context_length 0": (sized("context_length", u32(0)), r"context_length"),
        "a NaN for epsilon": (sized("attention.layer_norm_rms_epsilon", float("nan")), "epsilon"),
    },
    15: {
        "short scores": (small().set(SCORES, [0.0]).build(), SCORES),
        "scores that lose digits": (small().set(SCORES, [0, 1, 2, 16777217]).build(), SCORES),
        "scores that are no numbers": (small().set(SCORES, [float("nan")] * 4).build(), SCORES),
        "short types": (small().set(TYPES, [1]).build(), TYPES),
        "long types": (small().set(TYPES, [1] * 5).build(), TYPES),
        "types of floats": (small().set(TYPES, [1.0] * 4).build(), TYPES),
        "a type of 9": (small().set(TYPES, [3, 1, 1, 9]).build(), TYPES),
        "tokens of integers": (small().set(TOKENS, [1, 2, 3, 4]).build(), TOKENS),
        "no tokens": (small().without(TOKENS).build(), TOKENS),
        "more tokens than embeddings": (
            small().set(TOKENS, ["<s>", "a", "b", "ab", "c"]).set(SCORES, [0.0] * 5).set(TYPES, [1] * 5).build(),
            "vocabulary|tokens|token_embd",
        ),
    },
    16: {
        "bos": (small().set("tokenizer.ggml.bos_token_id", u32(4)).build(), "bos_token_id"),
        "eos": (small().set("tokenizer.ggml.eos_token_id", u32(2**32 - 1)).build(), "eos_token_id"),
        "eos below 0": (small().set("tokenizer.ggml.eos_token_id", i32(-1)).build(), "eos_token_id"),
        "a merge of an unknown token": (merged("a c"), "merges"),
        "a merge into one": (merged("b a"), "merges"),
        "half a merge": (merged("a"), "merges"),
    },
}  # fmt: skip
WHOLE = small().build()
# Each failed load adds a series to the metrics, so this test cuts at some bytes only. `malformed_tests.rs` cuts a file at every byte.
ENDS = sorted({*range(24), *range(0, len(WHOLE), 24), *range(len(WHOLE) - 24, len(WHOLE))})
CUTS = {f"at byte {end}": (WHOLE[:end], "") for end in ENDS}
ALL = {row: {name: case for name, case in cases.items()} for row, cases in (ROWS | {2: CUTS}).items()}


def name_of(row: int, index: int) -> str:
    return f"row-{row}-{index}"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """A server that lists all these files beside a good model. A file is loaded at its first request."""
    folder = tmp_path_factory.mktemp("zoo")
    names, entries = [MODEL], []
    for row, cases in ALL.items():
        for index, (content, _) in enumerate(cases.values()):
            name = name_of(row, index)
            (folder / f"{name}.gguf").write_bytes(content)
            names.append(name)
            entries.append(f'[[models]]\nid = "{name}"\nsource = {{ type = "file", path = "{folder / name}.gguf" }}\n')
    config = folder / "config.toml"
    config.write_text(f"[server]\ndefault_models = {json.dumps(names)}\n" + "\n".join(entries))
    with Server({"ENGINE__KV_TOKENS": "2048", "ENGINE__BACKEND": "cpu"}, ("--config", str(config))) as server:
        server.folder = folder
        yield server


def fails(server, row: int) -> None:
    """Checks that each file of the row fails to load, over HTTP and on the command line."""
    for index, (what, (content, pattern)) in enumerate(ALL[row].items()):
        name = name_of(row, index)
        reply = server.complete(model=name, max_tokens=1)
        assert reply.status == 503 and name in reply.error["message"], (what, reply.status, reply.body[:300])
        assert str(server.folder) not in reply.error["message"], reply.error
        path = server.folder / f"{name}.gguf"
        done = cli("run", path, "ab", "--max-tokens", "1")
        assert done.returncode == 1 and "panicked" not in done.stderr, (what, done.returncode, done.stderr)
        assert path.name in done.stderr and re.search(pattern, done.stderr), (what, pattern, done.stderr)
    assert "panicked" not in Path(server.log.name).read_text()


def test_the_small_model_itself_loads(tmp_path):
    (tmp_path / "small.gguf").write_bytes(small().build())
    assert cli("run", tmp_path / "small.gguf", "ab", "--max-tokens", "1").returncode == 0


def test_a_wrong_magic_number_version_or_byte_order_fails_the_load(zoo):
    """Row 1."""
    fails(zoo, 1)


def test_a_file_that_is_cut_anywhere_fails_the_load(zoo):
    """Row 2."""
    def ask(index: int) -> int:
        return zoo.complete(model=name_of(2, index), max_tokens=1).status

    with ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(ask, range(len(CUTS))))
    wrong = [(index, status) for index, status in enumerate(statuses) if status != 503]
    assert not wrong, wrong[:20]
    assert "panicked" not in Path(zoo.log.name).read_text()


def test_counts_of_2_to_the_63rd_fail_the_load(zoo):
    """Row 3."""
    fails(zoo, 3)


def test_a_count_of_2_to_the_63rd_is_refused_within_100_ms(zoo, tmp_path):
    """Row 3."""
    took = []
    for index in range(5):
        (tmp_path / "m.gguf").write_bytes(ROWS[3][f"{HUGE} tensors"][0])
        start = time.monotonic()
        assert cli("inspect", tmp_path / "m.gguf").returncode == 1
        took.append(time.monotonic() - start)
    assert min(took) < 0.1, f"including the start of the process: {took}"


def test_wrong_lengths_of_strings_fail_the_load(zoo):
    """Row 4."""
    fails(zoo, 4)


def test_wrong_lengths_and_nesting_of_arrays_fail_the_load(zoo):
    """Row 5."""
    fails(zoo, 5)


def test_unknown_types_fail_the_load(zoo):
    """Row 6."""
    fails(zoo, 6)


def test_empty_and_duplicate_names_fail_the_load(zoo):
    """Row 7."""
    fails(zoo, 7)


def test_wrong_alignments_fail_the_load(zoo):
    """Row 8."""
    fails(zoo, 8)


def test_wrong_dimensions_fail_the_load(zoo):
    """Row 9."""
    fails(zoo, 9)


def test_offsets_and_sums_that_wrap_fail_the_load(zoo):
    """Row 10."""
    fails(zoo, 10)


def test_offsets_that_overlap_or_lead_past_the_end_fail_the_load(zoo):
    """Row 11."""
    fails(zoo, 11)


def test_data_one_byte_short_fails_the_load(zoo):
    """Row 12."""
    fails(zoo, 12)


@pytest.mark.real_models
def test_a_file_that_is_cut_in_place_fails_its_model_alone(tmp_path, original):  # noqa: F811
    """Row 13."""
    for name in ("cut", "whole"):
        shutil.copy(original, tmp_path / f"{name}.gguf")
    with serve(tmp_path, ["cut", "whole"], MODEL) as server:
        ask = lambda name, **fields: server.complete(TEXT, model=name, max_tokens=8, temperature=0, **fields)
        before = ask("cut").json()["choices"][0]["text"]
        assert ask("whole").json()["choices"][0]["text"] == before
        with open(tmp_path / "cut.gguf", "r+b") as file:
            file.truncate(1_000_000)
        for number in range(3):
            reply = ask("cut")
            # The first request fails in the engine, the later ones find a file that does not load.
            assert reply.status == 503, (number, reply.body)
            assert number > 0 or "could not be read" in reply.error["message"] and str(tmp_path) not in reply.error["message"]
            assert ask("whole").json()["choices"][0]["text"] == before
        assert server.process.poll() is None
        # Replace the file by renaming, and the model loads again.
        shutil.copy(original, tmp_path / "new.gguf")
        (tmp_path / "new.gguf").rename(tmp_path / "cut.gguf")
        served_again = lambda: (reply := ask("cut")).status == 200 and reply.json()["choices"][0]["text"] == before
        wait_until(served_again, 60, "the model works again")


def test_wrong_numbers_of_the_architecture_fail_the_load(zoo):
    """Row 14."""
    fails(zoo, 14)


def test_lists_of_the_vocabulary_of_a_wrong_length_or_type_fail_the_load(zoo):
    """Row 15."""
    fails(zoo, 15)


def test_ids_and_merges_outside_of_the_vocabulary_fail_the_load(zoo):
    """Row 16."""
    fails(zoo, 16)
