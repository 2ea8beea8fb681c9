"""/metrics: names, types, values and bounds, read by the parser of Prometheus and, if it is installed, by Prometheus itself."""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from harness import MODEL, Server, free_port, wait_until
from prometheus_client.parser import text_string_to_metric_families

GAUGES = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
COUNTERS = ["prompt_tokens", "generation_tokens", "request_success", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions"]
HISTOGRAMS = """time_to_first_token_seconds inter_token_latency_seconds e2e_request_latency_seconds request_queue_time_seconds
    request_prefill_time_seconds request_decode_time_seconds request_prompt_tokens request_generation_tokens""".split()


def families(server) -> dict:
    reply = server.get("/metrics")
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(reply.body.decode())}


def test_every_metric_has_its_name_type_and_labels(server):
    server.chat()
    found = families(server)
    for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram")):
        for name in names:
            family = found.get(f"penstock_{name}")
            assert family is not None and family.type == kind, (name, family)
            assert family.documentation, name
            assert family.samples and all(sample.labels.get("model_name") == MODEL for sample in family.samples), family.samples[:2]


def test_a_setting_adds_the_names_of_vllm(server):
    assert not any(name.startswith("vllm:") for name in families(server))
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__VLLM_METRICS": "true"}) as switched:
        switched.complete(max_tokens=2)
        found = families(switched)
        for name in GAUGES + COUNTERS + HISTOGRAMS:
            own, twin = found[f"penstock_{name}"], found[f"vllm:{name}"]
            assert (own.type, len(own.samples)) == (twin.type, len(twin.samples)), name
        assert not any(name.startswith("vllm:http") for name in found)


def test_loads_are_timed(server):
    assert (
        value(server, "model_load_seconds_count", model_name=MODEL) == 1 and value(server, "model_load_seconds_sum", model_name=MODEL) > 0
    )
    assert value(server, "model_load_failures_total", model_name=MODEL) == 0


def value(server, name: str, **labels) -> float:
    for family in families(server).values():
        for sample in family.samples:
            if sample.name == f"penstock_{name}" and all(sample.labels.get(key) == wanted for key, wanted in labels.items()):
                return sample.value
    return 0.0


def test_a_request_is_counted_and_timed(server):
    def read():
        names = [
            "prompt_tokens_total",
            "generation_tokens_total",
            "request_prompt_tokens_sum",
            "time_to_first_token_seconds_count",
            "e2e_request_latency_seconds_count",
            "inter_token_latency_seconds_count",
        ]
        return [value(server, name) for name in names] + [value(server, "request_success_total", finished_reason="length")]

    before = read()
    usage = server.complete(max_tokens=6).json()["usage"]
    assert usage["completion_tokens"] == 6
    expected = [usage["prompt_tokens"], 6, usage["prompt_tokens"], 1, 1, 5, 1]
    wait_until(
        lambda: [after - was for after, was in zip(read(), before)] == expected, 3, f"counts grow by {expected}: {before} -> {read()}"
    )


def test_unknown_names_add_no_series(server):
    def series() -> int:
        return sum(len(family.samples) for family in families(server).values())

    server.complete(model="nope-0")
    server.get("/v1/models/nope-0")
    server.get("/nope-0")
    series()  # the scrape adds a series itself
    before = series()
    for number in range(1, 200):
        server.complete(model=f"nope-{number}")
        server.get(f"/v1/models/nope-{number}")
        server.get(f"/nope-{number}")
    assert series() == before
    assert "nope-" not in server.get("/metrics").body.decode()


def test_a_real_prometheus_scrapes_the_metrics(server):
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed (Debian package prometheus)")
    server.chat()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "prometheus.yml")
        config.write_text(
            f"scrape_configs:\n- job_name: penstock\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['127.0.0.1:{server.port}']\n"
        )
        command = [binary, f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert ask(port, 'up{job="penstock"}') == 1
            assert ask(port, f'penstock_prompt_tokens_total{{model_name="{MODEL}"}}') > 0
            assert ask(port, "histogram_quantile(0.5, penstock_time_to_first_token_seconds_bucket)") > 0
        finally:
            process.terminate()
            process.wait(20)


def ask(port: int, query: str) -> float:
    """Waits until Prometheus has a sample above 0 for the query."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    end = time.monotonic() + 25
    while time.monotonic() < end:
        try:
            result = json.load(urllib.request.urlopen(url, timeout=5))["data"]["result"]
            if result and float(result[0]["value"][1]) > 0:
                return float(result[0]["value"][1])
        except OSError:
            pass
        time.sleep(0.3)
    raise AssertionError(f"no answer of Prometheus to {query}")
