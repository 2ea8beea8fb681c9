"""Checks that the Python and curl code in docs/ollama.md works as printed. node/ollama.test.mjs runs the Node code."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
from harness import ROOT

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
    assert [language for language, _ in PIECES] == ["sh", "sh", "python", "python", "js", "python", "python"]
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
