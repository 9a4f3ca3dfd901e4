"""docker-compose.yml, its parts and .env.example agree, and are pinned and hardened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FILES = (ROOT / "docker-compose.yml", *sorted((ROOT / "k8s" / "compose").glob("*.yml")))
# A default may hold variables and names in braces, and these defaults of their own.
_PLAIN = r"[^{}]*"
_ONE = rf"\$?\{{{_PLAIN}(?:\$?\{{{_PLAIN}\}}{_PLAIN})*\}}"
VARIABLE = re.compile(rf"(?<!\$)\$\{{(\w+)(?::?[-+]({_PLAIN}(?:{_ONE}{_PLAIN})*))?\}}")
OFFERED = re.compile(r"^(?:# )?([A-Z_0-9]+)=(.*)$", re.MULTILINE)
# One-shot or simulated: they write what others read, or play the node with its root.
NOT_HARDENED = {"prepare", "kubeconfig", "register-webhook", "migrations", "kubelet", "tools"}
# The image of another project, which is a whole machine.
K3S = ROOT / "k8s" / "compose" / "k3s.yml"


def services(*files: Path) -> dict[str, dict[str, Any]]:
    return {
        name: service
        for file in files
        for name, service in yaml.safe_load(file.read_text())["services"].items()
    }


SERVICES = services(*(file for file in FILES if file != K3S))


def defaults(text: str) -> dict[str, set[str]]:
    """Variable -> its defaults; a default may hold variables itself."""
    found: dict[str, set[str]] = {}
    for name, default in VARIABLE.findall(text):
        found.setdefault(name, set()).add(default)
        for inner, values in defaults(default).items():
            found.setdefault(inner, set()).update(values)
    return found


def test_the_example_has_every_variable_with_its_default() -> None:
    used = defaults("\n".join(file.read_text() for file in FILES))
    offered = dict(OFFERED.findall((ROOT / ".env.example").read_text()))

    assert set(offered) == set(used)
    computed = {"COMPOSE_PROFILES", "HAMI_OTLP_ENDPOINT", "HAMI_TRACE_URL", "HAMI_NATIVE"}
    for name in set(used) - computed:
        assert used[name] == {offered[name]}, name


def test_a_variable_of_the_example_sets_what_it_names() -> None:
    """An empty HAMI_NATIVE or COMPOSE_PROFILES, as in the example, is as none at all."""
    text = (ROOT / "docker-compose.yml").read_text()

    assert "${HAMI_NATIVE:-${HAMI_BASE:-" in text
    assert "${COMPOSE_PROFILES:+" in text


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_every_image_is_of_one_version_and_names_no_registry(file: Path) -> None:
    for name, service in services(file).items():
        image = VARIABLE.sub(r"\2", service["image"])
        repository, _, tag = image.partition(":")
        assert re.match(r"v?\d+\.\d+\.\d+", tag) or name == "postgres", image
        assert re.match(r"\d+\.\d+$", tag) or name != "postgres", image
        assert "." not in repository.split("/")[0], image


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - NOT_HARDENED))
def test_a_lasting_part_has_no_rights_and_writes_to_volumes_alone(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_port_is_this_machines_alone_and_can_be_moved(name: str) -> None:
    for port in SERVICES[name].get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{HAMI_\w+_PORT:-1\d{4}\}:\d+", port), port


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_lasts_outlives_its_container(name: str) -> None:
    """A named volume, declared where it is used, or a read-only file of this folder."""
    for file in FILES:
        composed = yaml.safe_load(file.read_text())
        for volume in composed["services"].get(name, {}).get("volumes", ()):
            source, _, rest = volume.partition(":")
            assert source in composed["volumes"] or rest.endswith(":ro"), volume


def test_the_node_is_named_in_one_place() -> None:
    for file in FILES:
        without = re.sub(r"\$\{HAMI_NODE_NAME:-node-0\}", "", file.read_text())
        assert "node-0" not in without, file.name


def test_prometheus_scrapes_the_port_on_which_each_service_is_ready() -> None:
    config = yaml.safe_load((ROOT / "k8s/compose/observe/prometheus.yml").read_text())
    dockerfile = (ROOT / "Dockerfile").read_text()
    ports = {
        job["dns_sd_configs"][0]["names"][0]: job["dns_sd_configs"][0]["port"]
        for job in config["scrape_configs"]
    }

    assert set(ports) == {"scheduler", "webhook", "metrics", "node-agent"}
    for port in ports.values():
        assert re.search(rf"_BIND=\S*:{port}\b", dockerfile), port


def test_spans_and_their_viewer_are_where_they_are_looked_for() -> None:
    collector = yaml.safe_load((ROOT / "k8s/compose/observe/otel-collector.yaml").read_text())
    sources = yaml.safe_load(
        (ROOT / "k8s/compose/observe/grafana/datasources/hami.yml").read_text()
    )["datasources"]
    by_uid = {one["uid"]: one for one in sources}
    takes = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    sent_to = SERVICES["scheduler"]["environment"]["HAMI_TELEMETRY_OTLP_ENDPOINT"]

    assert f"http://otel-collector:{takes}" in sent_to
    # Jaeger takes OTLP over gRPC at the protocol's own port, and shows at the published one.
    assert collector["exporters"]["otlp"]["endpoint"] == "jaeger:4317"
    [published] = SERVICES["jaeger"]["ports"]
    assert by_uid["jaeger"]["url"] == f"http://jaeger:{published.rpartition(':')[2]}"
    assert "otel-collector" in SERVICES
    destinations = by_uid["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert [by_uid[one["datasourceUid"]]["type"] for one in destinations] == ["jaeger"]


def _collectors() -> dict[str, Any]:
    """The configurations that are shipped, by where they are used."""
    example = (ROOT / "examples/monitoring/otel-collector.yaml").read_text()
    [in_cluster] = [each for each in yaml.safe_load_all(example) if each["kind"] == "ConfigMap"]
    composed = (ROOT / "k8s/compose/observe/otel-collector.yaml").read_text()
    return {
        "compose": yaml.safe_load(composed),
        "cluster": yaml.safe_load(in_cluster["data"]["otel-collector.yaml"]),
    }


@pytest.mark.parametrize("place", ["compose", "cluster"])
def test_the_collector_keeps_what_an_operator_looks_for_before_it_batches(place: str) -> None:
    collector = _collectors()[place]
    policies = {
        each["name"]: each[each["type"]]
        for each in collector["processors"]["tail_sampling"]["policies"]
    }

    assert collector["service"]["pipelines"]["traces"]["processors"] == [
        "memory_limiter",
        "tail_sampling",
        "batch",
    ]
    assert policies["errors"] == {"status_codes": ["ERROR"]}
    assert policies["refused"] == {"key": "hami.outcome", "values": ["refused", "error"]}
    assert policies["denied"] == {"key": "hami.verdict", "values": ["denied", "failed"]}
    assert {"slow", "share"} <= set(policies)
    # The core distribution has no tail sampling.
    assert "opentelemetry-collector-contrib:" in SERVICES["otel-collector"]["image"]
