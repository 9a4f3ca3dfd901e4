"""Read users' manifests, find their pods, and create objects at an API server.

A Pod stands for itself, a workload for its pod template, once per replica, and a List for its
items. Objects of other kinds stay unchanged. Each mistake is one sentence that names the path once.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import yaml
from hamicommon.errors import Conflict, InvalidRequest, NotFound
from hamicommon.k8s.client import KubeApi, PatchType
from hamicommon.k8s.quantities import canonical
from hamicommon.k8s.types import Json, JsonMapping

STDIN = "-"
MAX_BYTES = 2**30
"""Maximum bytes of one file, ten times that of a million pods."""


def read_text(source: str) -> str:
    """Return the file's text; `-` is standard input.

    Raises: InvalidRequest naming the file and its problem.
    """
    try:
        if source == STDIN:
            return _read_bounded(sys.stdin, "standard input")
        with Path(source).open(encoding="utf-8") as file:
            return _read_bounded(file, source, os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        raise InvalidRequest(f"{source} does not exist") from None
    except IsADirectoryError:
        raise InvalidRequest(f"{source} is a folder: use a file") from None
    except OSError as exc:
        raise InvalidRequest(f"{source}: not readable: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"{source} is not text: byte {exc.start} is not UTF-8") from exc


def _read_bounded(file: TextIO, source: str, size: int = 0) -> str:
    """Return the text, at most `MAX_BYTES` long; `size` is 0 for devices and pipes."""
    text = "" if size > MAX_BYTES else file.read(MAX_BYTES + 1)
    if size > MAX_BYTES or len(text) > MAX_BYTES:
        raise InvalidRequest(f"{source} is larger than {MAX_BYTES >> 20} MiB: use a smaller file")
    # Spreadsheet programs begin a file with it.
    return text.removeprefix("\ufeff")


# kind -> path of its pod template.
_TEMPLATES = {
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
# On a simulated cluster, more replicas of one workload are a typing error.
_MAX_REPLICAS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Objects of a file, by their role for hamictl."""

    pods: tuple[Json, ...]
    others: tuple[Json, ...]
    """Objects without pods."""
    workloads: tuple[Json, ...]
    """Objects whose templates became pods."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return kind/name of each object in `others`."""
        return tuple(f"{item['kind']}/{_name(item['metadata'])}" for item in self.others)


def read_manifest(text: str, *, source: str, namespace: str) -> Manifest:
    """Read YAML or JSON with one or more documents.

    Raises: InvalidRequest if it can't be parsed or an object has no kind or name.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as exc:
        raise InvalidRequest(f"{source} is not YAML: {_yaml_problem(exc)}") from exc
    pods: list[Json] = []
    others: list[Json] = []
    workloads: list[Json] = []
    for item in _items(documents, source):
        kind, name = _identity(item, source)
        if kind == "Pod":
            pods.append(with_namespace(item, namespace))
        elif kind in _TEMPLATES:
            pods += _from_template(item, kind, name, source, namespace)
            workloads.append(item)
        else:
            others.append(item)
    return Manifest(pods=tuple(pods), others=tuple(others), workloads=tuple(workloads))


def _yaml_problem(exc: yaml.YAMLError) -> str:
    if not isinstance(exc, yaml.MarkedYAMLError) or exc.problem_mark is None:
        return " ".join(str(exc).split())
    mark = exc.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {exc.problem}"


def _items(documents: list[object], source: str) -> Iterator[Json]:
    for document in documents:
        if not isinstance(document, dict):
            raise InvalidRequest(f"{source}: {document!r:.60} is not a Kubernetes object")
        if str(document.get("kind", "")).endswith("List") and "items" in document:
            yield from _items(document["items"], source)
        else:
            yield document


def _identity(item: Json, source: str) -> tuple[str, str]:
    metadata = item.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidRequest(f"{source}: metadata is {metadata!r:.60}: it must be an object")
    name = _name(metadata)
    if not item.get("kind") or not name:
        raise InvalidRequest(f"{source}: every object needs kind and metadata.name")
    return str(item["kind"]), str(name)


def _name(metadata: Json) -> object:
    return metadata.get("name") or metadata.get("generateName")


def with_namespace(item: Json, namespace: str) -> Json:
    """Return the object with its namespace filled in."""
    made = copy.deepcopy(item)
    made.setdefault("apiVersion", "v1")
    made["metadata"].setdefault("namespace", namespace)
    return made


def _from_template(item: Json, kind: str, name: str, source: str, namespace: str) -> list[Json]:
    template: Any = item
    for part in _TEMPLATES[kind]:
        template = (template or {}).get(part) if isinstance(template, dict) else None
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        where = ".".join(_TEMPLATES[kind])
        raise InvalidRequest(f"{source}: {kind}/{name} has no {where}.spec")
    spec = item.get("spec") or {}
    count = spec.get("parallelism" if kind == "Job" else "replicas", 1)
    if not isinstance(count, int) or not 0 <= count <= _MAX_REPLICAS:
        raise InvalidRequest(
            f"{source}: {kind}/{name}: replicas is {count!r}: use 0 to {_MAX_REPLICAS}"
        )
    metadata = template.get("metadata") or {}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **copy.deepcopy(metadata),
                "name": f"{name}-{number}",
                "namespace": item["metadata"].get("namespace", namespace),
            },
            "spec": copy.deepcopy(template["spec"]),
        }
        for number in range(count)
    ]


async def apply_object(api: KubeApi, item: Json, namespace: str) -> str:
    """Create an object of any kind or update the existing one; return the action done.

    Raises: InvalidRequest naming the kind if the cluster does not know it.
    """
    version, kind, metadata = str(item.get("apiVersion", "v1")), item["kind"], item["metadata"]
    group = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    try:
        known = (await api.get(group)).get("resources") or ()
    except NotFound:
        known = ()
    # Names with a slash are subresources.
    found = next((r for r in known if r["kind"] == kind and "/" not in r["name"]), None)
    if found is None:
        raise InvalidRequest(f"the cluster does not know the kind {kind} of {version}")
    inside = f"/namespaces/{metadata.get('namespace', namespace)}" if found["namespaced"] else ""
    collection = f"{group}{inside}/{found['name']}"
    try:
        await api.create(collection, {**item, "apiVersion": version})
    except Conflict:
        await api.patch(f"{collection}/{metadata['name']}", item, PatchType.MERGE)
        return "configured"
    return "created"


async def apply_pod(api: KubeApi, pod: Json) -> str:
    """Create the pod, or update labels and annotations of an existing one; return the action done.

    Raises: Conflict if the existing pod has another request, which only a new pod can change.
    """
    metadata = pod["metadata"]
    collection = f"/api/v1/namespaces/{metadata['namespace']}/pods"
    try:
        await api.create(collection, pod)
    except Conflict:
        changes = {
            "metadata": {
                "labels": metadata.get("labels") or {},
                "annotations": metadata.get("annotations") or {},
            }
        }
        path = f"{collection}/{metadata['name']}"
        existing = await api.patch(path, changes, PatchType.MERGE)
        if differing := differences(pod, existing):
            raise Conflict(
                f"exists with another spec ({', '.join(differing)}), which can't be changed: "
                "delete the pod first; labels and annotations are updated"
            ) from None
        return "exists (labels and annotations updated)"
    return "created"


def differences(pod: JsonMapping, existing: JsonMapping) -> list[str]:
    """Return the fields in which containers of an existing pod differ from the manifest.

    Only fields of the manifest are compared that neither the API server nor admission rewrites:
    images, commands, arguments and limits. Limits are compared by amount, not by text.
    """
    there = {each["name"]: each for each in _containers(existing)}
    found = []
    for wanted in _containers(pod):
        name = wanted["name"]
        if name not in there:
            found.append(f"container {name}")
            continue
        found += [
            f"{key} of {name}"
            for key in ("image", "command", "args")
            if key in wanted and wanted[key] != there[name].get(key)
        ]
        held = (there[name].get("resources") or {}).get("limits") or {}
        limits = (wanted.get("resources") or {}).get("limits") or {}
        found += [
            f"{key} of {name}"
            for key, amount in limits.items()
            if key in held and _canonical_text(amount) != _canonical_text(held[key])
        ]
    return found


def _containers(pod: JsonMapping) -> list[Json]:
    spec = pod.get("spec") or {}
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _canonical_text(amount: object) -> str:
    """Return the amount as the API server writes it; text that is no amount is unchanged."""
    try:
        return canonical(str(amount))
    except InvalidRequest:
        return str(amount)
