"""The Helm chart is the source of `k8s/base`, and renders it without the parts that are off."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import yaml

from tests.unit.k8s.chart.rendered import (
    CHART,
    HELM,
    K8S,
    Json,
    Objects,
    Render,
    helm,
)

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not installed")


def test_the_manifests_are_what_the_chart_renders() -> None:
    done = subprocess.run(
        [sys.executable, str(K8S.parent / "scripts" / "chart"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_the_base_names_every_file_that_is_rendered_for_it() -> None:
    named = yaml.safe_load((K8S / "base" / "kustomization.yaml").read_text())["resources"]

    there = {path.name for path in (K8S / "base").glob("*.yaml")}
    assert {*named, "kustomization.yaml"} == there


def test_kube_scheduler_is_of_the_clusters_version(render: Render) -> None:
    done = helm("template", "x", str(CHART), "--kube-version", "v1.36.2+k3s1")

    assert "image: kube-scheduler:v1.36.2\n" in done.stdout


def test_another_namespace_is_named_everywhere(render: Render) -> None:
    rendered = render(namespace="gpu")

    texts = {key: json.dumps(each) for key, each in rendered.items()}
    named = {key for key, text in texts.items() if re.search(r"hami-system(?!-pods)", text)}
    assert named == set()
    hook = rendered["MutatingWebhookConfiguration", "hami-webhook"]["webhooks"][0]
    assert hook["clientConfig"]["service"]["namespace"] == "gpu"
    assert "gpu" in hook["namespaceSelector"]["matchExpressions"][0]["values"]


def test_policies_are_left_out_if_the_api_server_has_none(render: Render) -> None:
    kinds = {kind for kind, _ in render(kubernetes="1.29.9")}

    assert not any(kind.startswith("ValidatingAdmissionPolicy") for kind in kinds)


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({"postgres": {"enabled": False}}, {("StatefulSet", "hami-postgres")}),
        ({"redis": {"enabled": False}}, {("StatefulSet", "hami-redis")}),
        ({"devicePlugin": {"enabled": False}}, {("DaemonSet", "hami-node-agent")}),
        ({"networkPolicies": {"enabled": False}}, {("NetworkPolicy", "hami-default")}),
        (
            {"admissionPolicies": {"enabled": False}},
            {("ValidatingAdmissionPolicy", "hami-system-pods")},
        ),
    ],
    ids=["postgres", "redis", "agents", "network", "policies"],
)
def test_what_is_switched_off_is_not_there(
    render: Render, values: Json, gone: set[tuple[str, str]]
) -> None:
    before, after = render().keys(), render(values).keys()

    assert gone <= before - after
    assert after <= before


def test_changed_configuration_makes_new_pods_and_a_changed_replica_count_does_not(
    render: Render,
) -> None:
    def digest(values: Json) -> str:
        pod = render(values)["Deployment", "hami-scheduler"]["spec"]["template"]
        return str(pod["metadata"]["annotations"]["hami.io/config"])

    before = digest({})
    assert digest({"devicePlugin": {"deviceSplitCount": 4}}) != before
    assert digest({"scheduler": {"replicas": 3}}) == before


def test_scores_for_pods_without_cards_are_asked_for_where_they_are_wanted(
    render: Render,
) -> None:
    values = {"scheduler": {"scorePodsWithoutCards": True}}
    before, after = render({}, namespace="gpu"), render(values, namespace="gpu")

    def extenders(found: Objects) -> list[Json]:
        text = found["ConfigMap", "hami-kube-scheduler"]["data"]["config.yaml"]
        return list(yaml.safe_load(text)["extenders"])

    [ours] = extenders(before)
    again, scoring = extenders(after)
    assert again == ours
    component = K8S / "components" / "score-pods-without-cards" / "extender.yaml"
    [written] = yaml.safe_load(component.read_text())
    assert scoring == written
    # Only who reads it is made again.
    changed = [key for key, each in after.items() if each != before[key]]
    jobs = [key for key in after if key[0] == "Job"]
    configured = [("ConfigMap", "hami-kube-scheduler"), ("Deployment", "hami-scheduler")]
    assert sorted(changed) == sorted([*configured, *jobs])


def test_kube_scheduler_looks_at_as_many_nodes_as_wanted_and_starts_again_for_it(
    render: Render,
) -> None:
    before = render({})
    after = render({"scheduler": {"kubeScheduler": {"percentageOfNodesToScore": 2}}})

    def read_configuration(found: Objects) -> Json:
        text = found["ConfigMap", "hami-kube-scheduler"]["data"]["config.yaml"]
        return dict(yaml.safe_load(text))

    changed = {key for key, each in after.items() if each != before[key] and key[0] != "Job"}

    assert read_configuration(before)["percentageOfNodesToScore"] == 0
    assert read_configuration(after) == {
        **read_configuration(before),
        "percentageOfNodesToScore": 2,
    }
    assert changed == {("ConfigMap", "hami-kube-scheduler"), ("Deployment", "hami-scheduler")}


def test_jobs_have_other_names_with_other_values(render: Render) -> None:
    def names(values: Json) -> set[str]:
        return {each["metadata"]["name"] for key, each in render(values).items() if key[0] == "Job"}

    assert names({}) == names({})
    assert not names({}) & names({"global": {"imageTag": "9.9"}})
    assert not names({}) & names({"scheduler": {"replicas": 3}})
