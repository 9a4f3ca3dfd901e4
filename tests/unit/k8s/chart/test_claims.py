"""The Helm chart with claims: what the component `k8s/components/dra` does, by a value."""

from __future__ import annotations

import jsonpatch
import pytest
import yaml

from tests.unit.k8s.chart.rendered import (
    CHART,
    HELM,
    K8S,
    Render,
    base,
    comparable,
    containers,
    environment,
    helm,
    key_of,
    pod_of,
)

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not installed")


def test_with_claims_the_chart_does_what_the_component_does(render: Render) -> None:
    wanted = base()
    component = K8S / "components" / "dra"
    kustomization = yaml.safe_load((component / "kustomization.yaml").read_text())
    for path in kustomization["resources"]:
        for each in yaml.safe_load_all((component / path).read_text()):
            wanted[key_of(each)] = each
    for patch in kustomization["patches"]:
        key = patch["target"]["kind"], patch["target"]["name"]
        wanted[key] = jsonpatch.apply_patch(wanted[key], yaml.safe_load(patch["patch"]))
    _, scheduler = containers(wanted["Deployment", "hami-scheduler"])
    tag = scheduler["image"].partition(":")[2]

    rendered = render(
        {"dra": {"enabled": True}, "scheduler": {"kubeScheduler": {"image": {"tag": tag}}}},
        kubernetes="1.36.0",
    )

    assert rendered.keys() == wanted.keys()
    for key, each in wanted.items():
        assert comparable(rendered[key]) == comparable(each), key


def test_claims_ask_the_runtime_where_it_is(render: Render) -> None:
    values = {"dra": {"enabled": True, "runtimeSocket": "/run/k3s/containerd/containerd.sock"}}

    agent = render(values, kubernetes="1.36.0")["DaemonSet", "hami-node-agent"]

    [container] = containers(agent)
    assert environment(container)["HAMI_NODE_AGENT_CRI_SOCKET"] == values["dra"]["runtimeSocket"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "containerd"]
    [volume] = [each for each in pod_of(agent)["volumes"] if each["name"] == "containerd"]
    assert mount["mountPath"] == volume["hostPath"]["path"] == "/run/k3s/containerd"


def test_claims_that_can_not_be_had_are_refused_in_a_sentence() -> None:
    done = helm(
        "template", "x", str(CHART), "--set", "dra.enabled=true", "--kube-version", "1.35.0"
    )

    assert done.returncode != 0
    assert "dra.enabled needs Kubernetes 1.36 or newer" in done.stderr
