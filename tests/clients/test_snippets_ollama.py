"""Checks that the Python and curl code in docs/ollama.md works as printed. node/ollama.test.mjs runs the Node code."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness import MODEL, ROOT, Server, cli

DOCUMENT = (ROOT / "docs" / "ollama.md").read_text()
PIECES = re.findall(r"```(\w+)\n(.*?)```", DOCUMENT, re.S)
PYTHON = [code for language, code in PIECES if language == "python"]
PARIS = r"^The capital of France is Paris\.$"
# The module that each code block needs, and what the block prints.
PRINTED = [("ollama", PARIS), ("ollama", r"24"), ("langchain_ollama", PARIS), ("llama_index", PARIS)]


def run(command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, **kwargs)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_piece_of_the_page_is_known():
    assert [language for language, _ in PIECES] == ["sh", "sh", "python", "python", "js", "python", "python", "sh", "sh"]
    assert len(PYTHON) == len(PRINTED)


@pytest.mark.real_models
@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_a_piece_of_python_prints_what_the_page_says(server, number, tmp_path):
    module, printed = PRINTED[number]
    if find_spec(module) is None:
        pytest.skip(f"{module} is in another environment")
    script = tmp_path / "piece.py"
    script.write_text(PYTHON[number].replace("http://127.0.0.1:8080", server.url))
    assert re.search(printed, run([sys.executable, script], cwd=tmp_path))


def test_the_piece_for_curl_prints_the_answer(server):
    line = [code for language, code in PIECES if language == "sh"][1]
    answer = json.loads(run(["bash", "-c", line.replace("http://127.0.0.1:8080", server.url)]))
    assert answer["response"] == "The capital of France is Paris." and answer["done_reason"] == "stop"


def test_the_piece_that_makes_a_model_makes_it(tmp_path):
    folder = Path(json.loads(cli("show", MODEL, "--json").stdout)["path"]).parent
    shutil.copytree(folder, tmp_path / folder.name)
    line = [code for language, code in PIECES if language == "sh"][2]
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__MODELS_DIR": str(tmp_path)}) as server:
        assert json.loads(run(["bash", "-c", line.replace("http://127.0.0.1:8080", server.url)])) == {"status": "success"}
        shown = server.post("/api/show", {"model": "mario"}).json()
    assert shown["system"] == "You are Mario." and "User:" in shown["parameters"]


def test_the_piece_that_imports_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    piece = [code for language, code in PIECES if language == "sh"][3]
    for line in piece.strip().splitlines():
        done = cli(*line.split("#")[0].split()[1:], env={"SERVER__MODELS_DIR": str(tmp_path / "store")})
        assert done.returncode != 0 and str(tmp_path) in done.stderr, (line, done.stderr)
