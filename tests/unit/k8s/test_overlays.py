"""Overlays and components of `k8s/`, as kubectl renders them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from hami_node_agent.config.settings import Settings
from hami_node_agent.dra.server import DriverSockets
from hami_webhook.credentials import missing
from hamicommon.dra.devices import DRIVER

K8S = Path(__file__).parents[3] / "k8s"
POLICIES = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
Objects = dict[tuple[str, str], dict[str, Any]]
Render = Callable[[Path], Objects]


@pytest.fixture(scope="module")
def render() -> Render:
    folder = os.environ.get("KUBEBUILDER_ASSETS", "")
    binary = shutil.which("kubectl", path=f"{folder}:{os.environ['PATH']}")
    if binary is None:
        pytest.skip("kubectl is neither installed nor in KUBEBUILDER_ASSETS")

    @cache
    def run(path: Path) -> Objects:
        done = subprocess.run(
            [binary, "kustomize", str(path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = filter(None, yaml.load_all(done.stdout, yaml.CSafeLoader))
        return {(each["kind"], each["metadata"]["name"]): each for each in found}

    return run


@pytest.mark.parametrize("component", sorted(path.name for path in (K8S / "components").iterdir()))
def test_a_component_adds_no_variable_that_the_base_has(component: str) -> None:
    """An API server refuses a container that has one twice, and kustomize does not."""
    base = {
        (each["kind"], each["metadata"]["name"]): each
        for file in sorted((K8S / "base").glob("*.yaml"))
        for each in yaml.safe_load_all(file.read_text())
        if each and "metadata" in each
    }
    kustomization = yaml.safe_load(
        (K8S / "components" / component / "kustomization.yaml").read_text()
    )
    for patch in kustomization.get("patches", ()):
        steps = yaml.safe_load(patch.get("patch", "[]"))
        for step in steps if isinstance(steps, list) else ():
            if step["op"] == "add" and step["path"].endswith("/env/-"):
                kind, name = patch["target"]["kind"], patch["target"]["name"]
                [found] = [e for (k, n), e in base.items() if k == kind and re.match(name, n)]
                for part in step["path"].split("/")[1:-1]:
                    found = found[int(part) if part.isdigit() else part]
                assert step["value"]["name"] not in {each["name"] for each in found}


@pytest.mark.parametrize("overlay", ["v1.28", "v1.25", "v1.23", "old-cluster"])
def test_clusters_without_admission_policies_get_everything_else(
    render: Render, overlay: str
) -> None:
    base, older = render(K8S / "base"), render(K8S / "overlays" / overlay)

    assert {kind for kind, _ in base} >= POLICIES
    assert set(older) == {key for key in base if key[0] not in POLICIES}


def test_certificates_of_cert_manager_come_with_the_policies(render: Render) -> None:
    base, other = render(K8S / "base"), render(K8S / "overlays" / "cert-manager")

    assert {key for key in base if key[0] in POLICIES} <= set(other)


@pytest.mark.parametrize("overlay", ["kind", "production", "cert-manager", "external-stores"])
def test_an_overlay_names_no_secret_and_no_account_that_is_not_there(
    render: Render, overlay: str
) -> None:
    found = render(K8S / "overlays" / overlay)

    accounts = {name for kind, name in found if kind == "ServiceAccount"}
    for (kind, name), each in found.items():
        template = each.get("spec", {}).get("template", {})
        if isinstance(template, dict) and "containers" in template.get("spec", {}):
            used = template["spec"].get("serviceAccountName", "default")
            assert used in accounts | {"default"}, (kind, name)
        for subject in each.get("subjects", ()):
            assert subject["kind"] != "ServiceAccount" or subject["name"] in accounts, (kind, name)


@pytest.mark.parametrize("overlay", ["base", "v1.23", "old-cluster"])
def test_scores_for_pods_without_cards_suit_every_kube_scheduler(
    render: Render, overlay: str, tmp_path: Path
) -> None:
    folder = K8S / "base" if overlay == "base" else K8S / "overlays" / overlay
    component = K8S / "components" / "score-pods-without-cards"
    paths = [os.path.relpath(path, tmp_path.resolve()) for path in (folder, component)]
    kustomization = {"resources": paths[:1], "components": paths[1:]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))

    before, after = render(folder), render(tmp_path)

    key = ("ConfigMap", "hami-kube-scheduler")
    was, now = (yaml.safe_load(each[key]["data"]["config.yaml"]) for each in (before, after))
    scoring = now["extenders"].pop()
    assert now == was
    assert scoring["prioritizeVerb"] == "prioritize-without-cards"
    [ours] = was["extenders"]
    same = ("urlPrefix", "enableHTTPS", "nodeCacheCapable")
    assert [scoring[each] for each in same] == [ours[each] for each in same]
    assert after.keys() == before.keys()
    deployment = ("Deployment", "hami-scheduler")
    assert {k for k in before if after[k] != before[k]} == {key, deployment}


def test_one_small_machine_runs_one_of_each(render: Render) -> None:
    found = render(K8S / "overlays" / "kind")

    counts = {
        name: e["spec"]["replicas"] for (kind, name), e in found.items() if kind == "Deployment"
    }
    assert set(counts.values()) == {1}
    claims = [
        claim["spec"]["resources"]["requests"]["storage"]
        for (kind, _), each in found.items()
        if kind == "StatefulSet"
        for claim in each["spec"].get("volumeClaimTemplates", ())
    ]
    assert claims == ["1Gi", "1Gi"]
    assert render(K8S / "base").keys() == found.keys()


def test_production_has_stores_elsewhere_and_spreads_what_pods_wait_for(render: Render) -> None:
    found = render(K8S / "overlays" / "production")

    assert ("StatefulSet", "hami-postgres") not in found
    agent = found["DaemonSet", "hami-node-agent"]["spec"]["template"]["spec"]
    assert agent["nodeSelector"] == {"node-restriction.kubernetes.io/hami-gpu": "on"}
    for name in ("hami-scheduler", "hami-webhook"):
        spec = found["Deployment", name]["spec"]
        assert spec["replicas"] >= 2
        assert ("PodDisruptionBudget", name) in found
        [spread] = spec["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"] == {"matchLabels": spec["template"]["metadata"]["labels"]}
        assert "podAntiAffinity" in spec["template"]["spec"]["affinity"], name


def test_stores_of_the_users_own_take_only_the_stores_away(render: Render) -> None:
    base, other = render(K8S / "base"), render(K8S / "overlays" / "external-stores")

    gone = base.keys() - other.keys()
    assert {name for _, name in gone} == {"hami-postgres", "hami-redis"}
    assert other.keys() <= base.keys()


def test_cloudnative_pg_takes_the_place_of_the_single_postgres(
    render: Render, tmp_path: Path
) -> None:
    base = render(K8S / "base")
    found = render(with_components(tmp_path, "cloudnative-pg", "cloudnative-pg-backup"))

    gone = base.keys() - found.keys()
    assert {name for _, name in gone} == {"hami-postgres"}
    assert {kind for kind, _ in gone} == {"StatefulSet", "Service", "ConfigMap", "NetworkPolicy"}
    spec = found["Cluster", "hami-pg"]["spec"]
    owner = missing({}, "hami-system")["hami-postgres-owner"]
    [service] = spec["managed"]["services"]["additional"]
    dsn = urlsplit(owner["dsn"].decode())
    assert dsn.hostname == f"{service['serviceTemplate']['metadata']['name']}.hami-system.svc"
    assert service["selectorType"] == "rw"
    database = spec["bootstrap"]["initdb"]
    assert (database["owner"], f"/{database['database']}") == (dsn.username, dsn.path)
    [role] = spec["managed"]["roles"]
    assert role["name"] == owner["username"].decode() == dsn.username
    assert role["createrole"] is True
    assert role["passwordSecret"] == database["secret"] == {"name": "hami-postgres-owner"}
    assert set(spec["certificates"].values()) == {"hami-postgres-tls"}
    [plugin] = spec["plugins"]
    assert ("ObjectStore", plugin["parameters"]["barmanObjectName"]) in found
    [old] = base["NetworkPolicy", "hami-postgres"]["spec"]["ingress"]
    names = {
        name
        for rule in found["NetworkPolicy", "hami-pg"]["spec"]["ingress"][0]["from"]
        for name in rule["podSelector"]["matchExpressions"][0]["values"]
    }
    assert names >= set(old["from"][0]["podSelector"]["matchExpressions"][0]["values"])


def with_components(folder: Path, *names: str) -> Path:
    """An overlay of the base with these."""
    paths = [K8S / "base", *(K8S / "components" / name for name in names)]
    base, *components = (os.path.relpath(path, folder.resolve()) for path in paths)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [base],
        "components": components,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


def test_the_component_dra_gives_the_driver_all_that_it_uses(
    render: Render, tmp_path: Path
) -> None:
    found = render(with_components(tmp_path, "dra"))

    agent = found["DaemonSet", "hami-node-agent"]["spec"]["template"]["spec"]
    [container] = agent["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["HAMI_NODE_AGENT_DRA"] == "auto"
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    hosts = {each["name"]: each.get("hostPath", {}).get("path") for each in agent["volumes"]}
    sockets = DriverSockets(Settings.model_fields["kubelet_dir"].default)
    for name, socket in (
        ("plugins", sockets.claims),
        ("plugins-registry", sockets.registration),
        ("containerd", Path(env["HAMI_NODE_AGENT_CRI_SOCKET"])),
    ):
        # The kubelet goes to these paths itself, so they are the same inside and outside.
        assert mounts[name] == hosts[name]
        assert socket.is_relative_to(mounts[name])
    [selector] = found["DeviceClass", DRIVER]["spec"]["selectors"]
    assert selector["cel"]["expression"] == f"device.driver == '{DRIVER}'"
    for name, variable in (
        ("hami-webhook", "HAMI_WEBHOOK_DRA"),
        ("hami-scheduler", "HAMI_SCHEDULER_CLAIM_TEMPLATES"),
    ):
        part = found["Deployment", name]["spec"]["template"]["spec"]["containers"][0]
        assert {"name": variable, "value": "on"} in part["env"]
    binding = found["MutatingAdmissionPolicyBinding", "hami-front-end"]
    assert ("MutatingAdmissionPolicy", binding["spec"]["policyName"]) in found


def test_the_components_change_what_they_promise(render: Render, tmp_path: Path) -> None:
    found = render(with_components(tmp_path, "scrape-tokens", "node-restriction"))

    agent = found["DaemonSet", "hami-node-agent"]["spec"]["template"]["spec"]
    metrics = found["Deployment", "hami-metrics"]["spec"]["template"]["spec"]
    # The admission plugin NodeRestriction keeps labels with this prefix from kubelets.
    assert agent["nodeSelector"] == {"node-restriction.kubernetes.io/hami-gpu": "on"}
    assert metrics["automountServiceAccountToken"] is True
    for spec, name, value in (
        (agent, "HAMI_NODE_AGENT_SCRAPE_AUDIENCE", ""),
        (metrics, "HAMI_METRICS_SCRAPE_TOKENS", "true"),
    ):
        env = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
        assert env[name] == value
    role = found["ClusterRole", "hami-scraper"]["rules"]
    assert role == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    subjects = found["ClusterRoleBinding", "hami-scrape-reviews"]["subjects"]
    assert {each["name"] for each in subjects} == {"hami-metrics", "hami-node-agent"}
