"""KV caches of each type: what they take and lose, where the type is told, and that no answer depends on the load."""

from __future__ import annotations

import json

import pytest
from harness import MODEL, ROOT, Server, cli
from test_cli import BASE, FILES

TYPES = ["f32", "f16", "q8"]
# The largest mean divergence from a cache in float32 [nats].
BOUND = {"f16": 3e-5, "q8": 1e-3}
TEXTS = ["ARCHITECTURE.md", "tests/harness.py"]


def served(cache_type: str, **config) -> Server:
    return Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__BACKEND": "cpu", "ENGINE__CACHE_TYPE": cache_type, **config})


@pytest.mark.real_models
@pytest.mark.parametrize("model", FILES)
@pytest.mark.parametrize("cache_type", BOUND)
def test_a_cache_of_fewer_bits_changes_little(tmp_path, model, cache_type):
    for name in TEXTS:
        (tmp_path / "text").write_text((ROOT / name).read_text()[:8000])
        flags = ("--context", "512", "--chunks", "1", "--backend", "cpu", "--cache-type", cache_type, "--reference-cache", "f32")
        done = cli("eval", model, "--text", str(tmp_path / "text"), *flags, "--json", timeout=300)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["cache_type"], found["reference_cache"], found["reference"]) == (cache_type, "f32", model)
        assert 0 < found["kl"]["mean"] <= BOUND[cache_type], found
        assert found["kl"]["mean"] == found["against"]["kl_mean"] and found["kl"]["max"] >= found["kl"]["p99"] >= found["kl"]["median"]


def test_the_type_of_a_measurement_is_told_and_checked(tmp_path):
    (tmp_path / "ids.json").write_text(json.dumps([list(range(40, 90))]))
    out = tmp_path / "logits.npy"
    logits = {}
    for cache_type in [*TYPES, "auto"]:
        done = cli("logits", MODEL, "--ids", str(tmp_path / "ids.json"), "--out", str(out), "--backend", "cpu", "--cache-type", cache_type)
        assert done.returncode == 0, done.stderr
        logits[cache_type] = out.read_bytes()
    assert logits["auto"] == logits["f32"] and len(set(logits.values())) == 3
    flags = ("--backend", "cpu", "--prompt", "40", "--gen", "2", "--repeat", "1", "--json")
    for cache_type in TYPES:
        assert json.loads(cli("bench", MODEL, *flags, "--cache-type", cache_type).stdout)["cache_type"] == cache_type
    wrong = cli("bench", MODEL, "--cache-type", "q4")
    assert wrong.returncode == 2 and "choose auto, f32, f16 or q8" in wrong.stderr, wrong.stderr


def cpu_of(model: str, cache_type: str, *flags: str) -> dict:
    done = cli("show", model, "--json", *flags, env={"ENGINE__CACHE_TYPE": cache_type, "ENGINE__BACKEND": "cpu"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["memory"]["devices"][0]


@pytest.mark.parametrize("model", [MODEL, BASE])
def test_fewer_bits_hold_more_tokens(model):
    bytes_of = {}
    for cache_type in TYPES:
        cpu = cpu_of(model, cache_type, "--context", "2048")
        assert cpu["cache_type"] == cache_type
        bytes_of[cache_type] = cpu["kv"]
    assert bytes_of["f32"] == 2 * bytes_of["f16"] and bytes_of["f32"] / bytes_of["q8"] == pytest.approx(4 * 32 / 34)
    shown = cli("show", model, env={"ENGINE__CACHE_TYPE": "q8", "ENGINE__BACKEND": "cpu"}).stdout
    assert "(q8) for 1 x" in shown, shown


def test_a_wrong_type_is_refused_where_it_is_written():
    done = cli("show", MODEL, env={"ENGINE__CACHE_TYPE": "q5"})
    assert done.returncode != 0, done.stdout
    assert "`engine.cache_type`: `q5` is no type of KV cache: choose auto, f32, f16 or q8" in done.stderr, done.stderr


def test_operators_see_the_type_of_each_loaded_model(tmp_path):
    config = tmp_path / "models.toml"
    config.write_text(
        f'[[models]]\nid = "small"\nof = "{MODEL}"\ncache_type = "q8"\n\n[[models]]\nid = "half"\nof = "{MODEL}"\ncache_type = "f16"\n'
    )
    names = {"SERVER__DEFAULT_MODELS": f"{MODEL},small,half", "ENGINE__BACKEND": "cpu", "ENGINE__CONTEXT": "2048"}
    with Server(names, args=("--config", str(config))) as server:
        prints = {server.complete("Hello", model=name, max_tokens=1).json()["system_fingerprint"] for name in (MODEL, "small", "half")}
        assert len(prints) == 3
        models = {model["id"]: model for model in server.get("/admin/models").json()["data"]}
        assert {name: models[name]["cache_type"] for name in (MODEL, "small", "half")} == {MODEL: "f32", "small": "q8", "half": "f16"}
        cache = {name: models[name]["bytes"]["cache"] for name in (MODEL, "small", "half")}
        assert cache[MODEL] == 2 * cache["half"] and cache["half"] > 1.8 * cache["small"], "each has a load of its own"


@pytest.mark.parametrize("cache_type", ["f16", "q8"])
def test_answers_do_not_depend_on_the_load(cache_type):
    prompts = [f"Count to {n}: " + ", ".join(map(str, range(n))) for n in (5, 60, 90, 120)]
    ask = {"max_tokens": 24, "temperature": 0, "logprobs": 2, "seed": 1}

    def choices(server: Server, prompt) -> list:
        reply = server.complete(prompt, **ask)
        assert reply.status == 200, reply.body
        return [(choice["text"], choice["logprobs"]["token_logprobs"]) for choice in reply.json()["choices"]]

    with served(cache_type, ENGINE__PREFIX_CACHE="false", ENGINE__DRAFTS="off") as server:
        alone = [choices(server, prompt)[0] for prompt in prompts]
    # small steps, hits in the prefix cache, drafts, and so few blocks that sequences are preempted
    short = {"ENGINE__KV_TOKENS": "1024", "ENGINE__CONTEXT": "1024", "ENGINE__MAX_BATCH_TOKENS": "48", "ENGINE__DRAFTS": "ngram"}
    with served(cache_type, **short) as server:
        for _ in range(2):
            assert choices(server, prompts) == alone
        assert [choices(server, prompt)[0] for prompt in prompts] == alone
        assert server.gauge("prefix_cache_hits_total") > 0
