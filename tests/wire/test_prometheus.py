"""deploy/prometheus and deploy/grafana with Debian's Prometheus: it scrapes the binary, the alerts pass their tests, and every query of the
dashboard returns data."""

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models import dashboard as dashboards
from harness import MODEL, ROOT, Server, free_port, wait_until

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "penstock.json").read_text())
# Queries that return no data in this test, with the reason. The description of each panel says so, too.
WITHOUT_DATA = {
    "penstock_device_memory_bytes": "only models on a GPU have it",
    "penstock_model_load_seconds_sum": "no model was loaded between two scrapes",
}
# vLLM's names that break Prometheus' naming rules. Their readers expect these names.
VLLMS_OWN = ["metric names should not contain ':'", 'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix']


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian package prometheus)")
    return found


def queries() -> list[tuple[str, str]]:
    panels = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    assert len(panels) > 30
    return panels


class Prometheus:
    """A Prometheus that scrapes one server every second and evaluates our alerts."""

    def __init__(self, folder: Path, target: int):
        self.port, config = free_port(), folder / "prometheus.yml"
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text().replace("15s", "1s").replace("127.0.0.1:8080", f"127.0.0.1:{target}")
        config.write_text(text)
        shutil.copy(DEPLOY / "prometheus" / "alerts.yml", folder)
        command = [tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
        command.append(f"--web.listen-address=127.0.0.1:{self.port}")
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def get(self, path: str, **query) -> dict:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?" + urllib.parse.urlencode(query)
        return json.load(urllib.request.urlopen(url, timeout=10))["data"]

    def values(self, query: str) -> list[float]:
        try:
            return [float(sample["value"][1]) for sample in self.get("query", query=query)["result"]]
        except OSError:
            return []


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """A server under light load, and the Prometheus that scrapes it."""
    tool("prometheus")
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "4096"}) as server:
        prometheus, stop = Prometheus(tmp_path_factory.mktemp("prometheus"), server.port), threading.Event()

        def load():
            for number in range(10_000):
                if stop.is_set():
                    return
                server.complete("The quick brown fox jumps over the lazy dog. " * 10, max_tokens=4, temperature=9 if number % 5 == 0 else 0)
                time.sleep(0.05)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            wait_until(lambda: prometheus.values(f'penstock_prompt_tokens_total{{model_name="{MODEL}"}}'), 60, "a scrape")
            time.sleep(8)
            yield server, prometheus
        finally:
            stop.set()
            thread.join()
            prometheus.process.terminate()
            prometheus.process.wait(20)


def test_a_real_prometheus_scrapes_the_metrics(scraped):
    server, prometheus = scraped
    assert prometheus.values('up{job="penstock"}') == [1]
    assert prometheus.values(f'penstock_prompt_tokens_total{{model_name="{MODEL}"}}')[0] > 0
    assert prometheus.values("histogram_quantile(0.5, penstock_time_to_first_token_seconds_bucket)")[0] > 0
    target = prometheus.get("targets")["activeTargets"][0]
    assert target["health"] == "up" and target["lastError"] == "", target
    kinds = prometheus.get("metadata")
    assert kinds["vllm:cache_config_info"][0]["type"] == "gauge" and kinds["process_cpu_seconds_total"][0]["type"] == "counter"


def test_queries_of_scalers_and_endpoint_pickers_return_data(scraped):
    _, prometheus = scraped
    asked = ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"]
    asked += ["sum(vllm:num_requests_waiting) by (model_name)", "vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_hit_rate"]
    asked += ["vllm:gpu_prefix_cache_hits_total / vllm:gpu_prefix_cache_queries_total"]
    histograms = ["e2e_request_latency_seconds", "request_max_num_generation_tokens", "request_time_per_output_token_seconds"]
    asked += [f"histogram_quantile(0.95, sum by (le) (rate(vllm:{name}_bucket[10s])))" for name in histograms]
    for query in asked:
        wait_until(lambda: prometheus.values(query), 10, query)


@pytest.mark.parametrize(("title", "query"), queries(), ids=[f"{i}-{title}" for i, (title, _) in enumerate(queries())])
def test_a_query_of_the_dashboard_has_data(scraped, title, query):
    _, prometheus = scraped
    asked = query.replace("$__rate_interval", "10s").replace("$model", ".*").replace("$instance", ".*")
    assert "$" not in asked
    is_empty = lambda: not [value for value in prometheus.values(asked) if value == value]
    reason = next((why for name, why in WITHOUT_DATA.items() if name in query), None)
    if reason is not None:
        prometheus.get("query", query=asked)  # raises if the query is wrong
        return
    end = time.monotonic() + 15
    while is_empty() and time.monotonic() < end:
        time.sleep(0.5)
    assert not is_empty(), (title, asked)


def test_no_alert_fires_for_a_healthy_server(scraped):
    _, prometheus = scraped
    rules = prometheus.get("rules")["groups"][0]["rules"]
    assert len(rules) >= 13 and all(rule["health"] == "ok" for rule in rules), rules
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_promtool_accepts_all_names_but_those_of_vllm(server):
    server.complete(max_tokens=2)
    done = subprocess.run([tool("promtool"), "check", "metrics"], input=server.get("/metrics").body, capture_output=True, timeout=60)
    faults = (done.stdout + done.stderr).decode().splitlines()
    own = [line for line in faults if line.strip() and not (line.startswith("vllm:") and any(known in line for known in VLLMS_OWN))]
    assert own == []
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__VLLM_METRICS": "false"}) as plain:
        plain.complete(max_tokens=2)
        done = subprocess.run([tool("promtool"), "check", "metrics"], input=plain.get("/metrics").body, capture_output=True, timeout=60)
        assert done.returncode == 0 and done.stdout + done.stderr == b"", done


@pytest.mark.parametrize(
    "command", [("test", "rules", "alerts_test.yml"), ("check", "rules", "alerts.yml"), ("check", "config", "prometheus.yml")]
)
def test_promtool_accepts_the_alerts_and_the_configuration(command):
    done = subprocess.run([tool("promtool"), *command], cwd=DEPLOY / "prometheus", capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_every_alert_has_a_test():
    alerts = re.findall(r"alert: (\w+)", (DEPLOY / "prometheus" / "alerts.yml").read_text())
    tested = (DEPLOY / "prometheus" / "alerts_test.yml").read_text()
    assert len(alerts) == len(set(alerts)) and [name for name in alerts if name not in tested] == []


def test_alerts_and_dashboard_name_existing_metrics(server):
    server.complete(max_tokens=2)
    server.complete(temperature=9)
    known = set(re.findall(r"^# TYPE (\S+)", server.get("/metrics").body.decode(), re.M))
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    asked = [query for _, query in queries()] + re.findall(r"expr: (?:>-\n)?(.*(?:\n {10}.*)*)", alerts)
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for query in asked for name in re.findall(r"(?:penstock|process)_\w+", query)}
    assert len(names) > 30 and names - known <= set(WITHOUT_DATA), names - known


def test_the_dashboard_has_the_types_of_grafana():
    """Grafana's published types read every field, and write the same value."""
    plugins.register_default_plugins()
    read = dashboards.Dashboard.from_json(DASHBOARD)
    back = json.loads(encoder.JSONEncoder(sort_keys=True).encode(read))
    missing = lost(DASHBOARD, back, "")
    assert missing == [], missing
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def lost(wanted, got, path: str) -> list[str]:
    """The paths of `wanted` that have another value in `got`."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        return [fault for key, value in wanted.items() for fault in lost(value, got.get(key), f"{path}.{key}")]
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return [fault for i, (one, other) in enumerate(zip(wanted, got)) for fault in lost(one, other, f"{path}[{i}]")]
    return [] if wanted == got else [f"{path}: {wanted!r} is {got!r}"]


def test_panels_of_the_dashboard_do_not_overlap():
    taken = {}
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for cell in [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]:
            assert cell not in taken, (panel["title"], taken.get(cell))
            taken[cell] = panel["title"]
