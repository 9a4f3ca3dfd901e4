"""Manifests of people, read down to the pods they mean. Pure.

A Pod is itself; of a workload kind it is the pod template, once per replica; a List is its items.
Other kinds are named, so that nothing is dropped silently.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json

# kind -> where its pod template lies.
_TEMPLATES = {
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
# More of one workload than this is a slip of the finger on a simulated cluster.
_MOST_REPLICAS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a file holds for us."""

    pods: tuple[Json, ...]
    left_out: tuple[str, ...]
    """kind/name of objects that mean no pod."""
    quotas: tuple[Json, ...] = ()
    """The ResourceQuotas among those."""


def read_manifest(text: str, *, source: str, namespace: str) -> Manifest:
    """Reads YAML or JSON with one or more documents.

    Raises: InvalidRequest when it can't be parsed or an object has no kind or name.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as exc:
        raise InvalidRequest(f"{source} is not YAML: {str(exc).replace(chr(10), ' ')}") from exc
    pods: list[Json] = []
    left_out: list[str] = []
    quotas: list[Json] = []
    for item in _items(documents, source):
        kind, name = _identity(item, source)
        if kind == "Pod":
            pods.append(_placed(item, namespace))
        elif kind in _TEMPLATES:
            pods += _from_template(item, kind, name, source, namespace)
        else:
            left_out.append(f"{kind}/{name}")
            if kind == "ResourceQuota":
                quotas.append(_placed(item, namespace))
    return Manifest(pods=tuple(pods), left_out=tuple(left_out), quotas=tuple(quotas))


def _items(documents: list[object], source: str) -> Iterator[Json]:
    for document in documents:
        if not isinstance(document, dict):
            raise InvalidRequest(f"{source}: a Kubernetes object is wanted, found {document!r:.60}")
        if str(document.get("kind", "")).endswith("List") and "items" in document:
            yield from _items(document["items"], source)
        else:
            yield document


def _identity(item: Json, source: str) -> tuple[str, str]:
    metadata = item.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidRequest(f"{source}: metadata is {metadata!r:.60}: an object is wanted")
    name = metadata.get("name") or metadata.get("generateName")
    if not item.get("kind") or not name:
        raise InvalidRequest(f"{source}: every object needs kind and metadata.name")
    return str(item["kind"]), str(name)


def _placed(item: Json, namespace: str) -> Json:
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
    if not isinstance(count, int) or not 0 <= count <= _MOST_REPLICAS:
        raise InvalidRequest(
            f"{source}: {kind}/{name}: replicas is {count!r}; 0 to {_MOST_REPLICAS} is possible"
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
