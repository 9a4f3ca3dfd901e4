"""The manifests and docker-compose.yml run the images as the Dockerfile makes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
SERVICES = ("scheduler", "webhook", "metrics", "node-agent")
STAGE = re.compile(r"^FROM (\S+)(?: AS (\S+))?\n(.*?)(?=^FROM |\Z)", re.MULTILINE | re.DOTALL)
STAGES = {
    name: (parent, body) for parent, name, body in STAGE.findall((ROOT / "Dockerfile").read_text())
}


def chain(stage: str) -> str:
    """The instructions of a stage, after those of the stages that it comes from."""
    parent, body = STAGES[stage]
    return (chain(parent) if parent in STAGES else "") + body


def user(stage: str) -> int:
    """The last USER counts."""
    *_, last = re.findall(r"^USER (\d+):(\d+)$", chain(stage), re.MULTILINE)
    assert last[0] == last[1]
    return int(last[0])


def health(stage: str) -> tuple[str, int]:
    """The variable whose address HEALTHCHECK asks, and the port that the image gives it."""
    text = chain(stage)
    [variable] = re.findall(r'^ +CMD python -m hamicommon\S+ "\$(\w+)"$', text, re.MULTILINE)
    [port] = re.findall(rf"\b{variable}=\S*:(\d+)", text)
    return variable, int(port)


def pods() -> list[tuple[str, dict[str, Any]]]:
    """(object, pod spec) of everything in k8s/base that runs an image of ours."""
    found = []
    for path in sorted((ROOT / "k8s" / "base").rglob("*.yaml")):
        for item in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            if item is None or item.get("kind") == "Kustomization":
                continue
            spec = item.get("spec", {})
            spec = spec.get("jobTemplate", {}).get("spec", spec)
            pod = spec.get("template", {}).get("spec") if isinstance(spec, dict) else None
            if pod and any(c["image"].startswith("hami-") for c in pod["containers"]):
                found.append((f"{item['kind']} {item['metadata']['name']}", pod))
    return found


PODS = pods()


def container_of(service: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pod spec and container of the lasting part."""
    [(pod, container)] = [
        (pod, container)
        for name, pod in PODS
        for container in pod["containers"]
        if container["image"].startswith(f"hami-{service}:")
        and name.split()[0] in {"Deployment", "DaemonSet"}
    ]
    return pod, container


@pytest.mark.parametrize(("name", "pod"), PODS, ids=[name for name, _ in PODS])
def test_a_pod_has_the_user_of_its_image_and_a_read_only_root(
    name: str, pod: dict[str, Any]
) -> None:
    for container in pod["containers"]:
        context = pod.get("securityContext", {}) | container["securityContext"]
        if container["image"].startswith("hami-"):
            assert context["runAsUser"] == user(
                container["image"].removeprefix("hami-").partition(":")[0]
            )
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]


@pytest.mark.parametrize("service", SERVICES)
def test_the_probes_ask_where_the_image_does(service: str) -> None:
    _, container = container_of(service)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    variable, port = health(service)
    environment = {entry["name"]: entry.get("value", "") for entry in container["env"]}

    for probe, path in (
        ("readinessProbe", "/readyz"),
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
    ):
        assert container[probe]["httpGet"]["path"] == path
        assert ports[container[probe]["httpGet"]["port"]] == port
    assert environment[variable].endswith(f":{port}")


@pytest.mark.parametrize("service", SERVICES)
def test_compose_runs_the_image_as_the_manifests_do(service: str) -> None:
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][service]
    _, container = container_of(service)
    variable, port = health(service)

    assert "user" not in composed
    assert composed.get("cap_add", []) == container["securityContext"]["capabilities"].get(
        "add", []
    )
    assert composed["environment"].get(variable, f":{port}").endswith(f":{port}")
    assert "test" not in composed["healthcheck"]


def test_only_the_node_agent_is_root() -> None:
    roots = {name for name in SERVICES if user(name) == 0}

    assert roots == {"node-agent"}
    assert user("tools") == 65532


def test_the_library_of_a_base_is_named_once_for_all_images() -> None:
    """Every stage that ends up in an image comes from BASE: byte code is of its Python."""
    for service in (*SERVICES, "tools", "node-agent-fakegpu", "packages", "service-code"):
        stage = service
        while stage in STAGES:
            stage = STAGES[stage][0]
        assert stage == "${BASE}", service
