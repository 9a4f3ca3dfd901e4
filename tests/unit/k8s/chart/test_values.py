"""Each value of the Helm chart reaches the objects that it promises to change."""

from __future__ import annotations

import json
from typing import Any

import jsonpatch
import pytest
import yaml

from tests.unit.k8s.chart.rendered import (
    CHART,
    HELM,
    K8S,
    Json,
    Objects,
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


def test_prometheus_gets_monitors_rules_and_boards_where_it_is_wanted(render: Render) -> None:
    component = K8S / "chart" / "monitoring"
    kinds = ("PodMonitor", "PrometheusRule")
    apis = [f"monitoring.coreos.com/v1/{kind}" for kind in kinds]
    wanted = {"prometheus": {"enabled": True, "additionalLabels": {"release": "kps"}}}

    rendered = render(wanted, apis=apis, namespace="gpu")

    files = [component / "rules" / f"{name}.yaml" for name in ("recording", "alerts")]
    groups = [each for file in files for each in yaml.safe_load(file.read_text())["groups"]]
    assert rendered["PrometheusRule", "hami"]["spec"]["groups"] == groups
    for name in ("hami-tenants", "hami-services"):
        monitor = rendered["PodMonitor", name]
        assert monitor["metadata"]["labels"]["release"] == "kps"
        assert monitor["metadata"]["namespace"] == "gpu"
        assert all(each["honorLabels"] for each in monitor["spec"]["podMetricsEndpoints"])
    boards = rendered["ConfigMap", "hami-dashboards"]
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    texts = {path.name: path.read_text() for path in (component / "dashboards").glob("*.json")}
    assert boards["data"] == texts
    page = "https://docs.example.com/hami/runbooks.html"
    linked = render({"prometheus": {"enabled": True, "runbookUrl": page}}, apis=apis)
    rules = [r for g in linked["PrometheusRule", "hami"]["spec"]["groups"] for r in g["rules"]]
    alerts = [rule for rule in rules if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"{page}#{alert['alert'].lower()}"
    # Without the operator's kinds a release installs all the same.
    assert {kind for kind, _ in render(wanted)} & set(kinds) == set()
    assert ("ConfigMap", "hami-dashboards") not in render()


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

    _, before = containers(render()["Deployment", "hami-scheduler"])
    _, after = containers(render(values)["Deployment", "hami-scheduler"])

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


def test_a_digest_stands_behind_the_tag(render: Render) -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    rendered = render({"postgres": {"image": {"digest": digest}}, "global": {"imageTag": "9.9"}})

    images = {c["image"] for each in rendered.values() for c in containers(each)}
    postgres = {image for image in images if image.startswith("postgres:")}
    assert {image.partition("@")[2] for image in postgres} == {digest}
    assert "hami-scheduler:9.9" in images


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
    def legacy_settings(values: Json) -> dict[str, Any]:
        rendered = render(values)
        return {
            name: value
            for key in (("DaemonSet", "hami-node-agent"), ("Deployment", "hami-metrics"))
            for name, value in environment(containers(rendered[key])[0]).items()
            if name.endswith("_LEGACY_METRICS")
        }

    assert legacy_settings({}) == {}
    assert legacy_settings({"legacyMetrics": True}) == {
        "HAMI_NODE_AGENT_LEGACY_METRICS": "true",
        "HAMI_METRICS_LEGACY_METRICS": "true",
    }


def test_a_device_config_of_the_users_own_is_taken_whole(render: Render) -> None:
    own = "nvidia:\n  resourceCountName: acme.com/gpu\n"

    rendered = render({"device-config": {"content": own}})

    found = rendered["ConfigMap", "hami-device-config"]["data"]["device-config.yaml"]
    assert yaml.safe_load(found) == yaml.safe_load(own)


def test_mappings_and_lists_may_be_left_empty(render: Render) -> None:
    nothing = dict.fromkeys(("resources", "nodeSelector", "tolerations", "extraEnvs"))

    found = render({"global": {"labels": None}, "scheduler": nothing, "metrics": nothing})

    container = containers(found["Deployment", "hami-scheduler"])[0]
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


PLACES = {
    "hami-scheduler": ("scheduler",),
    "hami-webhook": ("scheduler", "admissionWebhook"),
    "hami-metrics": ("metrics",),
    "hami-node-agent": ("devicePlugin",),
    "hami-postgres": ("postgres",),
    "hami-redis": ("redis",),
    "hami-nats": ("nats",),
    "hami-bootstrap": ("jobs",),
    "hami-migrations": ("jobs",),
    "hami-webhook-certificate": ("jobs",),
    "hami-ledger-backup": ("jobs",),
}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"a": "b"}}}


@pytest.mark.parametrize("name", PLACES)
def test_every_part_may_be_placed_by_values(render: Render, name: str) -> None:
    given: Json = {"tolerations": [{"key": "infra", "operator": "Exists"}], "affinity": AFFINITY}
    selector = "nvidiaNodeSelector" if name == "hami-node-agent" else "nodeSelector"
    given[selector] = {"pool": "infra"}
    for key in reversed(PLACES[name]):
        given = {key: given}

    rendered = render({**given, "backup": {"enabled": True}})

    [pod] = [pod_of(each) for key, each in rendered.items() if key[1] == name and pod_of(each)]
    assert pod["nodeSelector"].items() >= {("pool", "infra")}
    assert pod["tolerations"] == [{"key": "infra", "operator": "Exists"}]
    assert pod["affinity"]["nodeAffinity"] == AFFINITY["nodeAffinity"]


def test_replicas_are_spread_by_constraints_that_select_them(render: Render) -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = {**spread, "labelSelector": {"matchLabels": {"a": "b"}}}
    rendered = render(
        {
            "scheduler": {
                "topologySpreadConstraints": [spread],
                "affinity": {"podAntiAffinity": None},
                "admissionWebhook": {"topologySpreadConstraints": [own]},
            }
        }
    )

    scheduler = pod_of(rendered["Deployment", "hami-scheduler"])
    labels = {"matchLabels": {"app.kubernetes.io/name": "hami-scheduler"}}
    assert scheduler["topologySpreadConstraints"] == [{**spread, "labelSelector": labels}]
    assert "affinity" not in scheduler
    webhook = pod_of(rendered["Deployment", "hami-webhook"])
    assert webhook["topologySpreadConstraints"] == [own]


def test_priorities_are_values_and_system_ones_come_with_their_quota(render: Render) -> None:
    def classes(found: Objects) -> dict[str, str | None]:
        return {k[1]: pod_of(e).get("priorityClassName") for k, e in found.items() if pod_of(e)}

    before = render()
    assert set(classes(before).values()) == {"system-cluster-critical", "system-node-critical"}
    quota = before["ResourceQuota", "hami-priorities"]["spec"]
    assert set(quota["scopeSelector"]["matchExpressions"][0]["values"]) == {
        *classes(before).values()
    }
    own = render(
        {"global": {"priorityClassName": ""}, "devicePlugin": {"priorityClassName": "gpu"}}
    )
    assert set(classes(own).values()) == {None, "gpu"}
    assert ("ResourceQuota", "hami-priorities") not in own


def test_on_openshift_the_agent_has_its_own_constraints_and_all_others_are_non_root(
    render: Render,
) -> None:
    rendered = render({"openshift": {"enabled": True}}, namespace="gpu")

    made = rendered.keys() - render().keys()
    assert made == {
        ("SecurityContextConstraints", "hami-node-agent"),
        ("RoleBinding", "hami-nonroot"),
    }
    allowed = rendered["SecurityContextConstraints", "hami-node-agent"]
    assert allowed["users"] == ["system:serviceaccount:gpu:hami-node-agent"]
    agent = pod_of(rendered["DaemonSet", "hami-node-agent"])
    [container] = agent["containers"]
    assert allowed["allowedCapabilities"] == container["securityContext"]["capabilities"]["add"]
    assert allowed["allowHostPID"] is agent["hostPID"] is True
    for (kind, name), each in rendered.items():
        volumes = {key for v in pod_of(each).get("volumes", ()) for key in v if key != "name"}
        if kind == "DaemonSet":
            assert volumes <= set(allowed["volumes"])
        elif pod_of(each):
            # What nonroot-v2 allows.
            assert volumes <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}, name
            assert pod_of(each)["securityContext"]["runAsNonRoot"] is True, name


# --- the Helm chart with claims: what the component `k8s/components/dra` does, by a value


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


def test_with_kueue_the_chart_does_what_the_component_does(render: Render) -> None:
    component = K8S / "components" / "kueue"
    [role, _] = yaml.safe_load_all((component / "access.yaml").read_text())
    [patch] = yaml.safe_load((component / "kustomization.yaml").read_text())["patches"]
    [added] = yaml.safe_load(patch["patch"])
    plain, rendered = render(), render({"scheduler": {"kueue": "on"}})

    before = plain["ClusterRole", "hami-scheduler"]["rules"]
    rules = rendered["ClusterRole", "hami-scheduler"]["rules"]
    assert [each for each in rules if each not in before] == role["rules"]
    scheduler, _ = containers(rendered["Deployment", "hami-scheduler"])
    assert environment(scheduler)[added["value"]["name"]] == added["value"]["value"] == "on"
    scheduler, _ = containers(plain["Deployment", "hami-scheduler"])
    assert added["value"]["name"] not in environment(scheduler)


@pytest.mark.parametrize("value", ["on", "remove"])
def test_with_sums_in_capacity_the_chart_does_what_the_component_does(
    render: Render, value: str
) -> None:
    component = K8S / "components" / "node-capacity"
    roles = {
        key_of(each): each for each in yaml.safe_load_all((component / "access.yaml").read_text())
    }
    [patch] = yaml.safe_load((component / "kustomization.yaml").read_text())["patches"]
    [added] = yaml.safe_load(patch["patch"])
    plain, rendered = render(), render({"devicePlugin": {"reportCapacity": value}})

    assert rendered.keys() - plain.keys() == roles.keys()
    for key, role in roles.items():
        assert {k: rendered[key][k] for k in role if k not in ("metadata", "subjects")} == {
            k: role[k] for k in role if k not in ("metadata", "subjects")
        }
    [agent] = containers(rendered["DaemonSet", "hami-node-agent"])
    assert environment(agent)[added["value"]["name"]] == value
    [agent] = containers(plain["DaemonSet", "hami-node-agent"])
    assert added["value"]["name"] not in environment(agent)


def test_an_agent_knows_whether_nodes_are_made_for_marked_pods(render: Render) -> None:
    kustomization = K8S / "components" / "scaling" / "kustomization.yaml"
    patches = yaml.safe_load(kustomization.read_text())["patches"]
    wanted = {
        each["value"]["name"]: each["value"]["value"]
        for patch in patches
        if patch["target"]["kind"] == "DaemonSet"
        for each in yaml.safe_load(patch["patch"])
    }

    [agent] = containers(render({"scheduler": {"scale": "on"}})["DaemonSet", "hami-node-agent"])

    assert len(wanted) == 2
    assert wanted.items() <= environment(agent).items()


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
