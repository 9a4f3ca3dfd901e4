"""Text that `k8s/` holds twice is the same in both places."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from hami_scheduler.api.operator_access import GROUP, RESOURCE, Role
from hami_scheduler.settings import Settings
from hamicommon import device_config
from hamicommon.admission.registration import (
    ServiceReference,
    registration_of,
    webhook_configuration,
)
from hamicommon.bus.permissions import (
    Permissions,
    metrics_permissions,
    scheduler_permissions,
    webhook_permissions,
)
from hamicommon.device_config import DeviceConfig
from hamicommon.vendors.registry import Vendors
from hamilocal.system.kubernetes import scheduler_configuration

from tests.leader_election import LeaderElection

BASE = Path(__file__).parents[3] / "k8s" / "base"
OVERLAYS = BASE.parent / "overlays"
SERVED = Vendors.from_config(DeviceConfig())
RESOURCES = SERVED.resource_names


def objects(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.load_all(path.read_text(), yaml.CSafeLoader) if item]


def config_map(path: Path, name: str) -> dict[str, str]:
    (found,) = [
        item["data"]
        for item in objects(path)
        if item["kind"] == "ConfigMap" and item["metadata"]["name"] == name
    ]
    return dict(found)


def test_the_device_configuration_is_what_the_services_take_without_one() -> None:
    written = config_map(BASE / "device-config.yaml", "hami-device-config")

    assert device_config.parse(yaml.safe_load(written["device-config.yaml"])) == DeviceConfig()


@pytest.mark.parametrize(
    ("file", "prefix"),
    [
        ("scheduler", "HAMI_SCHEDULER"),
        ("webhook", "HAMI_WEBHOOK"),
        ("node-agent", "HAMI_NODE_AGENT"),
    ],
)
def test_every_service_reads_the_device_configuration_from_one_place(
    file: str, prefix: str
) -> None:
    [container] = [
        item["spec"]["template"]["spec"]["containers"][0]
        for item in objects(BASE / f"{file}.yaml")
        if item["kind"] in ("Deployment", "DaemonSet")
    ]

    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert env[f"{prefix}_DEVICE_CONFIG_FILE"] == f"{mounts['device-config']}/device-config.yaml"


def test_the_registration_is_the_rendered_one() -> None:
    (written,) = objects(BASE / "webhook-registration.yaml")

    assert written == webhook_configuration(registration_of(SERVED, target=ServiceReference()))


def test_the_overlay_that_lets_pods_opt_out_is_the_setting() -> None:
    (written,) = objects(BASE / "webhook-registration.yaml")
    overlay = yaml.safe_load((OVERLAYS / "pods-opt-out" / "kustomization.yaml").read_text())
    (patch,) = overlay["patches"]

    patched = jsonpatch.apply_patch(written, yaml.safe_load(patch["patch"]))

    wanted = registration_of(SERVED, target=ServiceReference(), pods_may_opt_out=True)
    assert patched == webhook_configuration(wanted)


def test_kube_scheduler_is_configured_as_in_the_local_system_but_with_election() -> None:
    written = yaml.safe_load(
        config_map(BASE / "kube-scheduler.yaml", "hami-kube-scheduler")["config.yaml"]
    )
    local = scheduler_configuration(
        kubeconfig_path="",
        extender_url="http://127.0.0.1:9443",
        scheduler_name="hami-scheduler",
        resources=RESOURCES,
    )

    (extender,) = written["extenders"]
    for managed in (extender["managedResources"], local["extenders"][0]["managedResources"]):
        managed.sort(key=lambda item: item["name"])
    assert extender == local["extenders"][0]
    for key in ("podInitialBackoffSeconds", "podMaxBackoffSeconds", "apiVersion"):
        assert written[key] == local[key]
    # A cluster has a scheduler for the pods that ask for no card; the local system has not.
    assert written["profiles"] == [{"schedulerName": "hami-scheduler"}]
    election = LeaderElection.model_validate(written["leaderElection"])
    assert election.leader_elect
    # As client-go wants it, and so that a lost node costs ten seconds at most.
    jitter = 1.2
    assert election.lease_duration > election.renew_deadline > jitter * election.retry_period
    assert election.lease_duration + (1 + jitter) * election.retry_period < 10


def test_the_scheduler_watches_the_lease_of_the_kube_scheduler_that_asks_it() -> None:
    written = yaml.safe_load(
        config_map(BASE / "kube-scheduler.yaml", "hami-kube-scheduler")["config.yaml"]
    )
    [deployment] = [e for e in objects(BASE / "scheduler.yaml") if e["kind"] == "Deployment"]
    ours, stock = deployment["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in ours["env"]}

    lease = written["leaderElection"]
    assert env["HAMI_SCHEDULER_LEASE_NAME"] == lease["resourceName"]
    assert env["HAMI_SCHEDULER_LEASE_NAMESPACE"] == lease["resourceNamespace"]
    [extender] = written["extenders"]
    assert extender["urlPrefix"] == f"http://{env['HAMI_SCHEDULER_HTTP_BIND']}"
    assert env["HAMI_SCHEDULER_HTTP_BIND"].startswith("127.0.0.1:")
    # A pod whose extender is broken gives the Lease up; and the Lease is released for this port.
    for probe in ("startupProbe", "livenessProbe"):
        asked = stock[probe]["httpGet"]
        assert asked == {"path": "/healthz", "port": 9397}
        assert env["HAMI_SCHEDULER_PROBE_BIND"].endswith(f":{asked['port']}")
    [port] = stock["ports"]
    assert Settings.model_fields["kube_scheduler"].default == f"127.0.0.1:{port['containerPort']}"


def test_scores_for_pods_without_cards_are_asked_for_as_in_the_local_system() -> None:
    component = BASE.parent / "components" / "score-pods-without-cards" / "extender.yaml"
    [written] = yaml.safe_load(component.read_text())
    local = scheduler_configuration(
        kubeconfig_path="",
        extender_url="http://127.0.0.1:9443",
        scheduler_name="hami-scheduler",
        resources=RESOURCES,
        score_pods_without_cards=True,
    )

    assert written == local["extenders"][1]
    # It refuses nothing and binds nothing, and is asked about every pod.
    assert not written.keys() & {"filterVerb", "bindVerb", "preemptVerb", "managedResources"}
    assert written["ignorable"] is True


@pytest.mark.parametrize(("overlay", "version"), [("old-cluster", "v1beta1"), ("v1.23", "v1beta3")])
def test_an_old_clusters_kube_scheduler_differs_in_nothing_but_the_version(
    overlay: str, version: str
) -> None:
    old_file = OVERLAYS / overlay / "kube-scheduler-config.yaml"
    base = config_map(BASE / "kube-scheduler.yaml", "hami-kube-scheduler")["config.yaml"]
    old = config_map(old_file, "hami-kube-scheduler")["config.yaml"]

    assert old == base.replace("config.k8s.io/v1\n", f"config.k8s.io/{version}\n")


def test_every_container_but_the_agents_runs_without_root_and_none_writes_its_image() -> None:
    for path in sorted(BASE.rglob("*.yaml")):
        for item in objects(path):
            if item["kind"] not in {"Deployment", "StatefulSet", "DaemonSet", "Job"}:
                continue
            pod = item["spec"]["template"]["spec"]
            name = item["metadata"]["name"]
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"] is True, name
                assert context["allowPrivilegeEscalation"] is False, name
                assert container["resources"]["requests"], name
            if name != "hami-node-agent":
                assert pod["securityContext"]["runAsNonRoot"] is True, name


RIGHTS = {
    "scheduler": {
        # Watched by every replica; annotations and requeues are patches (adapters/kubernetes.py).
        # Pods that got another one's devices are deleted (pod_ending.py).
        "pods": {"get", "list", "watch", "patch", "delete"},
        "pods/binding": {"create"},
        # The patch is for locks and handshakes of nodes that have no agent of ours.
        "nodes": {"get", "list", "watch", "patch"},
        "resourcequotas": {"list", "watch"},
        # Which pods may end for another one (api/preempt.py).
        "namespaces": {"list"},
        "poddisruptionbudgets": {"list"},
        "priorityclasses": {"list"},
        # How many pods start together.
        "podgroups": {"list", "watch"},
        # Read when another replica made the event that is to be counted up.
        "events": {"get", "create", "patch"},
        # Whose token a node-agent shows to the bus, and a person to the operators' port.
        "tokenreviews": {"create"},
        "subjectaccessreviews": {"create"},
    },
    "node-agent": {
        "pods": {"get", "list", "watch"},
        "nodes": {"get", "patch"},
        "events": {"create"},
    },
}
"""Calls of each service, and so all rights that it may have."""


@pytest.mark.parametrize("service", RIGHTS)
def test_a_service_may_do_what_it_calls_and_nothing_else(service: str) -> None:
    roles = [item for item in objects(BASE / f"{service}.yaml") if item["kind"].endswith("Role")]

    granted: dict[str, set[str]] = {}
    for role in roles:
        for rule in role["rules"]:
            assert rule["apiGroups"] in (
                [""],
                ["authentication.k8s.io"],
                ["authorization.k8s.io"],
                ["policy"],
                ["scheduling.k8s.io"],
                ["scheduling.k8s.io", "scheduling.x-k8s.io"],
            ), role["metadata"]["name"]
            for resource in rule["resources"]:
                granted.setdefault(resource, set()).update(rule["verbs"])
    assert granted == RIGHTS[service]


def test_the_roles_of_people_are_those_that_the_scheduler_asks_about() -> None:
    roles = {
        item["metadata"]["name"]: item["rules"]
        for item in objects(BASE / "access.yaml")
        if item["kind"] == "ClusterRole"
    }

    def rule(*verbs: Role, resource: str = RESOURCE) -> list[dict[str, Any]]:
        return [
            {
                "apiGroups": [GROUP],
                "resources": [resource],
                "verbs": [each.value.verb for each in verbs],
            }
        ]

    assert roles == {
        "hami-reader": rule(Role.READ),
        "hami-operator": rule(Role.READ, Role.OPERATE),
        # The policies ask about these two (policies.yaml).
        "hami-pod-annotator": rule(Role.OPERATE, resource="podannotations"),
        "hami-namespace-labeller": rule(Role.OPERATE, resource="namespacelabels"),
        # The metrics service asks about it (hami_metrics.questions.asking).
        "hami-viewer": rule(Role.READ, resource="questions"),
    }
    asked = re.findall(r"resource\('(\w+)'\)", (BASE / "policies.yaml").read_text())
    assert asked == ["podannotations", "namespacelabels"]


def test_what_is_scraped_is_on_a_port_of_each_services_own() -> None:
    ports: dict[str, str] = {}
    for path in sorted(BASE.glob("*.yaml")):
        for item in objects(path):
            template = item.get("spec", {}).get("template", {})
            notes = template.get("metadata", {}).get("annotations", {})
            if notes.get("prometheus.io/scrape") != "true":
                continue
            name, port = item["metadata"]["name"], notes["prometheus.io/port"]
            container = template["spec"]["containers"][0]
            assert int(port) in [each["containerPort"] for each in container["ports"]], name
            binds = [str(each.get("value", "")) for each in container["env"]]
            assert any(bind.endswith(f":{port}") for bind in binds), name
            ports[name] = port

    assert ports == {
        "hami-metrics": "9395",
        "hami-node-agent": "9394",
        "hami-scheduler": "9397",
        "hami-webhook": "9396",
    }


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("hami-scheduler", scheduler_permissions()),
        ("hami-metrics", metrics_permissions()),
        ("hami-webhook", webhook_permissions()),
    ],
)
def test_a_service_may_do_on_the_bus_what_its_permissions_allow(
    name: str, allowed: Permissions
) -> None:
    written = config_map(BASE / "nats-config.yaml", "hami-nats")["nats.conf"]
    user = written.partition(f"{{ user: {name},")[2].partition("} }")[0]

    published, _, subscribed = user.partition("subscribe:")
    assert re.findall(r'"([^"]+)"', published) == list(allowed.publish)
    assert re.findall(r'"([^"]+)"', subscribed) == list(allowed.subscribe)
    assert allowed.answers is ("allow_responses" in user)


def test_no_store_listens_in_plain_text_or_shows_itself_to_anybody() -> None:
    nats = config_map(BASE / "nats-config.yaml", "hami-nats")["nats.conf"]
    assert re.search(r"^\s*tls \{", nats, re.MULTILINE)
    assert not re.search(
        r"^\s*(http|https|http_port|https_port|monitor_port)\b", nats, re.MULTILINE
    )
    hba = config_map(BASE / "postgres-config.yaml", "hami-postgres")["pg_hba.conf"].splitlines()
    assert {line.split()[0] for line in hba if line.strip()} == {"local", "hostssl"}
    [redis] = [item for item in objects(BASE / "redis.yaml") if item["kind"] == "StatefulSet"]
    [container] = redis["spec"]["template"]["spec"]["containers"]
    ports = dict(zip(container["args"], container["args"][1:], strict=False))
    assert (ports["--port"], ports["--tls-port"]) == ("0", "6379")


def test_pods_that_run_can_be_ended_with_the_overlay_alone() -> None:
    def rules(path: Path) -> dict[str, list[str]]:
        return {
            resource: rule["verbs"]
            for item in objects(path)
            if item["kind"] == "ClusterRole"
            for rule in item["rules"]
            for resource in rule["resources"]
        }

    overlay = rules(OVERLAYS / "evict" / "access.yaml")
    assert overlay == {"pods/status": ["patch"]}
    assert "pods/status" not in rules(BASE / "scheduler.yaml")
    [policy] = [
        each
        for each in objects(BASE / "policies.yaml")
        if each["metadata"]["name"] == "hami-scheduler-deletes"
        and each["kind"] == "ValidatingAdmissionPolicy"
    ]
    assert "'Pending'" in policy["spec"]["validations"][0]["expression"]
    [built] = objects(OVERLAYS / "evict" / "kustomization.yaml")
    setting, *left_out = [yaml.safe_load(each["patch"]) for each in built["patches"]]
    assert setting[0]["value"] == {"name": "HAMI_SCHEDULER_ENFORCEMENT", "value": "evict"}
    assert {each["kind"] for each in left_out} == {
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    for each in left_out:
        assert each["metadata"]["name"] == policy["metadata"]["name"]
        assert each["$patch"] == "delete"


def digest(data: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def test_no_two_containers_listen_on_one_port() -> None:
    """Pods that share an address (a machine's network, a stand-in) must not collide."""
    listening = [
        entry["value"].rpartition(":")[2]
        for path in BASE.glob("*.yaml")
        for item in objects(path)
        if item["kind"] in ("Deployment", "DaemonSet")
        for container in item["spec"]["template"]["spec"]["containers"]
        for entry in container.get("env", ())
        if entry["name"].endswith("_BIND") and "value" in entry
    ]

    assert len(listening) >= 7
    assert len(set(listening)) == len(listening), sorted(listening)


@pytest.mark.parametrize("path", sorted(BASE.glob("*.yaml")), ids=lambda path: path.stem)
def test_nothing_is_restarted_while_it_still_starts(path: Path) -> None:
    """On a starved machine a start takes minutes, as a database's recovery does anywhere."""
    for item in objects(path):
        if item["kind"] not in ("Deployment", "DaemonSet", "StatefulSet"):
            continue
        for container in item["spec"]["template"]["spec"]["containers"]:
            start, live = container["startupProbe"], container["livenessProbe"]
            for action in ("httpGet", "tcpSocket", "exec"):
                assert start.get(action) == live.get(action)
            assert start["periodSeconds"] <= 5, "the container is ready no sooner"
            assert start["periodSeconds"] * start["failureThreshold"] >= 300


@pytest.mark.parametrize("path", sorted(BASE.glob("*.yaml")), ids=lambda path: path.stem)
def test_no_probe_takes_a_starved_machine_for_a_broken_part(path: Path) -> None:
    """In Kubernetes' one second a starved node does not even begin the program that is asked."""
    for item in objects(path):
        if item["kind"] not in ("Deployment", "DaemonSet", "StatefulSet"):
            continue
        for container in item["spec"]["template"]["spec"]["containers"]:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe].get("timeoutSeconds", 1) >= 5, probe
            live = container["livenessProbe"]
            assert live["timeoutSeconds"] >= 10 or "exec" not in live
