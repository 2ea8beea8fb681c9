"""/metrics: names, types, values and bounds, parsed by Prometheus' Python client. test_prometheus.py scrapes with Prometheus itself."""

import time
from pathlib import Path

import pytest
from harness import MODEL, Server, wait_until
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


# The metrics that endpoint pickers, production-stack's router, KEDA and vLLM's dashboards read.
READ_BY_OTHERS = """num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc cache_config_info lora_requests_info
    prompt_tokens generation_tokens request_success prefix_cache_queries prefix_cache_hits gpu_prefix_cache_queries gpu_prefix_cache_hits
    gpu_prefix_cache_hit_rate num_preemptions time_to_first_token_seconds inter_token_latency_seconds time_per_output_token_seconds
    request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds request_inference_time_seconds
    request_prefill_time_seconds request_decode_time_seconds request_prompt_tokens request_generation_tokens
    request_max_num_generation_tokens request_params_max_tokens iteration_tokens_total""".split()


def test_the_names_of_vllm_exist_unless_they_are_switched_off(server):
    server.complete(max_tokens=4)
    found = families(server)
    for name in READ_BY_OTHERS:
        family = found.get(f"vllm:{name}")
        assert family is not None and family.samples and family.documentation, name
        of_model = [sample for sample in family.samples if "model_name" in sample.labels]
        assert name == "lora_requests_info" or of_model == family.samples, name
        assert all(sample.labels["engine"] == "0" for sample in of_model), name
    for name in GAUGES + COUNTERS + HISTOGRAMS:
        own, twin = found[f"penstock_{name}"], found[f"vllm:{name}"]
        assert (own.type, len(own.samples)) == (twin.type, len(twin.samples)), name
    assert not any(name.startswith("vllm:http") for name in found)
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__VLLM_METRICS": "false"}) as switched:
        assert not any(name.startswith("vllm:") for name in families(switched))


def test_the_cache_is_described(server):
    (sample,) = families(server)["vllm:cache_config_info"].samples
    block_size, num_blocks = int(sample.labels["block_size"]), int(sample.labels["num_gpu_blocks"])
    assert block_size * num_blocks == 8192 and sample.labels["enable_prefix_caching"] == "True" and sample.value == 1
    (adapters,) = families(server)["vllm:lora_requests_info"].samples
    assert adapters.labels == {"max_lora": "16", "running_lora_adapters": "", "waiting_lora_adapters": ""}


def test_the_build_the_process_and_the_models_are_described(server):
    found = families(server)
    (build,) = found["penstock_build_info"].samples
    assert build.labels["version"] == server.get("/version").json()["version"] and build.labels["backends"].startswith("cpu")
    assert {sample.labels["model_name"]: sample.value for sample in found["penstock_model_loaded"].samples} == {MODEL: 1}
    status = dict(line.split(":", 1) for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines())
    resident = found["process_resident_memory_bytes"].samples[0].value
    assert abs(resident - 1024 * int(status["VmRSS"].split()[0])) < 64 << 20
    assert found["process_threads"].samples[0].value > 1 and found["process_open_fds"].samples[0].value > 3
    assert abs(found["process_start_time_seconds"].samples[0].value - time.time()) < 7200
    before = found["process_cpu_seconds"].samples[0].value
    server.complete(max_tokens=500, ignore_eos=True)
    assert families(server)["process_cpu_seconds"].samples[0].value > before


def test_a_scrape_takes_little_time(server):
    """Endpoint pickers scrape each instance every 50 ms."""
    server.get("/metrics")
    start = time.monotonic()
    for _ in range(50):
        server.get("/metrics")
    took = (time.monotonic() - start) / 50
    print(f"a scrape takes {1e3 * took:.1f} ms")
    assert took < 0.05


def test_loads_are_timed(server):
    assert (
        value(server, "model_load_seconds_count", model_name=MODEL) >= 1 and value(server, "model_load_seconds_sum", model_name=MODEL) > 0
    )
    assert value(server, "model_load_failures_total", model_name=MODEL) == 0


def value(server, name: str, **labels) -> float:
    for family in families(server).values():
        for sample in family.samples:
            if sample.name == f"penstock_{name}" and all(sample.labels.get(key) == wanted for key, wanted in labels.items()):
                return sample.value
    return 0.0


@pytest.mark.real_models
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
