"""The Helm chart renders `k8s/base`, and each of its values changes what it promises."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from tests.unit.k8s.chart import BASE, CHART, HELM, K8S, Json, helm

MUTATING = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
POLICIES = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
Objects = dict[tuple[str, str], Json]
Render = Callable[..., Objects]

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not installed")


def key_of(each: Json) -> tuple[str, str]:
    """Kind and name; a Job's name without its version and digest."""
    name = each["metadata"]["name"]
    return each["kind"], re.sub(r"-\d+-\d+-\d+.*$", "", name) if each["kind"] == "Job" else name


@pytest.fixture
def render(tmp_path: Path) -> Render:
    def run(
        values: Json | None = None,
        *,
        namespace: str = "hami-system",
        policies: bool = True,
        apis: Sequence[str] = (),
    ) -> Objects:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}))
        known = [*apis, *([POLICIES] if policies else [])]
        given = [part for api in known for part in ("--api-versions", api)]
        done = helm("template", "x", str(CHART), "-n", namespace, "-f", str(file), *given)
        assert done.returncode == 0, done.stderr
        return {key_of(each): each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each}

    return run


def base() -> Objects:
    """What `k8s/base` has, with its images' tags and its label."""
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    tags = {each["name"]: each["newTag"] for each in kustomization["images"]}
    found: Objects = {}
    for path in sorted(BASE.rglob("*.yaml")):
        if path.name == "kustomization.yaml":
            continue
        for each in filter(None, yaml.load_all(path.read_text(), yaml.CSafeLoader)):
            each["metadata"].setdefault("labels", {})["app.kubernetes.io/part-of"] = "hami"
            for container in containers(each):
                container["image"] += ":" + tags[container["image"]]
            found[key_of(each)] = each
    del found["Namespace", "hami-system"]
    return found


def pod_of(each: Json) -> Json:
    spec = each.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    return dict(spec.get("template", {}).get("spec", {})) if isinstance(spec, dict) else {}


def containers(each: Json) -> list[Json]:
    pod = pod_of(each)
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


def comparable(each: Json) -> Json:
    """Without the digests that make new pods, and with texts in YAML as what they mean."""
    each["metadata"]["name"] = key_of(each)[1]
    metadata = each.get("spec", {}).get("template", {}).get("metadata", {})
    notes = metadata.get("annotations", {})
    notes.pop("checksum/config", None)
    if not notes:
        metadata.pop("annotations", None)
    for name, text in each.get("data", {}).items():
        if name.endswith(".yaml"):
            each["data"][name] = yaml.safe_load(text)
    return each


def environment(container: Json) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_the_templates_are_those_of_the_manifests() -> None:
    done = subprocess.run(
        [sys.executable, str(K8S.parent / "scripts" / "chart"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


def test_prometheus_gets_monitors_rules_and_boards_where_it_is_wanted(render: Render) -> None:
    component = K8S / "components" / "monitoring"
    kinds = ("PodMonitor", "PrometheusRule")
    apis = [f"monitoring.coreos.com/v1/{kind}" for kind in kinds]
    wanted = {"prometheus": {"enabled": True, "additionalLabels": {"release": "kps"}}}

    rendered = render(wanted, apis=apis, namespace="gpu")

    rule = yaml.safe_load((component / "prometheus-rule.yaml").read_text())
    assert rendered["PrometheusRule", "hami"]["spec"] == rule["spec"]
    for name in ("hami-tenants", "hami-services"):
        monitor = rendered["PodMonitor", name]
        assert monitor["metadata"]["labels"]["release"] == "kps"
        assert monitor["metadata"]["namespace"] == "gpu"
        assert all(each["honorLabels"] for each in monitor["spec"]["podMetricsEndpoints"])
    boards = rendered["ConfigMap", "hami-dashboards"]
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    texts = {path.name: path.read_text() for path in (component / "dashboards").glob("*.json")}
    assert boards["data"] == texts
    pages = "https://docs.example.com/hami/runbooks"
    linked = render({"prometheus": {"enabled": True, "runbookUrl": pages}}, apis=apis)
    rules = [r for g in linked["PrometheusRule", "hami"]["spec"]["groups"] for r in g["rules"]]
    assert {rule["annotations"]["runbook_url"] for rule in rules if "annotations" in rule} == {
        f"{pages}/{path.name}" for path in (K8S.parent / "docs" / "runbooks").glob("Hami*.md")
    }
    # Without the operator's kinds a release installs all the same.
    assert {kind for kind, _ in render(wanted)} & set(kinds) == set()
    assert ("ConfigMap", "hami-dashboards") not in render()


def test_by_default_it_renders_the_base(render: Render) -> None:
    [scheduler] = containers(base()["Deployment", "hami-kube-scheduler"])
    tag = scheduler["image"].partition(":")[2]

    rendered = render({"scheduler": {"kubeScheduler": {"image": {"tag": tag}}}})

    expected = base()
    assert rendered.keys() == expected.keys()
    for key, each in expected.items():
        assert comparable(rendered[key]) == comparable(each), key


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


def test_policies_are_left_out_where_the_api_server_has_none(render: Render) -> None:
    kinds = {kind for kind, _ in render(policies=False)}

    assert not any(kind.startswith("ValidatingAdmissionPolicy") for kind in kinds)


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({"postgres": {"enabled": False}}, {("StatefulSet", "hami-postgres")}),
        ({"redis": {"enabled": False}}, {("StatefulSet", "hami-redis")}),
        (
            {"scheduler": {"kubeScheduler": {"enabled": False}}},
            {("Deployment", "hami-kube-scheduler")},
        ),
        ({"devicePlugin": {"enabled": False}}, {("DaemonSet", "hami-node-agent")}),
        ({"networkPolicies": {"enabled": False}}, {("NetworkPolicy", "hami-default")}),
        (
            {"admissionPolicies": {"enabled": False}},
            {("ValidatingAdmissionPolicy", "hami-system-pods")},
        ),
    ],
    ids=["postgres", "redis", "kube-scheduler", "agents", "network", "policies"],
)
def test_what_is_switched_off_is_not_there(
    render: Render, values: Json, gone: set[tuple[str, str]]
) -> None:
    before, after = render().keys(), render(values).keys()

    assert gone <= before - after
    assert after <= before


def test_with_cert_manager_the_chart_does_what_the_component_does(render: Render) -> None:
    component = K8S / "components" / "cert-manager"
    patches = yaml.safe_load((component / "kustomization.yaml").read_text())["patches"]
    [role] = [
        step["value"]
        for each in patches
        if each.get("target") == {"kind": "Role", "name": "hami-webhook-certificate"}
        for step in yaml.safe_load(each["patch"])
    ]
    before = render()

    after = render({"scheduler": {"certManager": {"enabled": True}}})

    made = {
        key_of(each) for each in yaml.safe_load_all((component / "certificates.yaml").read_text())
    }
    assert after.keys() - before.keys() == made
    assert before.keys() - after.keys() == {
        (kind, "hami-webhook-certificate") for kind in ("ClusterRole", "ClusterRoleBinding")
    }
    hook = after["MutatingWebhookConfiguration", "hami-webhook"]["metadata"]["annotations"]
    assert hook == {"cert-manager.io/inject-ca-from": "hami-system/hami-webhook"}
    assert after["Role", "hami-webhook-certificate"]["rules"] == role
    rules = after["Role", "hami-bootstrap"]["rules"]
    assert not any("update" in rule["verbs"] for rule in rules)
    for key in (("Job", "hami-bootstrap"), ("CronJob", "hami-webhook-certificate")):
        [container] = containers(after[key])
        assert environment(container)["HAMI_WEBHOOK_CERTIFICATE_ISSUE"] == "false"


@pytest.mark.parametrize("lead", [False, True], ids=["follow", "lead"])
def test_with_claims_the_chart_does_what_the_components_do(render: Render, lead: bool) -> None:
    wanted = base()
    for name in ("dra", "dra-lead") if lead else ("dra",):
        component = K8S / "components" / name
        kustomization = yaml.safe_load((component / "kustomization.yaml").read_text())
        for path in kustomization["resources"]:
            for each in yaml.safe_load_all((component / path).read_text()):
                each["metadata"]["labels"] = {"app.kubernetes.io/part-of": "hami"}
                wanted[key_of(each)] = each
        for patch in kustomization["patches"]:
            key = patch["target"]["kind"], patch["target"]["name"]
            wanted[key] = jsonpatch.apply_patch(wanted[key], yaml.safe_load(patch["patch"]))
    [scheduler] = containers(wanted["Deployment", "hami-kube-scheduler"])
    tag = scheduler["image"].partition(":")[2]

    rendered = render(
        {
            "dra": {"enabled": True, "lead": lead},
            "scheduler": {"kubeScheduler": {"image": {"tag": tag}}},
        },
        apis=[MUTATING],
    )

    assert rendered.keys() == wanted.keys()
    for key, each in wanted.items():
        assert comparable(rendered[key]) == comparable(each), key


def test_claims_ask_the_runtime_where_it_is(render: Render) -> None:
    values = {"dra": {"enabled": True, "runtimeSocket": "/run/k3s/containerd/containerd.sock"}}

    agent = render(values, apis=[MUTATING])["DaemonSet", "hami-node-agent"]

    [container] = containers(agent)
    assert environment(container)["HAMI_NODE_AGENT_CRI_SOCKET"] == values["dra"]["runtimeSocket"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "containerd"]
    [volume] = [each for each in pod_of(agent)["volumes"] if each["name"] == "containerd"]
    assert mount["mountPath"] == volume["hostPath"]["path"] == "/run/k3s/containerd"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("dra.enabled=true", "dra.enabled needs Kubernetes 1.36 or newer"),
        ("dra.lead=true", "dra.lead needs dra.enabled"),
    ],
)
def test_claims_that_can_not_be_had_are_refused_in_a_sentence(given: str, sentence: str) -> None:
    done = helm("template", "x", str(CHART), "--set", given)

    assert done.returncode != 0
    assert sentence in done.stderr


def test_every_secret_of_a_certificate_is_mounted_by_somebody(render: Render) -> None:
    rendered = render({"scheduler": {"certManager": {"enabled": True}}}, namespace="gpu")

    issued = {
        each["spec"]["secretName"]: each["spec"]
        for (kind, _), each in rendered.items()
        if kind == "Certificate"
    }
    mounted = {
        volume["secret"]["secretName"]
        for each in rendered.values()
        for volume in pod_of(each).get("volumes", ())
        if "secret" in volume
    }
    assert issued.keys() == {name for name in mounted if name.endswith("-tls")}
    for name, spec in issued.items():
        served = name.removesuffix("-tls")
        if "server auth" in spec["usages"]:
            assert f"{served}.gpu.svc" in spec["dnsNames"]


def test_a_releases_own_labels_and_annotations_are_on_every_object_and_pod(render: Render) -> None:
    given = {"labels": {"team": "gpu"}, "annotations": {"cost": "12"}}
    rendered = render({"global": given, "scheduler": {"certManager": {"enabled": True}}})

    templates = [
        spec.get("jobTemplate", {}).get("spec", spec)["template"]["metadata"]
        for (kind, _), each in rendered.items()
        for spec in [each.get("spec")]
        if kind in ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob")
    ]
    assert len(templates) > 10
    for metadata in (*(each["metadata"] for each in rendered.values()), *templates):
        assert metadata["labels"].items() >= {("team", "gpu")}
        assert metadata["annotations"].items() >= {("cost", "12")}


def test_each_image_may_have_a_pull_policy(render: Render) -> None:
    never = {"image": {"pullPolicy": "Never"}}
    stores = dict.fromkeys(("postgres", "redis", "nats"), never)
    scheduler = {**never, "kubeScheduler": never, "admissionWebhook": never}
    values = {"scheduler": scheduler, "devicePlugin": never, "metrics": never, **stores}

    for key, each in render(values).items():
        for container in containers(each):
            assert container["imagePullPolicy"] == "Never", key


def test_kube_scheduler_takes_arguments_after_its_own(render: Render) -> None:
    values = {"scheduler": {"kubeScheduler": {"extraNewArgs": ["-v=4"]}}}

    [before] = containers(render()["Deployment", "hami-kube-scheduler"])
    [after] = containers(render(values)["Deployment", "hami-kube-scheduler"])

    assert after["command"] == [*before["command"], "-v=4"]


def test_images_come_from_the_registry_with_its_secrets(render: Render) -> None:
    rendered = render(
        {
            "global": {
                "imageRegistry": "registry.example/gpu",
                "imagePullSecrets": ["one"],
                "imageTag": "9.9",
            }
        }
    )

    for each in rendered.values():
        for container in containers(each):
            assert container["image"].startswith("registry.example/gpu/")
            if "/hami-" in container["image"]:
                assert container["image"].endswith(":9.9")
            assert pod_of(each)["imagePullSecrets"] == [{"name": "one"}]


def test_names_of_resources_change_in_all_three_places(render: Render) -> None:
    rendered = render({"resourceName": "acme.com/gpu"})

    config = rendered["ConfigMap", "hami-device-config"]["data"]["device-config.yaml"]
    scheduler = rendered["ConfigMap", "hami-kube-scheduler"]["data"]["config.yaml"]
    hook = rendered["MutatingWebhookConfiguration", "hami-webhook"]["webhooks"][0]
    nvidia = yaml.safe_load(config)["nvidia"]
    assert nvidia["resourceCountName"] == "acme.com/gpu"
    assert nvidia["resourceMemoryName"] == "nvidia.com/gpumem"
    [extender] = yaml.safe_load(scheduler)["extenders"]
    managed = {each["name"] for each in extender["managedResources"]}
    assert "acme.com/gpu" in managed
    assert "nvidia.com/gpu" not in managed
    assert "acme.com/gpu" in json.dumps(hook["matchConditions"])


def test_the_agents_knobs(render: Render) -> None:
    rendered = render(
        {
            "devicePlugin": {
                "nvidiaNodeSelector": {"gpu": None, "pool": "a"},
                "runtimeClassName": "nvidia",
                "deviceSplitCount": 4,
                "deviceMemoryScaling": 1.5,
                "nodeConfiguration": {"config": '{"nodeconfig": []}'},
                "podAnnotations": {"a/b": "c"},
                "extraEnvs": {"HAMI_NODE_AGENT_BINDING": "late"},
            }
        }
    )

    agent = rendered["DaemonSet", "hami-node-agent"]
    pod = pod_of(agent)
    [container] = containers(agent)
    assert (pod["nodeSelector"], pod["runtimeClassName"]) == ({"pool": "a"}, "nvidia")
    # Of two entries with one name Kubernetes takes the last.
    assert environment(container)["HAMI_NODE_AGENT_BINDING"] == "late"
    assert agent["spec"]["template"]["metadata"]["annotations"]["a/b"] == "c"
    [mount] = [each for each in container["volumeMounts"] if each["mountPath"] == "/config"]
    [volume] = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    config = rendered["ConfigMap", volume["configMap"]["name"]]["data"]["config.json"]
    assert json.loads(config) == {"nodeconfig": []}
    nvidia = yaml.safe_load(
        rendered["ConfigMap", "hami-device-config"]["data"]["device-config.yaml"]
    )["nvidia"]
    assert (nvidia["deviceSplitCount"], nvidia["deviceMemoryScaling"]) == (4, 1.5)
    assert nvidia["runtimeClassName"] == "nvidia"


def test_hamis_older_metric_names_are_switched_on_in_both_places(render: Render) -> None:
    def found(values: Json) -> dict[str, Any]:
        rendered = render(values)
        return {
            name: value
            for key in (("DaemonSet", "hami-node-agent"), ("Deployment", "hami-metrics"))
            for name, value in environment(containers(rendered[key])[0]).items()
            if name.endswith("_LEGACY_METRICS")
        }

    assert found({}) == {}
    assert found({"legacyMetrics": True}) == {
        "HAMI_NODE_AGENT_LEGACY_METRICS": "true",
        "HAMI_METRICS_LEGACY_METRICS": "true",
    }


def test_a_device_config_of_the_users_own_is_taken_whole(render: Render) -> None:
    own = "nvidia:\n  resourceCountName: acme.com/gpu\n"

    rendered = render({"device-config": {"content": own}})

    found = rendered["ConfigMap", "hami-device-config"]["data"]["device-config.yaml"]
    assert yaml.safe_load(found) == yaml.safe_load(own)


def test_changed_configuration_makes_new_pods_and_a_changed_replica_count_does_not(
    render: Render,
) -> None:
    def digest(values: Json) -> str:
        pod = render(values)["Deployment", "hami-scheduler"]["spec"]["template"]
        return str(pod["metadata"]["annotations"]["checksum/config"])

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
    written["urlPrefix"] = "https://hami-scheduler.gpu.svc"
    assert scoring == written
    # Only who reads it is made again.
    changed = [key for key, each in after.items() if each != before[key]]
    jobs = [key for key in after if key[0] == "Job"]
    configured = [(kind, "hami-kube-scheduler") for kind in ("ConfigMap", "Deployment")]
    assert sorted(changed) == sorted([*configured, *jobs])


def test_jobs_have_other_names_with_other_values(render: Render) -> None:
    def names(values: Json) -> set[str]:
        return {each["metadata"]["name"] for key, each in render(values).items() if key[0] == "Job"}

    assert names({}) == names({})
    assert not names({}) & names({"global": {"imageTag": "9.9"}})
    assert not names({}) & names({"scheduler": {"replicas": 3}})


def test_mappings_and_lists_may_be_left_empty(render: Render) -> None:
    nothing = dict.fromkeys(("resources", "nodeSelector", "tolerations", "extraEnvs"))

    found = render({"global": {"labels": None}, "scheduler": nothing, "metrics": nothing})

    [container] = containers(found["Deployment", "hami-scheduler"])
    assert container["resources"] is None


def test_the_clusters_name_reaches_every_service(render: Render) -> None:
    found = render({"global": {"clusterName": "prod-eu"}})

    named = {
        name
        for (kind, name), each in found.items()
        if kind in ("Deployment", "DaemonSet")
        and "env" in containers(each)[0]
        and environment(containers(each)[0]).get("HAMI_TELEMETRY_CLUSTER_NAME") == "prod-eu"
    }
    assert named == {"hami-scheduler", "hami-webhook", "hami-metrics", "hami-node-agent"}
