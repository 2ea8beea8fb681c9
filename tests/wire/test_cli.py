"""The command line: what each command prints, and how it fails."""

import json
import socket
import tempfile
from pathlib import Path

import pytest
from harness import MODEL, Server, cli, free_port

REFERENCE = Path(__file__).resolve().parent.parent / "golden" / "reference"
FILES = {
    MODEL: "smollm2-135m-instruct-q4_1.json",
    "qwen2.5-coder:0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.json",
    "gemma3:270m": "gemma-3-270m-q4_k_m.json",
}


def reference(model: str) -> list[dict]:
    return json.loads((REFERENCE / FILES[model]).read_text())


def show(model: str) -> dict:
    done = cli("show", model, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def failed(done, *words: str) -> None:
    """The command exits with 1, its message on stderr holds the words, stdout is empty, and nothing panicked."""
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
            assert server.port not in (in_file, in_env), "the flag won"
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


def test_a_near_name_is_suggested():
    failed(cli("show", "smollm2:136m"), "did you mean smollm2:135m?")
    failed(cli("serve", "--model", "smolm2", timeout=30), "did you mean smollm2:135m?")


def test_show_tells_what_a_model_is_sampled_with():
    assert show(MODEL)["sampling"] == {"temperature": 0.2, "top_p": 0.9} and show(MODEL)["base"] is False
    assert show("gemma3:270m")["base"] is True
    assert "temperature 0.2, top p 0.9" in cli("show", MODEL).stdout


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


def test_inspect_prints_metadata_and_tensors():
    done = cli("inspect", show(MODEL)["path"])
    assert done.returncode == 0, done.stderr
    for word in ("llama", "token_embd.weight", "blk.0.attn_q.weight", "Q4_1", "49152"):
        assert word in done.stdout, word


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


@pytest.mark.parametrize("model", FILES)
def test_logits_equal_the_reference(model):
    """Each of the 20 largest logits, their mean and their log-sum-exp agree within 2e-3 of the logits' standard deviation."""
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
