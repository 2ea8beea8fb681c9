"""Validates deploy/ and the container files with the programs and schemas that read them in use. Only the Penstock binary is run, since
there is no cluster, no Docker and no systemd here."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml
from harness import BINARY, ROOT, Server, cli, free_port

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
POD_LABEL = {"app.kubernetes.io/name": "penstock"}


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian package {package})")
    return found


def documents(path) -> list[dict]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def manifest(*names: str) -> dict:
    (document,) = documents(KUBERNETES.joinpath(*names))
    return document


def merged(base, patch):
    """Merges strategically as kustomize does: objects by key, containers by name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{key: merged(base[key], value) if key in base else value for key, value in patch.items()}}
    if isinstance(base, list) and isinstance(patch, list) and all("name" in item for item in base + patch):
        by_name = {item["name"]: item for item in patch}
        old = [merged(item, by_name.pop(item["name"], {})) for item in base]
        return old + list(by_name.values())
    return patch


def rendered(document: dict) -> dict:
    """Adds the labels and selectors of base/kustomization.yaml to a manifest."""
    spec = document.get("spec", {})
    if document["kind"] == "Deployment":
        spec = merged(spec, {"selector": {"matchLabels": POD_LABEL}, "template": {"metadata": {"labels": POD_LABEL}}})
    if document["kind"] == "PodDisruptionBudget":
        spec = {**spec, "selector": {"matchLabels": POD_LABEL}}
    if document["kind"] == "Service":
        spec = {**spec, "selector": POD_LABEL}
    return {**document, "spec": spec}


def closed(**properties) -> dict:
    """The schema of an object with exactly these fields."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


TEXT, PORT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS = {"type": "object", "additionalProperties": {"type": "string", "pattern": "^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$"}}
COUNT = {"type": "integer", "minimum": 0}
# The fields of Kubernetes extensions that our manifests use, with the types of their published definitions. Any other field is an error.
EXTENSIONS = {
    "keda.sh/v1alpha1 ScaledObject": closed(
        scaleTargetRef=closed(name=TEXT),
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        fallback=closed(
            failureThreshold=COUNT,
            replicas=COUNT,
            behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
        ),
        triggers={
            "type": "array",
            "items": closed(type={"const": "prometheus"}, metadata=closed(serverAddress=TEXT, query=TEXT, threshold=TEXT)),
        },
    ),
    "monitoring.coreos.com/v1 PodMonitor": closed(
        jobLabel=TEXT,
        selector=closed(matchLabels=LABELS),
        podMetricsEndpoints={"type": "array", "items": closed(port=TEXT, path=TEXT, interval={"type": "string", "pattern": "^[0-9]+s$"})},
    ),
    "inference.networking.k8s.io/v1 InferencePool": closed(
        selector=closed(matchLabels=LABELS),
        targetPorts={"type": "array", "minItems": 1, "maxItems": 8, "items": closed(number=PORT)},
        endpointPickerRef=closed(name=TEXT, port=closed(number=PORT), failureMode={"enum": ["FailOpen", "FailClose"]}),
    ),
}


@pytest.fixture(scope="module")
def metric_names():
    with Server() as server:
        return set(re.findall(r"^# TYPE (\S+)", server.get("/metrics").body.decode(), re.M))


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_manifests_are_valid_by_the_schemas_of_kubernetes(version):
    validate = pytest.importorskip("kubernetes_validate").validate
    base = manifest("base", "deployment.yaml")
    names = ["base/service.yaml", "base/models.yaml", "base/disruption.yaml", "hpa/autoscaler.yaml"]
    for document in [base, merged(base, manifest("gpu", "deployment.yaml")), *(manifest(name) for name in names)]:
        validate(rendered(document), version, strict=True)
    with pytest.raises(Exception, match="replica"):
        validate(rendered(merged(base, {"spec": {"replica": 2}})), version, strict=True)


def test_manifests_of_extensions_have_known_fields():
    for path in ("keda/scaledobject.yaml", "monitoring/podmonitor.yaml", "inference-pool/pool.yaml"):
        document = manifest(path)
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
        jsonschema.validate(document["spec"], EXTENSIONS[f"{document['apiVersion']} {document['kind']}"])


def test_every_file_belongs_to_a_kustomization():
    for listing in KUBERNETES.rglob("kustomization.yaml"):
        (listed,) = documents(listing)
        assert listed["kind"] == ("Component" if listed["apiVersion"].endswith("v1alpha1") else "Kustomization")
        names = listed.get("resources", []) + listed.get("components", []) + [patch["path"] for patch in listed.get("patches", [])]
        names += [file for generator in listed.get("configMapGenerator", []) for file in generator["files"]]
        assert all((listing.parent / name).exists() for name in names), listing
        here = {path.name for path in listing.parent.iterdir() if path.is_file()} - {"kustomization.yaml"}
        assert here == {name for name in names if (listing.parent / name).is_file()}, listing


def test_manifests_name_each_other():
    deployment = manifest("base", "deployment.yaml")
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert manifest("base", "service.yaml")["spec"]["ports"][0]["targetPort"] in ports
    assert manifest("inference-pool", "pool.yaml")["spec"]["targetPorts"] == [{"number": ports["http"]}]
    assert manifest("inference-pool", "pool.yaml")["spec"]["selector"]["matchLabels"] == POD_LABEL
    assert manifest("monitoring", "podmonitor.yaml")["spec"]["selector"]["matchLabels"] == POD_LABEL
    assert manifest("keda", "scaledobject.yaml")["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert manifest("hpa", "autoscaler.yaml")["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    mounts, volumes = ({item["name"] for item in items} for items in (container["volumeMounts"], template["spec"]["volumes"]))
    assert mounts == volumes
    uid = str(template["spec"]["securityContext"]["runAsUser"])
    assert f"--uid {uid}" in (ROOT / "Dockerfile").read_text() and f"USER {uid}:{uid}" in (ROOT / "Dockerfile").read_text()


def test_a_pod_has_time_to_drain():
    spec = manifest("base", "deployment.yaml")["spec"]["template"]["spec"]
    settings = tomllib.loads((KUBERNETES / "base" / "penstock.toml").read_text())
    before = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert before + settings["server"]["drain_seconds"] + 2 < spec["terminationGracePeriodSeconds"]
    unit = (DEPLOY / "systemd" / "penstock.service").read_text()
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > 30 + 2


def test_the_settings_of_the_pods_are_known():
    done = cli("--config", str(KUBERNETES / "base" / "penstock.toml"), "list", "--json")
    assert done.returncode == 0, done.stderr


def test_scalers_and_the_endpoint_picker_ask_for_existing_metrics(metric_names):
    picker = manifest("inference-pool", "endpoint-picker.yaml")
    engines = [plugin for plugin in picker["plugins"] if plugin["type"] == "core-metrics-extractor"][0]["parameters"]
    (engine,) = [config for config in engines["engineConfigs"] if config["name"] == engines["defaultEngine"]]
    labels = manifest("base", "deployment.yaml")["spec"]["template"]["metadata"]["labels"]
    assert labels["llm-d.ai/engine-type"] == labels["inference.networking.k8s.io/engine-type"] == engine["name"]
    asked = [name for key, name in engine.items() if key.endswith("Spec") and name]
    assert len(asked) == 4
    asked += re.findall(r"vllm:\w+", manifest("keda", "scaledobject.yaml")["spec"]["triggers"][0]["metadata"]["query"])
    (scaled,) = manifest("hpa", "autoscaler.yaml")["spec"]["metrics"]
    asked.append(scaled["pods"]["metric"]["name"].replace("vllm_", "vllm:", 1))
    assert set(asked) <= metric_names, set(asked) - metric_names
    plugins = {plugin.get("name", plugin["type"]) for plugin in picker["plugins"]}
    used = {plugin["pluginRef"] for profile in picker["schedulingProfiles"] for plugin in profile["plugins"]}
    used |= {source["pluginRef"] for source in picker["dataLayer"]["sources"]}
    used |= {extractor["pluginRef"] for source in picker["dataLayer"]["sources"] for extractor in source["extractors"]}
    assert used == plugins


def test_the_systemd_unit_is_valid_and_hardened(tmp_path):
    program = tool("systemd-analyze", "systemd")
    unit, folder = tmp_path / "penstock.service", tmp_path / "penstock.service.d"
    unit.write_text((DEPLOY / "systemd" / "penstock.service").read_text().replace("/usr/local/bin/penstock", str(BINARY)))
    done = subprocess.run([program, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    # of 100: a service without any hardening has 96
    command = [program, "security", "--offline=yes", "--threshold=16", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-300:]
    folder.mkdir()
    shutil.copy(DEPLOY / "systemd" / "gpu.conf", folder)
    done = subprocess.run([program, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_the_compose_file_is_valid():
    command = [tool("docker-compose", "docker-compose"), "-f", str(ROOT / "docker-compose.yml"), "config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    profiles = {name: service.get("profiles", []) for name, service in services.items()}
    assert profiles == {"penstock": [], "penstock-gpu": ["gpu"], "prometheus": [], "grafana": []}
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert all(service["build"]["target"] in stages for service in services.values() if "build" in service)
    paths = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])]
    assert all((ROOT / path).exists() for path in paths if path.startswith("/"))


def test_grafana_finds_its_dashboard():
    services = documents(ROOT / "docker-compose.yml")[0]["services"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    provisioning = DEPLOY / "grafana" / "provisioning"
    (provider,) = documents(provisioning / "dashboards" / "penstock.yml")[0]["providers"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert mounts["./deploy/grafana/penstock.json"] == home == f"{provider['options']['path']}/penstock.json"
    (source,) = documents(provisioning / "datasources" / "prometheus.yml")[0]["datasources"]
    assert source["type"] == "prometheus" and source["url"] == "http://prometheus:9090" and "prometheus" in services


def test_hadolint_finds_nothing_in_the_dockerfile():
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("hadolint is not installed (tests/clients/requirements.txt)")
    done = subprocess.run([program, str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_docker_context_contains_all_that_a_build_reads():
    """Docker leaves out the files that .dockerignore names. Everything that the manifests and the sources include must stay."""
    kept = [line for line in (ROOT / ".dockerignore").read_text().split() if not line.startswith("!")]
    wanted = ["Cargo.toml", "Cargo.lock", "build.rs", "build", "config", "cuda", "openapi", "src"]
    assert all((ROOT / name).exists() for name in wanted) and not set(wanted) & set(kept)
    members = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    assert {member for member in members if not member.startswith("src/")} == {"fuzz/bodies", "fuzz/growth", "tests/fixtures"}
    assert "fuzz" not in kept
    assert "!tests/fixtures" in (ROOT / ".dockerignore").read_text().split()


def test_health_reports_whether_a_server_answers():
    with Server() as server:
        assert cli("health", "--port", server.port).returncode == 0
        assert cli("health", "--port", server.port, "--live").returncode == 0
        assert cli("health", env={"SERVER__PORT": str(server.port), "SERVER__HOST": "0.0.0.0"}).returncode == 0
    gone = cli("health", "--port", free_port())
    assert gone.returncode == 1 and "does not answer" in gone.stderr
    with Server() as server:
        server.process.send_signal(signal.SIGSTOP)  # the process neither answers nor exits
        try:
            assert cli("health", "--port", server.port, timeout=20).returncode == 1
        finally:
            server.process.send_signal(signal.SIGCONT)
