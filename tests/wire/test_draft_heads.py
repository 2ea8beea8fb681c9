"""`penstock logits --heads`: the logits of draft heads (multi-token prediction) against llama.cpp's."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from harness import cli
from tiny import write_layout

GOLDEN = Path(__file__).parents[1] / "golden" / "draft_heads.jsonl.gz"
PROMPTS, *MODELS = [json.loads(line) for line in gzip.decompress(GOLDEN.read_bytes()).splitlines()]


def head_logits(folder: Path, layout: dict, *flags: str):
    write_layout(folder / "model.gguf", layout)
    (folder / "ids.json").write_text(json.dumps(PROMPTS))
    out = folder / "logits.npy"
    run = cli("logits", folder / "model.gguf", "--ids", folder / "ids.json", "--out", out, *flags)
    return run, np.load(out) if run.returncode == 0 else None


@pytest.mark.parametrize("layout", MODELS, ids=lambda layout: layout["name"])
def test_a_head_has_the_logits_of_the_reference(tmp_path, layout):
    run, logits = head_logits(tmp_path, layout, "--heads")
    assert run.returncode == 0, run.stderr
    assert logits.shape == (len(PROMPTS), 128)
    assert np.abs(logits - np.array(layout["logits"])).max() < 1e-4
    _, trunk = head_logits(tmp_path, layout)
    assert trunk.argmax(-1).tolist() == layout["next"], "the model itself"


def test_a_head_that_does_not_fit_or_is_missing_is_an_error(tmp_path):
    layout = MODELS[0]
    edited = [[name, [shape[0], shape[1] // 2]] if "eh_proj" in name else [name, shape] for name, shape in layout["tensors"]]
    run, _ = head_logits(tmp_path, {**layout, "tensors": edited}, "--heads")
    assert run.returncode != 0 and "blk.2.nextn.eh_proj.weight has shape" in run.stderr, run.stderr
    plain = [tensor for tensor in layout["tensors"] if "nextn" not in tensor[0]]
    run, _ = head_logits(tmp_path, {**layout, "tensors": plain}, "--heads")
    assert run.returncode != 0 and "the file has no draft head" in run.stderr, run.stderr
    run, logits = head_logits(tmp_path, {**layout, "tensors": plain})
    assert run.returncode == 0 and logits.argmax(-1).tolist() == layout["next"]
