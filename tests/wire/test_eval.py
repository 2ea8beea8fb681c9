"""`penstock eval`: perplexity and divergences of real models, and refused input."""

from __future__ import annotations

import json
import math

import pytest
from harness import cli

MODEL = "smollm2:135m"
PROSE = """The river begins in the hills above the town, where the snow of the winter melts in the first warm days of spring. It runs
down through the forest, past the old mill and the stone bridge, and then it crosses the wide fields where the farmers grow wheat and
barley. In the summer the children of the village swim in the shallow water near the bridge, and in the autumn the leaves of the trees
float slowly down to the sea. For hundreds of years the people have used the river to carry their goods to the market. They built small
boats of wood and loaded them with flour, wool and cheese. When the railway came, the boats were no longer needed, and most of them were
left to rot on the banks. Today there is a small museum in the mill, which shows how the people lived and worked at that time. Visitors
can see the great wheel turn, and on Sundays the baker sells bread that was made from the flour of the mill. The river itself has not
changed much. It is still cold and clear, and on quiet evenings you can hear it from every window of the town."""
CHUNK = ("--context", "128", "--chunks", "1", "--backend", "cpu")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("eval") / "text.txt"
    path.write_text(PROSE)
    return path


def evaluate(*args) -> dict:
    done = cli("eval", *map(str, args), "--json", timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(*args) -> str:
    done = cli("eval", *map(str, args), timeout=300)
    assert done.returncode != 0 and not done.stdout, done.stdout
    return done.stderr


@pytest.mark.real_models
def test_the_engine_is_almost_as_exact_as_float32(text):
    # inputs of products are rounded to 16 bits
    found = evaluate(MODEL, "--reference", "exact", "--text", text, *CHUNK)
    against = found["against"]
    assert found["tokens"] == 63 and found["chunks"] == 1 and found["backend"] == "cpu"
    assert 0 <= against["kl_median"] <= against["kl_p99"] <= against["kl_max"] < 1e-6, against
    assert against["same_first"] == 1.0
    assert math.isclose(found["perplexity"], against["perplexity"], rel_tol=1e-4)
    assert 1.5 < found["perplexity"] < 200 and found["perplexity_error"] > 0


def test_a_file_against_itself_has_no_divergence(text):
    against = evaluate(MODEL, "--reference", MODEL, "--text", text, *CHUNK)["against"]
    assert (against["kl_max"], against["same_first"]) == (0.0, 1.0)


def test_perplexity_alone_is_the_same_and_the_default_text_shows_it(text):
    alone = evaluate(MODEL, "--text", text, *CHUNK)
    assert alone["against"] is None
    beside = evaluate(MODEL, "--reference", MODEL, "--text", text, *CHUNK, "--threads", "1")
    assert alone["perplexity"] == beside["perplexity"]
    shown = cli("eval", MODEL, "--text", str(text), *CHUNK)
    assert f"perplexity          {alone['perplexity']:.4f}" in shown.stdout, shown.stdout


@pytest.mark.real_models
def test_nonsense_is_more_surprising_than_prose(text, tmp_path):
    nonsense = tmp_path / "nonsense.txt"
    nonsense.write_text(" ".join(reversed(text.read_text().split())))
    assert evaluate(MODEL, "--text", nonsense, *CHUNK)["perplexity"] > 2 * evaluate(MODEL, "--text", text, *CHUNK)["perplexity"]


def test_what_cannot_be_measured_is_refused(text, tmp_path):
    short, binary = tmp_path / "short.txt", tmp_path / "binary"
    short.write_text("too short")
    binary.write_bytes(b"\xff\xfe\x00")
    assert "tokens, which are 0 chunks of 128, expected at least 1" in refused(MODEL, "--text", short, "--context", "128")
    assert "--text: cannot read" in refused(MODEL, "--text", tmp_path / "missing")
    assert "--text: cannot read" in refused(MODEL, "--text", binary)
    assert "has another vocabulary" in refused(MODEL, "--reference", "gemma3:270m-base", "--text", text, *CHUNK)
    assert "expected the index of a GPU, or cpu, cuda or cuda:INDEX" in refused(MODEL, "--text", text, "--device", "tpu")


def test_a_device_may_be_named_by_its_backend(text):
    assert evaluate(MODEL, "--text", text, "--context", "64", "--chunks", "1", "--device", "cpu")["backend"] == "cpu"
