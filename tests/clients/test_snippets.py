"""Checks that all code in docs/clients.md and docs/anthropic.md works as printed. node/document.test.mjs runs the Node code."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness import ROOT



def pieces_of(page):
    """The code blocks of a page, each with its section and language."""
    sections = (ROOT / "docs" / page).read_text().split("\n## ")[1:]
    found = [(section.split("\n", 1)[0], *piece) for section in sections for piece in re.findall(r"```(\w+)\n(.*?)```", section, re.S)]
    return [(f"{title} of {page}" if page != "clients.md" else title, *piece) for title, *piece in found]


PIECES = pieces_of("clients.md") + pieces_of("anthropic.md")
PARIS = r"^The capital of France is Paris\.$"

# The Python code blocks by section: the module that a block needs, and what it prints.
PRINTED = {
    "openai (Python)": [("openai", PARIS)],
    "anthropic (Python)": [("anthropic", PARIS)],
    "LangChain (Python)": [("langchain_openai", PARIS), ("langchain_openai", r"^The weather in Paris is sunny.*24 degrees")],
    "Pydantic AI": [("pydantic_ai", PARIS)],
    "OpenAI Agents SDK": [("agents", PARIS)],
    "LlamaIndex": [("llama_index", PARIS)],
    "Instructor": [("instructor", r"^name='Paris' country='.+'$")],
    "An answer of anthropic.md": [("anthropic", PARIS)],
    "A tool in two steps of anthropic.md": [("anthropic", r"24")],
    "Counting of anthropic.md": [("anthropic", r"^37$")],
    "LangChain of anthropic.md": [("langchain_anthropic", PARIS)],
}
PYTHON = [(title, code) for title, language, code in PIECES if language == "python"]


def run(command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, **kwargs)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_piece_of_the_page_is_known():
    assert [title for title, _ in PYTHON] == [title for title, pieces in PRINTED.items() for _ in pieces]
    assert [title for title, language, _ in PIECES if language == "sh"] == ["curl", "lm-evaluation-harness"]
    assert all(language in ("python", "sh", "js") for _, language, _ in PIECES)


@pytest.mark.real_models
@pytest.mark.parametrize("number", range(len(PYTHON)), ids=[title for title, _ in PYTHON])
def test_a_piece_of_python_prints_what_the_page_says(server, number, tmp_path):
    module, printed = [piece for pieces in PRINTED.values() for piece in pieces][number]
    if find_spec(module) is None:
        pytest.skip(f"{module} is in another environment")
    script = tmp_path / "piece.py"
    script.write_text(PYTHON[number][1].replace("http://127.0.0.1:8080", server.url))
    assert re.search(printed, run([sys.executable, script], cwd=tmp_path))


def test_the_piece_for_curl_streams_the_answer(server):
    (line,) = [code for title, _, code in PIECES if title == "curl"]
    events = run(["bash", "-c", line.replace("http://127.0.0.1:8080", server.url)])
    assert "".join(re.findall(r'"content":"([^"]*)"', events)) == "The capital of France is Paris." and events.endswith("data: [DONE]")


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm_eval is in another environment")
def test_the_piece_for_lm_eval_prints_its_table(server):
    (line,) = [code for title, _, code in PIECES if title == "lm-evaluation-harness"]
    line = line.replace("http://127.0.0.1:8080", server.url).replace("lm-eval", str(Path(sys.executable).with_name("lm-eval")), 1)
    assert re.search(
        r"\|capitals\s*\|.*\|acc\s*\|↑\s*\|\s*[01]\b", run(["bash", "-c", line], cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    )


@pytest.mark.skipif(find_spec("openai") is None, reason="openai is in another environment")
def test_the_piece_for_batches_prints_that_all_is_done(server, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "batches.md").read_text(), re.S)
    script = tmp_path / "piece.py"
    script.write_text(code.replace("http://127.0.0.1:8080", server.url))
    assert run([sys.executable, script], cwd=tmp_path) == "completed 3"
