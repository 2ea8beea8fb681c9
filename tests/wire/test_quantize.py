"""`penstock quantize`: whole files of real models, and refused input."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from harness import ROOT, cli

MODEL = "smollm2:135m"


def quantize(*args) -> dict:
    done = cli("quantize", *map(str, args), "--json", timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(*args) -> str:
    done = cli("quantize", *map(str, args), timeout=600)
    assert done.returncode != 0 and not done.stdout, done.stdout
    return done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The model with all tensors in float32, which is lossless."""
    path = tmp_path_factory.mktemp("quantize") / "f32.gguf"
    report = quantize(MODEL, "--type", "F32", "-o", path)
    assert all(tensor["relative_squared_error"] == 0 for tensor in report["tensors"]), "float32 represents every weight exactly"
    return path


def divergence(file, reference, text) -> dict:
    args = ("--reference", reference, "--text", text, "--context", "128", "--chunks", "1", "--backend", "cpu", "--json")
    done = cli("eval", str(file), *map(str, args), timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["against"]


@pytest.mark.real_models
def test_a_real_mixture_is_that_of_llama_cpp():
    """Gemma's Q4_K_M plan equals the shipped file tensor by tensor. Qwen's file orders layers as text ("10" before "2"), so only the number
    of tensors per type is equal."""
    for tensor in quantize("gemma3:270m-base", "--type", "Q4_K_M", "--dry-run")["tensors"]:
        assert tensor["to"] == tensor["from"], tensor
    tensors = quantize("qwen2.5-coder:0.5b", "--type", "Q4_K_M", "--dry-run")["tensors"]
    assert Counter(tensor["to"] for tensor in tensors) == Counter(tensor["from"] for tensor in tensors)


@pytest.mark.real_models
def test_more_bits_diverge_less_and_a_copy_in_f32_changes_next_to_nothing(source, tmp_path):
    kls = []
    for kind in ["F16", "Q8_0", "Q4_0", "Q2_K"]:
        out = tmp_path / f"{kind}.gguf"
        report = quantize(source, "--type", kind, "-o", out)
        assert report["bytes"] == out.stat().st_size
        kls.append(divergence(out, source, ROOT / "ARCHITECTURE.md")["kl_mean"])
    assert kls == sorted(kls) and kls[0] < 1e-4 and 1e-3 < kls[2] < 1, kls
    # The shipped file is Q4_1 with a Q8_0 embedding. Its F32 copy has the same weights, but inputs of its products are not rounded.
    assert divergence(source, MODEL, ROOT / "ARCHITECTURE.md")["kl_max"] < 1e-6


def test_a_quantised_file_answers(source, tmp_path):
    out = tmp_path / "q6.gguf"
    quantize(source, "--type", "q6_k", "-o", out)
    done = cli("run", str(out), "The capital of France is which city? Answer in one word.")
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_bad_input_is_refused_and_leaves_nothing(source, tmp_path):
    out = tmp_path / "out.gguf"
    assert "expected one of F32, F16" in refused(MODEL, "--type", "Q9", "-o", out)
    assert "source itself" in refused(source, "--type", "Q8_0", "-o", source, "--force")
    assert "cannot write" in refused(MODEL, "--type", "F16", "-o", tmp_path / "no" / "folder.gguf")
    out.write_text("mine")
    assert "exists: choose another output or add --force" in refused(MODEL, "--type", "F16", "-o", out)
    assert out.read_text() == "mine"
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 16)
    assert "wrong.gguf" in refused(wrong, "--type", "F16", "-o", tmp_path / "new.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "wrong.gguf"]


def test_a_second_quantisation_warns(tmp_path):
    done = cli("quantize", MODEL, "--type", "Q8_0", "--dry-run")
    assert done.returncode == 0 and "is quantised already" in done.stderr
    assert "nothing was written" in done.stdout
