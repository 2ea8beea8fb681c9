"""Replicas (docs/replicas.md): answers do not depend on them, requests go where their prefix is or the load is least, and a lost replica
takes only its own requests."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import MODEL, Server, cli, open_stream, sse_events, wait_until
from test_faults import Client, Plan
from tiny import Tiny

SETTINGS = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__BACKEND": "cpu", "ENGINE__KV_TOKENS": "8192", "ENGINE__CONTEXT": "2048"}
STORY = "The lighthouse keeper wrote down every ship that passed, its flag, its course and the weather of the hour. " * 6
PROMPTS = [STORY + end for end in ("On Monday", "On Friday", "At night")] + ["The capital of France is", "Once upon a time", "A dog"]


@pytest.fixture(scope="module")
def alone():
    with Server(SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def two():
    with Server(SETTINGS, ("--replicas", "2")) as server:
        yield server


def replicas(server, model: str = MODEL) -> list[dict]:
    return next(one for one in server.get("/admin/models").json()["data"] if one["id"] == model)["replicas"]


def sequences(server) -> list[int]:
    return [replica["sequences"] for replica in replicas(server)]


def answer(server, prompt: str, stream: bool = False, **fields) -> list:
    """The texts and the log-probabilities of all choices."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0.8, "seed": 7, "logprobs": 3, "stream": stream, **fields}
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    if not stream:
        return [[choice["text"], choice["logprobs"]["token_logprobs"]] for choice in reply.json()["choices"]]
    choices = {}
    for event in sse_events(reply.body):
        for choice in json.loads(event)["choices"] if event != "[DONE]" else []:
            text, logprobs = choices.setdefault(choice["index"], ["", []])
            part = (choice["logprobs"] or {}).get("token_logprobs") or []
            choices[choice["index"]] = [text + choice["text"], logprobs + part]
    return [choices[index] for index in sorted(choices)]


def test_answers_have_the_bits_of_one_engine_and_both_replicas_work(alone, two):
    kinds = [{}, {"stream": True}, {"n": 3}, {"temperature": 0}, {"echo": True}, {"stream": True, "n": 2}]
    jobs = [(prompt, kind) for prompt in PROMPTS for kind in kinds]
    expected = [answer(alone, prompt, **{**kind, "stream": False}) for prompt, kind in jobs]
    seen = []
    with ThreadPoolExecutor(12) as pool:
        for _ in range(2):  # The second time, the prefixes are cached on either replica.
            answers = [pool.submit(answer, two, prompt, **kind) for prompt, kind in jobs]
            while not all(job.done() for job in answers):
                seen.append(sequences(two))
            for (prompt, kind), job, due in zip(jobs, answers, expected):
                assert job.result() == due, (prompt[-20:], kind)
    assert any(all(counts) for counts in seen), "both replicas had sequences at the same time"
    metrics = two.metrics()
    name = (("model_name", MODEL),)
    assert metrics[("penstock_prefix_cache_hits_total", name)] > 0
    wait_until(lambda: sequences(two) == [0, 0] and two.gauge("num_requests_running") == 0, 10, "everything ends")


def test_vectors_and_batches_of_texts_spread_with_the_same_bits(alone, two):
    body = {"model": MODEL, "input": [f"{word} ships" for word in "one two three four five six seven eight".split()]}
    vectors = [[item["embedding"] for item in server.post("/v1/embeddings", body).json()["data"]] for server in (alone, two)]
    assert len(vectors[0]) == 8 and vectors[0] == vectors[1]
    body = {"model": MODEL, "prompt": PROMPTS, "max_tokens": 12, "temperature": 0}
    texts = [[choice["text"] for choice in server.post("/v1/completions", body).json()["choices"]] for server in (alone, two)]
    assert len(texts[0]) == len(PROMPTS) and texts[0] == texts[1]


def test_gauges_are_the_sums_of_the_replicas(two):
    streams = [open_stream(two, "/v1/completions", endless(prompt=f"{i} ships")) for i in range(4)]
    wait_until(lambda: sequences(two) == [2, 2], 10, "two run on each replica")
    wait_until(lambda: two.gauge("num_requests_running") == 4, 10, "the gauge counts all")
    labels = lambda kind: (("kind", kind), ("model_name", MODEL))
    metrics = two.metrics()
    assert [metrics[("penstock_replicas", labels(kind))] for kind in ("configured", "live")] == [2, 2]
    assert metrics[("penstock_kv_cache_bytes", labels("used"))] > 0
    info = next(dict(of) for name, of in metrics if name == "penstock_cache_config_info")
    assert int(info["num_gpu_blocks"]) * int(info["block_size"]) == 2 * 8192, "the caches of both"
    for stream in streams:
        stream.close()
    wait_until(lambda: sequences(two) == [0, 0] and two.gauge("num_requests_running") == 0, 10, "the cancelled ones end")
    assert two.gauge("kv_cache_usage_perc") == 0
    assert two.get("/health").json() == {"status": "ok"}


def endless(**fields) -> dict:
    return {"model": MODEL, "prompt": "Ships", "max_tokens": 1900, "temperature": 0, "ignore_eos": True, "stream": True, **fields}


def test_the_next_turn_goes_to_the_replica_that_has_the_conversation(two):
    busy = open_stream(two, "/v1/completions", endless())
    wait_until(lambda: sequences(two) == [1, 0], 10, "the first replica is busy")
    messages = [{"role": "user", "content": "Tell me of the second harbour. " + STORY}]
    chat = lambda: two.post("/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 40, "temperature": 0}).json()
    first = chat()
    busy.close()
    wait_until(lambda: sequences(two) == [0, 0], 10, "both are idle")
    answered = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    messages += [answered, {"role": "user", "content": "And then?"}]
    for _ in range(3):  # An idle first replica would take each of them if prefixes did not count.
        usage = chat()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] // 32 * 32 > 0, usage


def test_each_model_may_have_its_own_number(tmp_path):
    entries = []
    for name, count in (("one", None), ("three", 3)):
        Tiny("llama", seed=1).write(tmp_path / f"{name}.gguf")
        more = f"replicas = {count}" if count else ""
        entries.append(f'[[models]]\nid = "{name}"\nsource = {{ type = "file", path = "{tmp_path}/{name}.gguf" }}\n{more}\n')
    (tmp_path / "models.toml").write_text("\n".join(entries))
    settings = {"SERVER__DEFAULT_MODELS": "one,three", "ENGINE__BACKEND": "cpu", "SERVER__MODELS_DIR": tmp_path / "store"}
    with Server(settings, ("--config", str(tmp_path / "models.toml"))) as server:
        for name in ("one", "three"):
            assert server.post("/admin/models/load", {"model": name}).status == 200
        models = {model["id"]: model for model in server.get("/admin/models").json()["data"]}
        assert [len(models[name]["replicas"]) for name in ("one", "three")] == [1, 3]
        assert models["three"]["replicas"][2] == {"replica": 2, "device": "cpu", "serves": True, "sequences": 0}
        one, three = models["one"]["bytes"], models["three"]["bytes"]
        assert three["cache"] == 3 * one["cache"] and three["weights"] == one["weights"], "the weights are shared"
    for bad in ("0", "65"):
        refused = cli("serve", "--replicas", bad)
        assert refused.returncode == 1 and f"{bad} is not between 1 and 64" in refused.stderr, refused.stderr


def of_replicas(server, kind: str) -> float:
    return server.metrics()[("penstock_replicas", (("kind", kind), ("model_name", MODEL)))]


@pytest.mark.features("faults")
@pytest.mark.parametrize("fault", ["lost", "hang", "panic"])
def test_a_lost_replica_takes_only_its_own_requests(tmp_path, fault):
    plan = Plan(tmp_path / "plan")
    config = SETTINGS | {"ENGINE__REPLICAS": "2", "ENGINE__STEP_TIMEOUT_SECONDS": "1"}
    # The steps take their time, so that all four requests run when the fault comes.
    server = Server(config, env={"PENSTOCK_FAULTS": str(plan.path), "PENSTOCK_STEP_MILLIS": "5"}).__enter__()
    try:
        expected = server.text()
        prompts = [f"{i} ships" for i in range(4)]
        whole = [server.text(prompt, max_tokens=300, ignore_eos=True) for prompt in prompts]
        clients = [Client(server, True, prompt=prompt, max_tokens=300) for prompt in prompts]
        wait_until(lambda: sequences(server) == [2, 2], 10, "two run on each replica")
        plan.ask(fault)
        saw = [client.saw() for client in clients]
        assert sorted(saw) == ["200 engine_stopped"] * 2 + ["200 whole"] * 2
        texts = ["".join(re.findall(r'"text":"((?:[^"\\]|\\.)*)"', client.got.decode())) for client in clients]
        assert all(json.loads(f'"{text}"') == due for text, due, end in zip(texts, whole, saw) if end == "200 whole")
        check_loss(server)
        assert all(server.text() == expected for _ in range(4))
        wait_until(lambda: server.gauge("num_requests_running") == 0, 10, "nothing runs")
        check_reload(server, fault, expected)
        if fault == "panic":
            assert server.stop() == 0
            return
        last = [Client(server, True), Client(server, False)]
        wait_until(lambda: server.gauge("num_requests_running") == 2, 10, "both run")
        plan.ask(fault)
        assert [client.saw() for client in last] == ["200 engine_stopped", "503 engine_stopped"]
        assert server.process.wait(10) == {"lost": 71, "hang": 70}[fault], "the last replica ends the process"
    finally:
        server.stop()


def check_loss(server):
    """One of two replicas is gone, and everyone says so."""
    lost = next(index for index, replica in enumerate(replicas(server)) if not replica["serves"])
    named = {"status": "ok", "lost_replicas": [{"model": MODEL, "replica": lost, "device": "cpu"}]}
    for path, status in (("/health", "ok"), ("/ready", "ready")):
        reply = server.get(path)
        assert (reply.status, reply.json()) == (200, named | {"status": status})
    told = cli("health", "--port", str(server.port))
    assert told.returncode == 0 and f"without replica {lost} of {MODEL} (cpu)" in told.stdout, told
    assert (of_replicas(server, "configured"), of_replicas(server, "live")) == (2, 1)
    up = lambda index: server.metrics()[("penstock_replica_up", (("model_name", MODEL), ("replica", str(index))))]
    assert (up(lost), up(1 - lost)) == (0, 1)
    server.wait_log(f"{MODEL}: replica {lost} of 2 has left, and 1 serve on")


def check_reload(server, fault: str, expected: str):
    """The model is unloaded with its lost replica and loaded again. A panic is cured by that, and a lost device is left out."""
    assert server.post("/admin/models/unload", {"model": MODEL}, timeout=10).status == 200
    assert server.metrics()[("penstock_model_loaded", (("model_name", MODEL),))] == 0
    assert server.text() == expected
    assert of_replicas(server, "live") == (2 if fault == "panic" else 1)
    assert ("lost_replicas" in server.get("/health").json()) == (fault != "panic")
