"""On a machine without a GPU, the binary with the CUDA engine starts, says that there is no GPU, and serves on the CPU."""

import json
from pathlib import Path

import pytest
from harness import ALL_FEATURES, MODEL, Server, cli, free_port

pytestmark = [
    pytest.mark.all_features,
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU"),
]
NO_GPU = "no cuda device was found"


def lines_with(text: str, words: str) -> list[str]:
    return [line for line in text.splitlines() if words in line.lower()]


def failed(done) -> None:
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert len(lines_with(done.stderr, NO_GPU)) == 1 and "cuda" in done.stderr and "panicked" not in done.stderr, done.stderr


def test_bench_on_the_gpu_is_an_error():
    path = json.loads(cli("show", MODEL, "--json").stdout)["path"]
    done = cli("bench", "--model", path, "--backend", "cuda", "--prompt", "8", "--gen", "2", binary=ALL_FEATURES)
    failed(done)
    assert done.stdout == ""


def test_serving_on_the_gpu_is_an_error():
    failed(cli("serve", "--port", free_port(), "--model", MODEL, "--backend", "cuda", binary=ALL_FEATURES, timeout=30))


def test_auto_serves_on_the_cpu_and_says_so_in_one_line():
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__LOG": "info", "ENGINE__BACKEND": "auto"}, binary=ALL_FEATURES) as server:
        with_gpu = server.text("The capital of France is")
        said = lines_with(server.output(), NO_GPU)
        assert len(said) == 1 and "cpu" in said[0].lower(), server.output()
        server.wait_log("cpu backend")
    with Server({"SERVER__DEFAULT_MODELS": MODEL}) as plain:
        assert plain.text("The capital of France is") == with_gpu
