"""On a machine without a GPU, the binary with the CUDA engine starts, says that there is no GPU, and serves on the CPU."""

import json
from pathlib import Path

import pytest
from harness import MODEL, Server, cli, free_port

pytestmark = [
    pytest.mark.features("cuda"),
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
    done = cli("bench", "--model", path, "--backend", "cuda", "--prompt", "8", "--gen", "2")
    failed(done)
    assert done.stdout == ""


@pytest.mark.real_models
def test_kernels_are_listed_without_a_gpu():
    done = cli("bench", MODEL, "--kernels=sm_90a", "--batch", "1,64", "--prompt", "200", "--gen", "2")
    assert done.returncode == 0, done.stderr
    steps = done.stdout.split("\n\n")
    titles = ["decoding 1 with contexts of 201 tokens:", "decoding 64 with contexts of 201 tokens:", "a prompt of 200 tokens:"]
    assert steps[0] == MODEL and [step.splitlines()[0] for step in steps[1:4]] == titles, done.stdout
    attention = [lines_with(step, " attention ")[0].split("  ")[-1] for step in steps[1:4]]
    assert attention[0] == "attention/cluster.cuh" and attention[2].endswith("attention/prefill_hopper.cuh"), attention
    products = [lines_with(step, "linear 576 →")[0].split("  ")[-1] for step in steps[1:4]]
    assert products[0] == "linear/decode.cuh" and len(set(products)) == 3, products
    unknown = cli("bench", MODEL, "--kernels=sm_12")
    assert unknown.returncode == 1 and "expected one of sm_90a (H100)" in unknown.stderr, unknown.stderr
    absent = cli("bench", MODEL, "--kernels")
    assert absent.returncode == 1 and len(lines_with(absent.stderr, NO_GPU)) == 1, absent.stderr


@pytest.mark.real_models
def test_a_part_of_a_program_is_listed():
    def program(*options):
        return cli("inspect", MODEL, "--program", "--backend", "cuda", *options)

    whole, part = program().stdout.splitlines(), program("--layers", "1..2").stdout.splitlines()
    ops = part[part.index("ops") + 1 :]
    assert ops[0].strip().startswith("rows of the stream in buffer") and ops[-1].strip().startswith("rows of the stream in buffer"), ops
    assert 0 < len(ops) - 2 < len(whole) - whole.index("ops") - 2 and not any("Embed" in op for op in ops), ops
    assert any(" blk.1." in line for line in part) and not any(" blk.0." in line for line in part), part


def test_serving_on_the_gpu_is_an_error():
    failed(cli("serve", "--port", free_port(), "--model", MODEL, "--backend", "cuda", timeout=30))


def test_auto_serves_on_the_cpu_and_says_so_in_one_line():
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__LOG": "info", "ENGINE__BACKEND": "auto"}) as server:
        assert server.text("The capital of France is")
        said = lines_with(server.output(), NO_GPU)
        assert len(said) == 1 and "cpu" in said[0].lower(), server.output()
        server.wait_log("cpu backend")
