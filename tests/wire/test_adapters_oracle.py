"""`penstock logits` with adapters against llama.cpp's logits (GGUF LoRA, control vectors) and PEFT's (folders)."""

import json
from pathlib import Path

import numpy as np
import pytest
from adapter_files import CASES, PROMPTS, write_adapter, write_model
from harness import cli

# llama.cpp looks GELU up in a table of half floats.
TOLERANCE = {"gemma3": 2e-3, "gpt2": 2e-3}
RUNS = [(case, run) for case in CASES for run in case["runs"]]


def name_of(case: dict, run: dict) -> str:
    span = f" {run['first']}-{run['last']}" if "first" in run else ""
    return f"{case['name']}{span} " + (" ".join(f"{name}:{scale}" for name, scale in run["use"]) or "alone")


def logits(folder: Path, *flags):
    (folder / "ids.json").write_text(json.dumps(PROMPTS))
    out = folder / "logits.npy"
    run = cli("logits", folder / "model.gguf", "--ids", folder / "ids.json", "--out", out, *flags)
    assert run.returncode == 0, run.stderr
    return np.load(out)


def flags_of(folder: Path, case: dict, run: dict) -> list[str]:
    flags = []
    for name, scale in run["use"]:
        path = write_adapter(folder, case, name)
        vector = case["form"] == "vector"
        flags += ["--control-vector" if vector else "--adapter", f"{path}:{scale}" + (f":{run['first']}-{run['last']}" if vector else "")]
    return flags


@pytest.mark.parametrize("case, run", RUNS, ids=[name_of(case, run) for case, run in RUNS])
def test_adapters_have_the_logits_of_the_reference(tmp_path, case, run):
    write_model(tmp_path / "model.gguf", case)
    found = logits(tmp_path, *flags_of(tmp_path, case, run))
    worst = np.abs(found - np.array(run["logits"])).max()
    print(f"{name_of(case, run)}: {worst:.1e}")
    assert found.shape == (len(PROMPTS), 128)
    assert worst <= TOLERANCE.get(case.get("architecture"), 1e-4)


def test_the_references_differ_by_adapter():
    """Otherwise an adapter that is read and not used would pass."""
    for case in CASES:
        alone, *others = [np.array(run["logits"]) for run in case["runs"]]
        assert all(np.abs(other - alone).max() > 0.05 for other in others), case["name"]
