"""The command line: the output of each command, and its errors."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from harness import BINARY, MODEL, ROOT, Server, cli, environment, features, free_port

REFERENCE = Path(__file__).resolve().parent.parent / "golden" / "reference"
BASE = "gemma3:270m-base"
FILES = {
    MODEL: "smollm2-135m-instruct-q4_1.json",
    "qwen2.5-coder:0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.json",
    BASE: "gemma-3-270m-q4_k_m.json",
}


def reference(model: str) -> list[dict]:
    return json.loads((REFERENCE / FILES[model]).read_text())


def show(model: str) -> dict:
    done = cli("show", model, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def failed(done, *words: str) -> None:
    """Checks that the command exits with 1, with the words in its message on stderr, nothing on stdout and no panic."""
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert done.stdout == ""
    assert "panicked" not in done.stderr and "RUST_BACKTRACE" not in done.stderr, done.stderr
    for word in words:
        assert word.lower() in done.stderr.lower(), (word, done.stderr)


def test_a_port_in_use_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = cli("serve", "--port", port, timeout=30)
    assert done.returncode == 1, done.stderr
    assert str(port) in done.stderr and "panicked" not in done.stderr
    assert "in use" in done.stderr.lower(), done.stderr


def test_an_unknown_model_is_an_error():
    failed(cli("serve", "--port", free_port(), "--model", "nope:1b", timeout=30), "nope:1b")
    failed(cli("show", "nope:1b"), "nope:1b")
    failed(cli("pull", "nope:1b"), "nope:1b")
    failed(cli("rm", "nope:1b"), "nope:1b")


def test_an_unknown_setting_names_itself_and_its_source():
    failed(cli("list", env={"SERVER__PROT": "1"}), "prot", "PENSTOCK__SERVER__PROT")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mine.toml")
        file.write_text("[engine]\nthraeds = 2\n")
        failed(cli("--config", file, "list"), "thraeds", "mine.toml")


def test_a_wrong_setting_names_itself():
    failed(cli("serve", env={"SERVER__PORT": "70000"}, timeout=30), "port")
    failed(cli("serve", env={"ENGINE__BACKEND": "abacus"}, timeout=30), "backend", "abacus")
    failed(cli("--config", "/nowhere/at/all.toml", "list"), "/nowhere/at/all.toml")


def test_the_environment_wins_over_a_file_and_a_flag_over_both():
    in_file, in_env = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mine.toml")
        file.write_text(f"[server]\nport = {in_file}\n")
        with Server({"SERVER__PORT": str(in_env)}, ("--config", str(file))) as server:
            assert server.port not in (in_file, in_env), "the flag has priority"
            for port in (in_file, in_env):
                with pytest.raises(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()


def test_a_binary_without_cuda_says_so():
    done = cli("serve", "--port", free_port(), env={"ENGINE__BACKEND": "cuda"}, timeout=60)
    failed(done, "cuda")


def test_show_describes_a_model_and_list_names_all():
    shown = show(MODEL)
    assert Path(shown["path"]).is_file() and Path(shown["path"]).stat().st_size == 98_362_432
    text = cli("show", MODEL)
    assert text.returncode == 0 and "llama" in text.stdout
    assert shown["template"]["system"] is True and shown["runnable"] is True and shown["fault"] is None
    listed = cli("list")
    assert listed.returncode == 0
    for model in FILES:
        assert model in listed.stdout


def test_list_groups_the_catalogue_by_family():
    listed = cli("list", "--all")
    assert listed.returncode == 0, listed.stderr
    head, *rows = listed.stdout.splitlines()
    assert head.split() == ["FAMILY", "MODEL", "SIZE", "CONTEXT", "LICENCE", "KIND", "ON", "DISK"] and len(rows) >= 40
    families = [row.split()[0] for row in rows if not row.startswith(" ")]
    assert len(families) == len(set(families)) and "smollm2" in families


def test_a_similar_name_is_suggested():
    failed(cli("show", "smollm2:136m"), "did you mean smollm2:135m?")
    failed(cli("serve", "--model", "smolm2", timeout=30), "did you mean smollm2:135m?")


def test_a_former_name_still_works_and_says_the_new_one():
    done = cli("show", "gemma3:270m", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["id"] == BASE
    assert "`gemma3:270m` is called `gemma3:270m-base` now" in done.stderr and "continues texts" in done.stderr
    assert cli("show", BASE, "--json").stderr == ""


def test_show_lists_the_sampling_parameters_of_a_model():
    assert show(MODEL)["sampling"] == {"temperature": 0.2, "top_p": 0.9} and show(MODEL)["base"] is False
    assert show(BASE)["base"] is True
    assert "temperature 0.2, top p 0.9" in cli("show", MODEL).stdout


@pytest.mark.real_models
def test_show_says_whether_a_context_fits():
    asked = {}
    for context, sequences in [(2048, 1), (2048, 8)]:
        done = cli("show", MODEL, "--json", "--context", str(context), "--sequences", str(sequences))
        assert done.returncode == 0, done.stderr
        memory = json.loads(done.stdout)["memory"]
        assert (memory["context"], memory["sequences"]) == (context, sequences)
        cpu = memory["devices"][0]
        assert cpu["backend"] == "cpu" and cpu["needed"] == cpu["weights"] + cpu["kv"] + cpu["scratch"]
        assert cpu["fits"] == (cpu["needed"] <= cpu["available"] <= cpu["total"])
        asked[sequences] = cpu
    # 30 layers of 3 heads of 64 elements, K and V in float32
    assert asked[1]["kv"] == 2048 * 30 * 3 * 64 * 2 * 4 and asked[8]["kv"] == 8 * asked[1]["kv"]
    text = cli("show", MODEL, "--context", "2048")
    assert "fits: " in text.stdout and "1 x 2048 tokens" in text.stdout, text.stdout
    huge = json.loads(cli("show", MODEL, "--json", "--sequences", "65536").stdout)["memory"]["devices"][0]
    assert huge["fits"] is False
    too_long = json.loads(cli("show", MODEL, "--json", "--context", "999999").stdout)
    assert too_long["memory"] is None and "--context is 999999" in too_long["fault"]


@pytest.mark.real_models
def test_pull_twice_fetches_once():
    before = Path(show(MODEL)["path"]).stat()
    done = cli("pull", MODEL)
    assert done.returncode == 0, done.stderr
    after = Path(show(MODEL)["path"]).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_file_with_flipped_bits_is_not_a_model():
    with tempfile.TemporaryDirectory() as folder:
        copy = bytearray(Path(show(MODEL)["path"]).read_bytes()[:1_000_000])
        copy[0] ^= 1
        file = Path(folder, "broken.gguf")
        file.write_bytes(copy)
        failed(cli("inspect", file), "broken.gguf")
        copy[0] ^= 1
        file.write_bytes(copy)
        failed(cli("inspect", file), "broken.gguf")
        failed(cli("serve", "--port", free_port(), "--model", file, timeout=30), "broken.gguf")


@pytest.mark.real_models
def test_inspect_prints_metadata_and_tensors():
    done = cli("inspect", show(MODEL)["path"])
    assert done.returncode == 0, done.stderr
    for word in ("llama", "token_embd.weight", "blk.0.attn_q.weight", "Q4_1", "49152"):
        assert word in done.stdout, word


@pytest.mark.real_models
def test_inspect_prints_the_ops_of_a_step():
    path = show(MODEL)["path"]
    done = cli("inspect", path, "--program")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["layer", "op", "weights", "read", "written", "what"]
    products = [line.split() for line in lines if " linear " in line]
    layers = {int(line[0]) for line in products}
    assert layers == set(range(len(layers))) and len(products) == 4 * len(layers), "QKV, output, gate and up, down"
    assert "cache of layer 0: 3 heads, keys [64], values [64]" in lines
    total = next(line.split() for line in lines if line.split()[:1] == ["all"])
    assert int(total[1]) < Path(path).stat().st_size, "a row reads the weights once"
    part = cli("inspect", path, "--program", "--layers", "1..2").stdout.splitlines()
    assert part[1:-2] == [line for line in lines if line.split()[0] == "1"], "the layer's own lines, then the sums and its cache"
    refused = cli("inspect", path, "--program", "--shard", "0/2")
    assert refused.returncode == 1 and "op attention in layer 0: 3 heads cannot be cut into 2 shards" in refused.stderr
    assert cli("inspect", path, "--program", "--shard", "half").returncode == 2
    assert cli("inspect", path, "--program", "--json").returncode == 2


def test_output_into_a_closed_pipe_does_not_panic():
    import subprocess

    from harness import BINARY

    done = subprocess.run(["bash", "-c", f"'{BINARY}' inspect '{show(MODEL)['path']}' | head -n 1"], capture_output=True, text=True)
    assert "panicked" not in done.stderr and done.stdout


@pytest.mark.parametrize("model", FILES)
def test_tokenize_prints_the_reference_ids(model):
    path = show(model)["path"]
    for prompt in reference(model):
        done = cli("tokenize", path, "--special", stdin=prompt["text"])
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == prompt["ids"], prompt["name"]


@pytest.mark.real_models
@pytest.mark.parametrize("model", FILES)
def test_logits_equal_the_reference(model):
    """The 20 largest logits, the mean and the log-sum-exp agree within 2e-3 of the logits' standard deviation."""
    import numpy as np

    prompts = reference(model)
    with tempfile.TemporaryDirectory() as folder:
        ids, out = Path(folder, "ids.json"), Path(folder, "out.npy")
        ids.write_text(json.dumps([prompt["ids"] for prompt in prompts]))
        done = cli("logits", show(model)["path"], "--ids", ids, "--out", out, timeout=170)
        assert done.returncode == 0, done.stderr
        logits = np.load(out)
    assert logits.dtype == np.float32 and logits.shape[0] == len(prompts)
    for row, prompt in zip(logits.astype(np.float64), prompts):
        bound = 2e-3 * prompt["std"]
        for token, logit in prompt["top"]:
            assert abs(row[token] - logit) <= bound + 5e-5, (prompt["name"], token, row[token], logit, bound)
        assert abs(row.mean() - prompt["mean"]) <= bound and abs(row.std() - prompt["std"]) <= bound
        highest = row.max()
        assert abs(highest + np.log(np.exp(row - highest).sum()) - prompt["lse"]) <= bound


def test_logits_refuses_what_is_not_a_prompt():
    with tempfile.TemporaryDirectory() as folder:
        ids, out = Path(folder, "ids.json"), Path(folder, "out.npy")
        for text in ("[[]]", "[[49152]]", "[[-1]]", "{}", "x", "[1]"):
            ids.write_text(text)
            failed(cli("logits", show(MODEL)["path"], "--ids", ids, "--out", out), "")
            assert not out.exists()


def test_tools_take_names_as_well_as_files(tmp_path):
    path = show(MODEL)["path"]
    by_name, by_file = (cli("tokenize", model, stdin="Hello, world!") for model in (MODEL, path))
    assert by_name.returncode == 0 and json.loads(by_name.stdout) and by_name.stdout == by_file.stdout, by_name.stderr
    assert cli("inspect", "smollm2").stdout == cli("inspect", path).stdout, "an alias"
    (tmp_path / "input.json").write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}))
    by_name, by_file = (cli("render", model, "--input", tmp_path / "input.json") for model in (MODEL, path))
    assert by_name.returncode == 0 and "Hi" in by_name.stdout and by_name.stdout == by_file.stdout, by_name.stderr
    (tmp_path / "ids.json").write_text("[[1, 2, 3]]")
    for number, model in enumerate((MODEL, path)):
        done = cli("logits", model, "--ids", tmp_path / "ids.json", "--out", tmp_path / f"{number}.npy")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "0.npy").read_bytes() == (tmp_path / "1.npy").read_bytes()
    logits = ("logits", MODEL, "--ids", tmp_path / "ids.json", "--out", tmp_path / "2.npy")
    assert cli(*logits, "--device", "cpu").returncode == 0
    assert (tmp_path / "0.npy").read_bytes() == (tmp_path / "2.npy").read_bytes(), "devices have the same names as in bench and eval"
    failed(cli(*logits, "--device", "cuda", "--backend", "cpu"), "--backend is cpu")
    for command in (["tokenize"], ["inspect"], ["render", "--input", tmp_path / "input.json"], ["bench"]):
        failed(cli(*command, "smollm2:136m"), "did you mean smollm2:135m?")
        failed(cli(*command, tmp_path / "gone.gguf"), "gone.gguf: no such file")
    failed(cli("inspect", "llama3.3:70b"), "`penstock pull llama3.3:70b` fetches it")


def test_similar_names_of_commands_and_models_are_suggested():
    done = cli("serv")
    assert done.returncode == 2 and "'serve'" in done.stderr, done.stderr
    failed(cli("rm", "smollm2:136m"), "did you mean smollm2:135m?")


def test_sizes_are_in_binary_units():
    for args in (["list"], ["list", "--all"], ["show", MODEL], ["doctor"]):
        text = cli(*args).stdout
        assert "MiB" in text and not re.search(r"\d [kMG]B\b", text), (args, text)


def test_health_ps_and_stop_find_a_server(tmp_path):
    with Server() as server:
        for where in (["--port", str(server.port)], ["--url", f"http://127.0.0.1:{server.port}"], ["--url", f"127.0.0.1:{server.port}/"]):
            done = cli("health", *where)
            assert done.returncode == 0, done.stderr
            done = cli("ps", *where)
            assert done.returncode == 0 and MODEL in done.stdout and "MiB" in done.stdout, (done.stdout, done.stderr)
        done = cli("stop", "smolm2", "--port", server.port)
        failed(done, "did you mean smollm2:135m?")
        done = cli("stop", MODEL, "--port", server.port)
        assert done.returncode == 0, done.stderr
        assert "no model is loaded" in cli("ps", "--port", server.port).stdout
        banner = Path(server.log.name).read_text()
        assert f"http://127.0.0.1:{server.port}/\n" in banner, banner
    gone = free_port()
    failed(cli("health", "--port", gone), str(gone))
    failed(cli("ps", "--port", gone), str(gone), "penstock serve")
    assert cli("ps", "--port", gone, "--url", "x").returncode == 2


def test_the_description_is_the_same_everywhere():
    sentence = "Runs GGUF models and serves them to clients of OpenAI, Anthropic and Ollama"
    assert cli("--help").stdout.splitlines()[0] == sentence
    for file in ("README.md", "Cargo.toml", "tools/formats/product.py"):
        assert sentence in (ROOT / file).read_text(), file


def test_completions_know_every_command():
    for shell in ("bash", "zsh", "fish", "elvish", "powershell"):
        done = cli("completions", shell)
        assert done.returncode == 0 and "doctor" in done.stdout and "at-once" in done.stdout, (shell, done.stderr)
    script = cli("completions", "bash").stdout
    # the completions that bash offers for `penstock be`
    probe = f"{script}\nCOMP_WORDS=(penstock be); COMP_CWORD=1; _penstock penstock be penstock; echo \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True)
    assert done.stdout.split() == ["bench"], (done.stdout, done.stderr)
    assert cli("completions", "tcsh").returncode == 2


def test_man_pages_are_written(tmp_path):
    done = cli("man", tmp_path / "man1")
    assert done.returncode == 0, done.stderr
    pages = {page.name for page in (tmp_path / "man1").iterdir()}
    assert {"penstock.1", "penstock-run.1", "penstock-bench.1", "penstock-keys-add.1"} <= pages, pages
    page = (tmp_path / "man1" / "penstock-run.1").read_text()
    assert "\n.TH penstock-run 1 " in page
    assert "\\-\\-temperature" in page and "NAME" in page
    (tmp_path / "file").write_text("")
    failed(cli("man", tmp_path / "file"), "cannot write to")


@pytest.mark.real_models
def test_doctor_describes_the_machine_and_the_models():
    done = cli("doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    machine = report["machine"]
    cpu = next(device for device in machine["devices"] if device["backend"] == "cpu")
    total = int(re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024
    assert 0 < cpu["free"] <= cpu["total"] <= total
    assert machine["processor"]["threads"] == len(os.sched_getaffinity(0))
    flags = set(re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)[1].split())
    assert {"avx2", "avx512f"} & flags == {"avx2", "avx512f"} & set(machine["processor"]["features"])
    models = {model["id"]: model for model in report["models"]}
    shown = show(MODEL)
    small = models[MODEL]
    assert small["on_disk"] and small["fits"] and not small["estimated"] and small["size"] == shown["size"]
    assert small["needed"] > small["size"]
    large = models["llama3.3:70b"]
    assert not large["on_disk"] and large["estimated"] and large["needed"] > large["size"] > 30e9
    assert isinstance(report["advice"], list)
    text = cli("doctor").stdout
    assert "\x1b" not in text and MODEL in text and f"kernels: {machine['processor']['kernels']}" in text


def test_colours_follow_the_environment():
    def doctor(**variables):
        done = subprocess.run([BINARY, "doctor"], capture_output=True, text=True, env=environment() | variables, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "\x1b" not in doctor()
    assert "\x1b[1m" in doctor(CLICOLOR_FORCE="1")
    assert "\x1b" not in doctor(CLICOLOR_FORCE="1", NO_COLOR="1")
    assert "\x1b" not in doctor(CLICOLOR_FORCE="0")


def bench(*args) -> dict | list:
    done = cli("bench", *args, "--json", timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_bench_measures_contexts(tmp_path):
    report = bench(MODEL, "--context", "64,0", "--batch", "1,3", "--gen", "4", "--repeat", "1", "--plot", tmp_path / "p.svg")
    assert report["mode"] == "context" and report["prompt"] is None and report["generated"] == 4
    assert [(row["context"], row["batch"]) for row in report["rows"]] == [(0, 1), (0, 3), (64, 1), (64, 3)]
    assert all(row["decode_step_milliseconds"] > 0 and row["prefill_tokens_per_second"] > 0 for row in report["rows"])
    picture = xml.parse(tmp_path / "p.svg").getroot()
    assert len(picture.findall("{*}polyline")) == 2 and len(picture.findall("{*}circle")) == 4
    assert cli("bench", MODEL, "--context", "8", "--prompt", "8").returncode == 2, "these two options exclude each other"


def test_bench_measures_a_closed_loop():
    args = (MODEL, "--mixed", "--requests", "6", "--at-once", "1,3", "--prompt", "40", "--gen", "5", "--device", "cpu")
    report = bench(*args, "--step-tokens", "32", "--seed", "5")
    assert (report["mode"], report["prompt"], report["generated"], report["step_tokens"], report["seed"]) == ("mixed", 40, 5, 32, 5)
    assert [(row["at_once"], row["requests"]) for row in report["rows"]] == [(1, 6), (3, 6)]
    for row in report["rows"]:
        assert abs(row["output_tokens_per_second"] * row["seconds"] - 30) < 1e-6, "every request got its tokens"
        for name in ("first_token_milliseconds", "between_tokens_milliseconds", "request_milliseconds"):
            times = row[name]
            assert 0 < times["p50"] <= times["p90"] <= times["p99"] <= times["max"], (name, times)
        assert row["request_milliseconds"]["max"] <= row["seconds"] * 1e3
    text = cli("bench", *args)
    assert text.returncode == 0 and "between ms p50" in text.stdout, text.stderr
    failed(cli("bench", *args, "--step-tokens", "2"), "--step-tokens is less than --at-once")
    assert cli("bench", MODEL, "--requests", "5").returncode == 2, "this option needs --mixed"
    failed(cli("bench", MODEL, "--backend", "cpu", "--device", "cuda"), "--backend is cpu", "cuda")


def test_bench_lists_no_kernels_of_the_cpu():
    failed(cli("bench", MODEL, "--kernels", "--device", "cpu"), "kernels of the CPU", "ask for a GPU")
    if "cuda" not in features():
        failed(cli("bench", MODEL, "--kernels=sm_90a"), "this build is without CUDA")
    assert cli("bench", MODEL, "--kernels", "--json").returncode == 2, "these two options exclude each other"


def test_bench_compares_models_and_curves_draws_them(tmp_path):
    copy = shutil.copy(show(MODEL)["path"], tmp_path / "copy <1>.gguf")
    args = ("--prompt", "16", "--gen", "3", "--batch", "1,2", "--repeat", "1")
    text = cli("bench", MODEL, copy, *args, timeout=300)
    assert text.returncode == 0, text.stderr
    rows = text.stdout.splitlines()[-5:]
    assert rows[0].split()[0] == "model" and [row.startswith(MODEL) for row in rows[1:]] == [True, True, False, False], rows
    reports = bench(MODEL, copy, *args)
    assert [report["name"] for report in reports] == [MODEL, "copy <1>"]
    (tmp_path / "two.json").write_text(json.dumps(reports))
    (tmp_path / "deep.json").write_text(json.dumps(bench(MODEL, "--context", "0,32", "--gen", "2", "--repeat", "1")))
    (tmp_path / "mixed.json").write_text(
        json.dumps(bench(MODEL, "--mixed", "--requests", "2", "--at-once", "1,2", "--prompt", "8", "--gen", "3"))
    )
    draw = [sys.executable, ROOT / "tests" / "bench" / "curves.py", "--out", tmp_path / "images"]
    files = [tmp_path / "two.json", f"other={tmp_path}/two.json", tmp_path / "deep.json", tmp_path / "mixed.json"]
    subprocess.run([*draw, *files], check=True, capture_output=True)
    pictures = {path.stem: xml.parse(path).getroot() for path in (tmp_path / "images").iterdir()}
    counts = {name: len(picture.findall("{*}polyline")) for name, picture in pictures.items()}
    one = dict.fromkeys(("decode-context", "mixed-rate", "mixed-first", "mixed-between"), 1)
    assert counts == {"decode-batch": 4, "decode-rate": 4, **one}
    wrong = subprocess.run([*draw, tmp_path / "copy <1>.gguf"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "Traceback" not in wrong.stderr
