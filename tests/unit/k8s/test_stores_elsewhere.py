"""Stores of the user's own, backups, removal: chart and components do the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.k8s import test_overlays
from tests.unit.k8s.chart import conftest
from tests.unit.k8s.chart.rendered import K8S, Render, base, containers, helm, pod_of
from tests.unit.k8s.test_overlays import with_components

chart = conftest.render
kustomize = test_overlays.render
BUS_USERS = {
    ("Deployment", "hami-scheduler"),
    ("Deployment", "hami-webhook"),
    ("Deployment", "hami-metrics"),
    ("DaemonSet", "hami-node-agent"),
}
OURS = {(kind, "hami-nats") for kind in ("StatefulSet", "Service", "ConfigMap", "NetworkPolicy")}
Json = dict[str, Any]


def bus_settings(each: Json) -> dict[str, Any]:
    container = containers(each)[0]
    return {
        entry["name"]: entry.get("value", entry.get("valueFrom"))
        for entry in container["env"]
        if entry["name"].startswith("HAMI_NATS_")
    }


def test_a_bus_of_ones_own_is_named_to_all_four_and_ours_is_gone(
    kustomize: test_overlays.Render, tmp_path: Path
) -> None:
    base = kustomize(K8S / "base")

    found = kustomize(with_components(tmp_path, "external-nats"))

    assert base.keys() - found.keys() == OURS
    assert found.keys() <= base.keys()
    address = {"configMapKeyRef": {"key": "url", "name": "hami-nats-servers"}}
    for key in BUS_USERS:
        settings, before = bus_settings(found[key]), bus_settings(base[key])
        assert settings.pop("HAMI_NATS_URL") == address
        assert settings.pop("HAMI_NATS_TLS_CA_FILE") == "/ca/stores.crt"
        replicas = settings.pop("HAMI_NATS_STREAM_REPLICAS", None)
        assert (replicas is not None) == (key[1] == "hami-scheduler")
        assert settings.items() <= before.items()
        volumes = {each["name"]: each for each in pod_of(found[key])["volumes"]}
        assert volumes["ca"]["configMap"]["name"] == "hami-ca"
    egress = found["NetworkPolicy", "hami-webhook"]["spec"]["egress"]
    assert egress[1] == {"ports": [{"port": 4222}]}
    assert egress[0] == base["NetworkPolicy", "hami-webhook"]["spec"]["egress"][0]


def test_the_charts_values_for_it_do_the_same(chart: Render) -> None:
    url = "tls://a.bus.svc:4222,tls://b.bus.svc:5222"
    before = chart()

    found = chart({"nats": {"enabled": False, "url": url, "caKey": "stores.crt"}})

    assert before.keys() - found.keys() == OURS
    for key in BUS_USERS:
        settings = bus_settings(found[key])
        assert settings["HAMI_NATS_URL"] == url
        assert settings["HAMI_NATS_TLS_CA_FILE"] == "/ca/stores.crt"
    egress = found["NetworkPolicy", "hami-webhook"]["spec"]["egress"]
    assert egress[1] == {"ports": [{"port": 5222}]}


def test_no_bus_at_all_is_one_sentence(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("nats: {enabled: false}\n")

    done = helm("template", "x", str(K8S / "chart"), "-f", str(values))

    assert done.returncode != 0
    assert "nats.url: with nats.enabled=false it names the servers" in done.stderr


def test_the_chart_makes_the_backups_of_the_component(
    chart: Render, kustomize: test_overlays.Render, tmp_path: Path
) -> None:
    base, with_backups = kustomize(K8S / "base"), kustomize(with_components(tmp_path, "backup"))
    added = with_backups.keys() - base.keys()

    found = chart({"backup": {"enabled": True}})

    assert found.keys() - chart().keys() == added
    for key in added:
        each = found[key]
        for container in containers(each):
            container["image"] = container["image"].partition(":")[0]
        for container in containers(with_backups[key]):
            container["image"] = container["image"].partition(":")[0]
        assert each == with_backups[key], key


def test_the_backups_values(chart: Render) -> None:
    found = chart(
        {
            "backup": {
                "enabled": True,
                "schedule": "*/30 * * * *",
                "keep": 3,
                "storage": "1Ti",
                "storageClassName": "cold",
            },
            "postgres": {"enabled": False, "image": {"tag": "18"}},
        }
    )

    made = found["CronJob", "hami-ledger-backup"]
    [container] = containers(made)
    assert made["spec"]["schedule"] == "*/30 * * * *"
    assert container["image"] == "postgres:18"
    assert {"name": "KEEP", "value": "3"} in container["env"]
    claim = found["PersistentVolumeClaim", "hami-ledger-backups"]["spec"]
    assert claim["storageClassName"] == "cold"
    assert claim["resources"]["requests"]["storage"] == "1Ti"
    assert ("NetworkPolicy", "hami-ledger-backup") not in found
    restore = found["CronJob", "hami-ledger-restore"]["spec"]
    assert restore["suspend"] is True


def test_a_backups_pod_is_as_restricted_as_the_others() -> None:
    path = K8S / "components" / "backup" / "backup.yaml"
    pods = [pod_of(each) for each in yaml.load_all(path.read_text(), yaml.CSafeLoader)]
    for pod in filter(None, pods):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("renders", ["base", "chart"])
def test_questions_go_to_a_replica_where_there_is_its_secret(renders: str, chart: Render) -> None:
    objects = chart() if renders == "chart" else base()
    [container] = containers(objects["Deployment", "hami-metrics"])
    [entry] = [e for e in container["env"] if e["name"] == "HAMI_METRICS_QUESTIONS_DSN"]

    reference = {"name": "hami-postgres-questions", "key": "dsn", "optional": True}
    assert entry["valueFrom"]["secretKeyRef"] == reference


def test_the_removal_changes_nothing_of_the_agent_but_what_it_runs_and_where_it_may_remove() -> (
    None
):
    patch = yaml.safe_load((K8S / "removal" / "node-agent.yaml").read_text())["spec"]
    [agent] = [
        each
        for each in yaml.safe_load_all((K8S / "base" / "node-agent.yaml").read_text())
        if each["kind"] == "DaemonSet"
    ]
    [container], [changed] = containers(agent), patch["template"]["spec"]["containers"]

    assert changed["name"] == container["name"]
    module = changed["command"][-1]
    source = K8S.parent / "services" / "node-agent" / "src" / Path(*module.split("."))
    assert source.with_suffix(".py").exists()
    volumes = {each["name"]: each for each in pod_of(agent)["volumes"]}
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    for each in patch["template"]["spec"]["volumes"]:
        assert (each["name"] in volumes) == (each.get("$patch") == "delete")
    for each in changed["volumeMounts"]:
        assert (each["mountPath"] in mounts) == (each.get("$patch") == "delete")
    added = {each["mountPath"] for each in changed["volumeMounts"] if "name" in each}
    for each in changed["env"]:
        assert any(each["value"].startswith(mount) for mount in added), each["name"]
