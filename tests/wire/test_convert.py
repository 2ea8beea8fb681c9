"""`penstock convert`: checkpoints of many classes give the logits of `transformers`. A checkpoint with anything unsupported is refused by
name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoint import Checkpoint, framed, golden
from harness import cli

PROMPTS, MODELS = golden()


def of(name: str) -> Checkpoint:
    return Checkpoint(json.loads(json.dumps(MODELS[name]["config"])), MODELS[name]["tensors"])


def convert(folder: Path, out: Path, *args) -> dict:
    done = cli("convert", folder, "-o", out, "--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(folder: Path, out: Path, *args) -> str:
    """Returns the error on stderr. Checks that no output is left behind."""
    done = cli("convert", folder, "-o", out, *args)
    assert done.returncode == 1 and not done.stdout, (done.returncode, done.stdout, done.stderr)
    assert "panicked" not in done.stderr
    assert not list(out.parent.glob(out.name + "*")), "an output was left behind"
    return done.stderr


def logits(file: Path, prompts: list, folder: Path) -> np.ndarray:
    ids, out = folder / "ids.json", folder / "logits.npy"
    ids.write_text(json.dumps(prompts))
    done = cli("logits", file, "--ids", ids, "--out", out, "--backend", "cpu")
    assert done.returncode == 0, done.stderr
    return np.load(out)


def metadata(file: Path) -> dict:
    done = cli("inspect", file, "--json")
    assert done.returncode == 0, done.stderr
    return {key: entry.get("value", entry) for key, entry in json.loads(done.stdout)["metadata"].items()}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name, tmp_path):
    folder, file = of(name).write(tmp_path / "model"), tmp_path / "model.gguf"
    report = convert(folder, file)
    assert report["type"] == "F32" and report["bytes"] == file.stat().st_size
    exact = np.array(MODELS[name]["logits"])
    # The engine uses LongRoPE's long factors for every prompt, `transformers` only beyond the original context.
    rows = [3] if "longrope" in name else range(len(PROMPTS))
    got = logits(file, [PROMPTS[row] for row in rows], tmp_path)
    worst = np.abs(got - exact[rows]).max() / exact.std()
    print(f"{name}: {worst:.1e}")
    assert worst < 2e-4, f"differs by {worst:.1e} standard deviations"


def test_weights_in_several_files_and_half_floats_are_the_same(tmp_path):
    """BF16 and F16 weights are copied unchanged, whichever files contain them."""
    one, many = of("qwen3moe").write(tmp_path / "one", "BF16"), of("qwen3moe").write(tmp_path / "many", "BF16", shards=3)
    report = convert(one, tmp_path / "one.gguf")
    assert report["type"] == "BF16" and {tensor["to"] for tensor in report["tensors"]} == {"BF16", "F32"}
    assert all(tensor["relative_squared_error"] == 0 for tensor in report["tensors"])
    convert(many, tmp_path / "many.gguf", "--threads", "1")
    same = lambda file: {k: v for k, v in metadata(file).items() if k != "general.name"}
    assert same(tmp_path / "one.gguf") == same(tmp_path / "many.gguf")
    assert np.array_equal(*(logits(tmp_path / f"{name}.gguf", PROMPTS, tmp_path) for name in ("one", "many")))
    half = convert(of("gpt2").write(tmp_path / "half", "F16"), tmp_path / "half.gguf")
    assert half["type"] == "F16" and max(tensor["relative_squared_error"] for tensor in half["tensors"]) == 0


def test_another_type_is_that_which_quantize_writes(tmp_path):
    checkpoint = of("llama")
    folder = checkpoint.write(tmp_path / "model")
    convert(folder, tmp_path / "f32.gguf")
    for kind in ("F16", "BF16", "Q8_0", "Q4_0"):
        direct, after = tmp_path / f"direct-{kind}.gguf", tmp_path / f"after-{kind}.gguf"
        convert(folder, direct, "--type", kind)
        done = cli("quantize", tmp_path / "f32.gguf", "--type", kind, "-o", after)
        assert done.returncode == 0, done.stderr
        assert np.array_equal(*(logits(file, PROMPTS[:2], tmp_path) for file in (direct, after))), kind


def test_a_dry_run_writes_nothing_and_an_output_is_not_replaced(tmp_path):
    folder, out = of("llama").write(tmp_path / "model"), tmp_path / "model.gguf"
    before = sorted(folder.iterdir())
    planned = cli("convert", folder, "-o", out, "--dry-run", "--type", "Q8_0")
    assert planned.returncode == 0 and "nothing was written" in planned.stdout, planned.stderr
    assert not out.exists() and sorted(folder.iterdir()) == before
    out.write_text("mine")
    done = cli("convert", folder, "-o", out)
    assert done.returncode == 1 and "--force" in done.stderr and out.read_text() == "mine"
    assert convert(folder, out, "--force")["bytes"] == out.stat().st_size
    assert list(tmp_path.glob("*.partial")) == []


def test_without_a_name_the_output_is_in_the_current_directory(tmp_path):
    folder = of("llama").write(tmp_path / "Tiny-Llama", "BF16")
    done = cli("convert", folder, cwd=tmp_path)
    assert done.returncode == 0 and "Tiny-Llama-BF16.gguf" in done.stdout, done.stderr
    assert metadata(tmp_path / "Tiny-Llama-BF16.gguf")["general.name"] == "Tiny-Llama"


def test_settings_of_the_folder_become_metadata(tmp_path):
    checkpoint = of("llama 3")
    folder = checkpoint.write(tmp_path / "model")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# Tiny\n")
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": [4, 1]}
    (folder / "generation_config.json").write_text(json.dumps(sampling))
    settings = {"bos_token": "t3", "eos_token": {"content": "t4"}, "add_bos_token": True, "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    convert(folder, tmp_path / "model.gguf")
    found = metadata(tmp_path / "model.gguf")
    expected = {
        "general.architecture": "llama", "general.license": "apache-2.0", "general.sampling.top_k": 20,
        "tokenizer.chat_template": "{{ messages }}", "tokenizer.ggml.bos_token_id": 3, "tokenizer.ggml.eos_token_id": 4,
        "tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.pre": "gpt-2",
        "llama.context_length": 256, "llama.attention.head_count_kv": 2, "llama.rope.dimension_count": 16,
    }  # fmt: skip
    assert {key: found.get(key) for key in expected} == expected
    assert abs(found["general.sampling.temp"] - 0.6) < 1e-6
    # A separate template file has priority over the template in the settings.
    (folder / "chat_template.jinja").write_text("{{ bos_token }}")
    convert(folder, tmp_path / "model.gguf", "--force")
    assert metadata(tmp_path / "model.gguf")["tokenizer.chat_template"] == "{{ bos_token }}"


def test_the_text_part_of_a_multimodal_model_is_converted(tmp_path):
    """Gemma 3's larger models have their settings in a section, other tensor names, and tensors of the vision part."""
    text = of("gemma3")
    whole = Checkpoint({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text.config}, [])
    del text.config["architectures"], text.config["rms_norm_eps"]
    rename = lambda name: "language_model." + name
    whole.tensors = {rename(name): tensor for name, tensor in text.tensors.items()}
    whole.tensors["vision_tower.vision_model.embeddings.patch_embedding.weight"] = np.zeros((4, 3, 2, 2), np.float32)
    whole.tensors["multi_modal_projector.mm_soft_emb_norm.weight"] = np.zeros(4, np.float32)
    convert(whole.write(tmp_path / "model"), tmp_path / "model.gguf")
    exact = np.array(MODELS["gemma3"]["logits"])
    assert np.abs(logits(tmp_path / "model.gguf", PROMPTS, tmp_path) - exact).max() / exact.std() < 2e-4


def without(name: str):
    return lambda checkpoint: checkpoint.tensors.pop(name)


def setting(**settings):
    return lambda checkpoint: checkpoint.config.update(settings)


def tensor(name: str, *shape):
    return lambda checkpoint: checkpoint.tensors.update({name: np.ones(shape, np.float32)})


NORM, UP = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"
NOT_FITTING = {
    "a missing matrix": (without(UP), "no layers.1.mlp.up_proj.weight"),
    "a missing norm": (without(NORM), "norm.weight"),
    "a missing output": (without("lm_head.weight"), "lm_head.weight"),
    "no embedding": (without("model.embed_tokens.weight"), "embeddings"),
    "a wrong shape": (tensor(UP, 64, 40), "up_proj"),
    "heads that do not fit": (tensor("model.layers.1.self_attn.q_proj.weight", 50, 48), "q_proj"),
    "a tensor without a place": (tensor("model.layers.1.mlp.extra.weight", 4), "mlp.extra.weight"),
    "a layer too many": (tensor("model.layers.3.input_layernorm.weight", 48), "3"),
    "an unknown class": (setting(architectures=["OtherForCausalLM"]), "LlamaForCausalLM"),
    "no class": (setting(architectures=None), "architectures"),
    "no heads": (setting(num_attention_heads=0), "num_attention_heads"),
    "a negative size": (setting(hidden_size=-48), "hidden_size"),
    "a size that is a text": (setting(hidden_size="48"), "hidden_size"),
    "heads that share nothing": (setting(num_key_value_heads=3), "num_key_value_heads"),
    "another activation": (setting(hidden_act="mish"), "hidden_act"),
    "an unknown scaling": (setting(rope_parameters={"rope_type": "other", "rope_theta": 1e4}), "rope_type"),
    "scaling without a factor": (setting(rope_parameters={"rope_type": "linear", "rope_theta": 1e4}), "factor"),
    "scaling of an older file without a factor": (setting(rope_parameters=None, rope_scaling={"type": "yarn"}), "factor"),
    "a context of nothing": (setting(max_position_embeddings=None), "max_position_embeddings"),
    "weights that others unpack": (setting(quantization_config={"quant_method": "gptq"}), "gptq"),
}


@pytest.mark.parametrize("what", NOT_FITTING)
def test_unsupported_checkpoints_are_refused_by_name(what, tmp_path):
    change, named = NOT_FITTING[what]
    checkpoint = of("llama")
    change(checkpoint)
    assert named in refused(checkpoint.write(tmp_path / "model"), tmp_path / "model.gguf")


def test_a_missing_expert_is_named(tmp_path):
    checkpoint = of("mixtral")
    gone = [name for name in checkpoint.tensors if "layers.1" in name and "experts.2." in name and "w1" in name]
    assert len(gone) == 1
    del checkpoint.tensors[gone[0]]
    assert "number 2" in refused(checkpoint.write(tmp_path / "model"), tmp_path / "model.gguf")


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


MALFORMED = {
    "nothing": b"",
    "a few bytes": b"abc",
    "a header longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "a header of the largest length": (2**64 - 1).to_bytes(8, "little") + b"{}",
    "no JSON": framed(b"{" * 40),
    "a list": framed(b"[]"),
    "an offset beyond the end": framed({"a": entry(offsets=(0, 80), shape=(20,))}) + bytes(8),
    "bytes that no tensor has": framed({"a": entry()}) + bytes(16),
    "tensors that overlap": framed({"a": entry(), "b": entry(offsets=(4, 12))}) + bytes(12),
    "a gap": framed({"a": entry(), "b": entry(offsets=(12, 20))}) + bytes(20),
    "an end before the beginning": framed({"a": entry(offsets=(8, 0))}) + bytes(8),
    "a length that does not fit": framed({"a": entry(shape=(3,))}) + bytes(8),
    "a shape that overflows": framed({"a": entry(shape=(2**40, 2**40))}) + bytes(8),
    "a dimension of nothing": framed({"a": entry(shape=(0,), offsets=(0, 0))}),
    "a negative dimension": framed({"a": entry(shape=(-2,))}) + bytes(8),
    "an unknown type": framed({"a": entry(dtype="F33")}) + bytes(8),
}  # fmt: skip


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_safetensors_are_refused(what, tmp_path):
    folder = of("llama").write(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(MALFORMED[what])
    assert "model.safetensors: " in refused(folder, tmp_path / "model.gguf")


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "I8", "F64"])
def test_types_that_are_no_plain_floats_are_refused_by_name(dtype, tmp_path):
    folder = of("llama").write(tmp_path / "model")
    size = {"F64": 8}.get(dtype, 1)
    file = framed({"model.norm.weight": entry(dtype, (48,), (0, 48 * size))}) + bytes(48 * size)
    (folder / "model.safetensors").write_bytes(file)
    said = refused(folder, tmp_path / "model.gguf")
    assert "model.norm.weight" in said and dtype in said and ("FP8" in said) == dtype.startswith("F8")


def test_an_index_must_name_existing_tensors_and_files(tmp_path):
    folder, out = of("llama").write(tmp_path / "model", shards=2), tmp_path / "model.gguf"
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    elsewhere = ["../model.safetensors", "/etc/passwd", "no.safetensors"]
    for change in ({"other.weight": index["weight_map"][NORM]}, *({NORM: file} for file in elsewhere)):
        path.write_text(json.dumps({"weight_map": index["weight_map"] | change}))
        refused(folder, out)
    path.write_text(json.dumps(index))
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in refused(folder, out)


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    checkpoint = of("llama")
    checkpoint.tensors[UP][3, 5] = np.nan
    assert "blk.1.ffn_up.weight" in refused(checkpoint.write(tmp_path / "model"), tmp_path / "model.gguf")


def test_folders_that_are_no_checkpoints_say_what_is_missing(tmp_path):
    out = tmp_path / "model.gguf"
    assert "is not a folder" in refused(tmp_path / "none", out)
    folder = of("llama").write(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json" in refused(folder, out)
    (folder / "config.json").write_text("{")
    assert "config.json" in refused(folder, out)
    (folder / "config.json").unlink()
    assert "config.json" in refused(folder, out)
    (folder / "model.safetensors").unlink()
    assert "*.safetensors" in refused(folder, out)
