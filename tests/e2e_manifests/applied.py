"""Manifests on an API server as `kubectl apply --server-side` sends them, and what comes of them.

Every answer's warnings are kept: a deprecated version, an unknown field, a pod that Pod Security
would refuse.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import orjson
import yaml
from hamicommon.k8s.types import Json

from tests.waiting import PATIENCE_S, wait

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
        """All of them, in kubectl's order: namespaces and kinds before what is in or of them.

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
        """Whether there is such a kind in that version."""
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
        """Whether the controllers made the pods of this one, admission being asked for each."""
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
        """All of them, and what is in the namespace."""
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
