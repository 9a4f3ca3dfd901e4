"""Every overlay and component of `k8s/` on a real API server with its controllers.

Applied server-side with strict fields, RBAC on, Pod Security `restricted` in every namespace
without its own label. The controllers make the pods, so each passes admission, including our own
policies; nothing runs. Kinds of other projects are taken from the folder HAMI_CRDS, if there is
one.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import orjson
import pytest
import yaml
from hamicommon.k8s.types import Json

from tests.control_plane import Assets, control_plane
from tests.e2e.conftest import kubernetes_client
from tests.e2e_manifests.conftest import spawn_controllers
from tests.waiting import PATIENCE_S, wait

pytestmark = pytest.mark.timeout(600)


NAMESPACE = "hami-system"
WITH_PODS = {"Deployment", "DaemonSet", "StatefulSet", "Job"}
_FIRST = ("CustomResourceDefinition", "Namespace")
_ABSENT = 404


@dataclass(slots=True)
class ApiServer:
    """Asked as its administrator."""

    client: httpx.Client
    warnings: list[str] = field(default_factory=list)
    _plurals: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)

    def apply(self, objects: Iterable[Json]) -> None:
        """Apply all objects in kubectl's order: namespaces and kinds first.

        Unknown and doubled fields are errors, as with `kubectl --validate=strict`.
        """
        ordered = sorted(objects, key=lambda each: each["kind"] not in _FIRST)
        for each in ordered:
            answer = self.client.patch(
                self.path(each),
                content=orjson.dumps(each),
                headers={"content-type": "application/apply-patch+yaml"},
                params={"fieldManager": "test", "fieldValidation": "Strict"},
            )
            what = f"{each['kind']} {each['metadata']['name']}"
            assert answer.status_code in (200, 201), f"{what}: {answer.text}"
            self.warnings += [f"{what}: {text}" for text in answer.headers.get_list("warning")]

    def get(self, path: str) -> Json:
        answer = self.client.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return dict(answer.json())

    def serves(self, each: Json) -> bool:
        """Return whether that version has such a kind."""
        return self._resource(each) is not None

    def path(self, each: Json) -> str:
        """Return the API path of one object."""
        found = self._resource(each)
        assert found is not None, f"no {each['kind']} in {each['apiVersion']}"
        plural, namespaced = found
        folder = f"namespaces/{each['metadata']['namespace']}/" if namespaced else ""
        return f"{_group(each)}/{folder}{plural}/{each['metadata']['name']}"

    def _resource(self, each: Json) -> tuple[str, bool] | None:
        key = each["apiVersion"], each["kind"]
        if key not in self._plurals:
            answer = self.client.get(_group(each))
            if answer.status_code == _ABSENT:
                return None
            for one in answer.json()["resources"]:
                if "/" not in one["name"]:
                    self._plurals[each["apiVersion"], one["kind"]] = one["name"], one["namespaced"]
        return self._plurals.get(key)

    def has_pods(self, each: Json) -> bool:
        """Return whether the controllers made its pods, with a call of admission for each."""
        found = self.get(self.path(each))
        status, spec = found.get("status", {}), found["spec"]
        if each["kind"] == "Job":
            return bool(status.get("active"))
        if each["kind"] == "DaemonSet":
            wanted = status.get("desiredNumberScheduled", 0)
            return bool(wanted) and len(self.pods_of(each)) == wanted
        # A StatefulSet in order waits for its first pod's readiness, and nothing runs here.
        wanted = 1 if each["kind"] == "StatefulSet" else spec["replicas"]
        return bool(status.get("replicas") == wanted)

    def pods_of(self, each: Json) -> list[Json]:
        labels = each["spec"]["selector"]["matchLabels"]
        chosen = ",".join(f"{key}={value}" for key, value in labels.items())
        return list(
            self.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={chosen}")["items"]
        )

    def refusals(self) -> list[str]:
        """Why controllers could not make something."""
        events = self.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
        return [
            f"{e['involvedObject']['kind']} {e['involvedObject']['name']}: {e['message']}"
            for e in events
            if e["reason"] == "FailedCreate"
        ]

    def remove(self, objects: Iterable[Json]) -> None:
        """Delete all objects, and wait until the namespace is empty."""
        for each in objects:
            answer = self.client.delete(self.path(each))
            assert answer.status_code in (200, 202, _ABSENT), answer.text
        wait(
            lambda: (
                self.client.get(f"/api/v1/namespaces/{NAMESPACE}").status_code == _ABSENT or None
            ),
            f"{NAMESPACE} is gone",
            within_s=PATIENCE_S,
        )


def _group(each: Json) -> str:
    version = each["apiVersion"]
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def job_of(cron: Json) -> Json:
    """Build the Job that `kubectl create job --from=cronjob/NAME` makes."""
    metadata = {"name": f"{cron['metadata']['name']}-now", "namespace": NAMESPACE}
    template = cron["spec"]["jobTemplate"]["spec"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template}


def kinds_of(folder: Path) -> list[Json]:
    """The CustomResourceDefinitions in a folder."""
    texts = (path.read_text() for path in sorted(folder.glob("*.yaml")))
    return [
        each
        for text in texts
        for each in yaml.safe_load_all(text)
        if each and each["kind"] == "CustomResourceDefinition"
    ]


K8S = Path(__file__).parents[2] / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (K8S / "components").iterdir())
NEEDED = {"cloudnative-pg-backup": ("cloudnative-pg",)}
"""Components that are named after others."""
SUCCESSORS = {"batch/v1beta1": "batch/v1", "policy/v1beta1": "policy/v1"}
"""Versions that only older API servers have, and the later ones of the same fields."""
LABELS = {"gpu": "on", "node-restriction.kubernetes.io/hami-gpu": "on"}


@pytest.fixture(scope="module")
def server(
    kubernetes_assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    if not (kubernetes_assets.folder / "kube-controller-manager").exists():
        pytest.skip("KUBEBUILDER_ASSETS holds no kube-controller-manager")
    folder = tmp_path_factory.mktemp("overlays")
    restricted = {
        "apiVersion": "pod-security.admission.config.k8s.io/v1",
        "kind": "PodSecurityConfiguration",
        "defaults": {"enforce": "restricted", "enforce-version": "latest"},
    }
    admission = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "PodSecurity", "configuration": restricted}],
    }
    file = folder / "admission.json"
    file.write_text(json.dumps(admission))
    arguments = [
        f"--admission-control-config-file={file}",
        "--enable-admission-plugins=NodeRestriction",
    ]
    with ExitStack() as stack:
        plane = stack.enter_context(
            control_plane(
                folder / "plane",
                assets=kubernetes_assets,
                arguments=arguments,
                service_accounts=True,
            )
        )
        spawn_controllers(stack, folder, plane)
        client = stack.enter_context(kubernetes_client(plane.kubeconfig))
        server = ApiServer(client)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0", "labels": LABELS}}
        server.apply([node])
        crds = os.environ.get("HAMI_CRDS")
        if crds:
            kinds = kinds_of(Path(crds))
            server.apply(kinds)
            for each in kinds:
                wait(lambda each=each: is_established(server, each), f"{each['metadata']['name']}")
        # What other projects mark as deprecated in their own kinds is not ours.
        server.warnings.clear()
        yield server


def is_established(server: ApiServer, kind: Json) -> bool:
    conditions = server.get(server.path(kind)).get("status", {}).get("conditions", ())
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def render_overlay(folder: Path, assets: Assets) -> list[Json]:
    done = subprocess.run(
        [assets.folder / "kubectl", "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def with_components(folder: Path, names: tuple[str, ...]) -> Path:
    """An overlay of the base with these, as a reader of k8s/README.md writes it."""
    paths = [K8S / "base", *(K8S / "components" / name for name in names)]
    base, *components = (os.path.relpath(path, folder.resolve()) for path in paths)
    kustomization = {"resources": [base], "components": components}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


@pytest.mark.parametrize("name", ["base", *OVERLAYS, *(f"components/{c}" for c in COMPONENTS)])
def test_all_objects_are_taken_without_a_warning_and_all_pods_are_made(
    server: ApiServer, kubernetes_assets: Assets, name: str, tmp_path: Path
) -> None:
    folder = K8S / name if name == "base" else K8S / "overlays" / name
    component = name.removeprefix("components/")
    if component != name:
        folder = with_components(tmp_path, (*NEEDED.get(component, ()), component))
    objects = render_overlay(folder, kubernetes_assets)
    if kubernetes_assets.version >= (1, 25):
        for each in objects:
            each["apiVersion"] = SUCCESSORS.get(each["apiVersion"], each["apiVersion"])
    lacking = {f"{e['apiVersion']} {e['kind']}" for e in objects if not server.serves(e)}
    if lacking:
        pytest.skip(f"the API server has no {', '.join(sorted(lacking))} (HAMI_CRDS)")

    try:
        server.apply(objects)
        crons = [job_of(each) for each in objects if each["kind"] == "CronJob"]
        server.apply(crons)
        for each in [*objects, *crons]:
            if each["kind"] in WITH_PODS:
                wait(
                    lambda each=each: server.has_pods(each),
                    f"pods of {each['kind']} {each['metadata']['name']}",
                    within_s=60,
                    why=lambda: "\n".join(server.refusals()),
                )
        before = generations(server, objects)
        server.apply(objects)

        assert server.refusals() == []
        assert server.warnings == []
        # A GitOps tool that applies again finds nothing to change.
        assert generations(server, objects) == before
    finally:
        server.remove(objects)


def generations(server: ApiServer, objects: list[Json]) -> dict[str, int | None]:
    """Return each object's generation by path; None for kinds without one."""
    return {
        path: server.get(path)["metadata"].get("generation")
        for path in (server.path(each) for each in objects)
    }


def test_the_clusters_of_the_page_that_recover_a_ledger_are_taken(server: ApiServer) -> None:
    """The clusters of `docs/stores.md`: in place of `initdb`, with another name in the archive."""
    page = (K8S.parent / "docs" / "stores.md").read_text()
    [block] = [text for text in page.split("```")[1::2] if "recoveryTarget" in text]
    recovery: Json = yaml.safe_load(block.removeprefix("yaml\n"))
    folder = K8S / "components" / "cloudnative-pg"
    cluster: Json = yaml.safe_load((folder / "cluster.yaml").read_text())
    if not server.serves(cluster):
        pytest.skip("the API server has no postgresql.cnpg.io (HAMI_CRDS)")
    cluster["spec"] |= recovery
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hami-system"}}

    try:
        server.apply([namespace, cluster])

        assert server.warnings == []
    finally:
        server.remove([cluster, namespace])
