"""Mistakes that people make in their first hour, and what the commands say about them."""

import json
import os
import shutil
import subprocess

from harness import BINARY, MODEL, ROOT, Server, cli, environment, free_port
from tiny import Tiny


def said(*args, env: dict[str, str], cwd=None) -> subprocess.CompletedProcess:
    """Runs a command with plain environment variables."""
    return subprocess.run([str(BINARY), *map(str, args)], capture_output=True, text=True, env=environment() | env, timeout=120, cwd=cwd)


def test_a_truncated_model_says_that_it_is_to_be_fetched_again(tmp_path):
    whole = tmp_path / "whole.gguf"
    Tiny("llama").write(whole)
    size = whole.stat().st_size
    for kept in (0, 3, 100, size // 2, size - 1):
        cut = tmp_path / "cut.gguf"
        shutil.copy(whole, cut)
        os.truncate(cut, kept)
        for command in (["inspect", cut], ["show", cut], ["serve", "--port", free_port(), "--model", cut]):
            done = cli(*command)
            assert done.returncode == 1 and "cut.gguf" in done.stderr, (kept, command, done.stderr)
            assert "the file is incomplete: fetch it again" in done.stderr, (kept, command, done.stderr)


def test_a_directory_is_no_model_and_the_error_names_the_files_in_it(tmp_path):
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    Tiny("llama").write(full / "a.gguf")
    for command in (["show"], ["inspect"], ["serve", "--port", free_port(), "--model"], ["run"]):
        done = cli(*command, full)
        assert done.returncode == 1 and "is a directory: name a file in it (a.gguf)" in done.stderr, (command, done.stderr)
        done = cli(*command, empty)
        assert done.returncode == 1 and "is a directory, and no GGUF file is in it" in done.stderr, (command, done.stderr)
        assert "no such file" not in done.stderr


def test_a_variable_with_one_underscore_is_warned_about_with_the_name_that_was_meant():
    meant = "environment variable PENSTOCK_PORT is no setting and changes nothing: did you mean PENSTOCK__SERVER__PORT?"
    with Server(env={"PENSTOCK_PORT": "1"}) as server:
        server.wait_log(meant)
    done = said("list", "--json", env={"PENSTOCK_PORT": "1"})
    assert done.returncode == 0 and done.stderr.strip() == meant and json.loads(done.stdout)
    # Kubernetes sets this for a service of that name.
    assert said("list", env={"PENSTOCK_PORT": "tcp://10.0.0.7:8080"}).stderr == ""


def test_an_offline_pull_retries_with_one_line_and_says_what_to_do(tmp_path):
    offline = {"PENSTOCK__SERVER__MODELS_DIR": str(tmp_path), "HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    for name in ("hf:owner/repo/file.gguf", "hf:owner/repo:Q4_K_M"):
        done = said("pull", name, env=offline)
        assert done.returncode == 1, done
        lines = done.stderr.splitlines()
        assert len([line for line in lines if "trying again, at most 5 times" in line]) == 1, lines
        assert len(lines) == 2 and "check the connection and pull again" in lines[1] and "HTTPS_PROXY" in lines[1], lines


def test_an_offline_pull_of_a_package_says_what_to_do(tmp_path):
    index = {"PIP_INDEX_URL": f"http://127.0.0.1:{free_port()}/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}
    done = said("pull", MODEL, env={"PENSTOCK__SERVER__MODELS_DIR": str(tmp_path)} | index)
    assert done.returncode == 1, done
    *_, last = done.stderr.splitlines()
    assert "the package index does not answer" in last and "check the connection and pull again" in last, done.stderr
    assert "No matching distribution" not in done.stderr, done.stderr


def test_show_says_what_the_catalogue_knows_of_a_model_that_is_not_on_disk(tmp_path):
    nowhere = {"SERVER__MODELS_DIR": str(tmp_path)}
    done = cli("show", "qwen3:8b", env=nowhere)
    assert done.returncode == 0, done.stderr
    for words in ("`penstock pull qwen3:8b` fetches it", "Apache-2.0", "about 4.7 GiB", "32768", "penstock doctor"):
        assert words in done.stdout, done.stdout
    known = json.loads(cli("show", "qwen3:8b", "--json", env=nowhere).stdout)
    assert known["on_disk"] is False and known["context_length"] == 32768 and known["fetch"] == "penstock pull qwen3:8b"
    doctor = json.loads(cli("doctor", "--json", env=nowhere).stdout)
    assert known["estimated_memory"] == next(model["needed"] for model in doctor["models"] if model["id"] == "qwen3:8b")
    assert json.loads(cli("show", MODEL, "--json").stdout)["on_disk"] is True


def test_health_prints_a_line():
    with Server() as server:
        where = f"http://127.0.0.1:{server.port}"
        assert cli("health", "--port", server.port).stdout == f"{where} accepts requests\n"
        assert cli("health", "--port", server.port, "--live").stdout == f"{where} is alive\n"


def test_the_page_about_machines_has_the_figures_of_the_doctor(tmp_path):
    rows = [line.strip("|").split("|") for line in (ROOT / "docs" / "choose.md").read_text().splitlines() if line.startswith("| `")]
    page = {cells[0].strip().strip("`"): float(cells[1]) for cells in rows}
    told = json.loads(cli("doctor", "--json", env={"SERVER__MODELS_DIR": str(tmp_path)}).stdout)
    doctor = {model["id"]: round(model["needed"] / 2**30, 1) for model in told["models"]}
    assert len(page) >= 40 and page == doctor
