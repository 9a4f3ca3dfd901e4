"""Read containers, their roles, and the owner from a pod's JSON.

The scheduler keeps the owner with the allocation (`ledger/tables/grants.py`), bounded: a user
chooses nearly all of its texts. Kubernetes bounds names and labels, and neither the kinds of owner
references nor the names of users.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hamicommon.clipping import clip
from hamicommon.domain.pod_ref import PodOwner
from hamicommon.domain.requests import Role
from hamicommon.k8s.annotations import CREATED_BY, annotations_of
from hamicommon.k8s.types import Json, JsonMapping

TEMPLATE_HASH = "pod-template-hash"
KUEUE_MANAGED, KUEUE_WORKLOAD_NAME = "kueue.x-k8s.io/managed", "kueue.x-k8s.io/workload"
"""Label of pods that Kueue queues by themselves; annotation of pods of a Job that it admitted."""
"""Label whose value ends the names of a Deployment's ReplicaSets.

See "Pod-template-hash label" in Kubernetes' documentation of Deployments.
"""


def containers_of(pod: JsonMapping) -> Iterator[tuple[Role, Json]]:
    """Yield init containers and sidecars as declared, then app containers, each with its role."""
    spec = pod.get("spec") or {}
    for container in spec.get("initContainers") or ():
        yield ("sidecar" if container.get("restartPolicy") == "Always" else "init"), container
    for container in spec.get("containers") or ():
        yield "app", container


def owner_of(pod: JsonMapping, label_keys: Iterable[str] = (), *, stamped: bool = True) -> PodOwner:
    """Return the pod's owner, with the labels that `label_keys` names.

    `stamped`: admission has seen the pod, so the annotation that names its creator is the webhook's
    and not the author's.
    """
    metadata = pod.get("metadata") or {}
    labels = metadata.get("labels") or {}
    controller = _controller(metadata.get("ownerReferences") or ())
    kind, name = _text(controller, "kind"), _text(controller, "name")
    return PodOwner(
        kind=kind,
        name=name,
        uid=_text(controller, "uid"),
        deployment=_deployment(kind, name, str(labels.get(TEMPLATE_HASH) or "")),
        service_account=_text(pod.get("spec") or {}, "serviceAccountName"),
        created_by=clip(annotations_of(pod).get(CREATED_BY, "")) or None if stamped else None,
        labels={key: clip(str(labels[key])) for key in label_keys if key in labels},
    )


def is_managed_by_kueue(pod: JsonMapping) -> bool:
    """Return whether Kueue admitted the pod, or holds it, and evicts it by its own priorities."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return labels.get(KUEUE_MANAGED) == "true" or KUEUE_WORKLOAD_NAME in annotations_of(pod)


def _controller(references: Iterable[Any]) -> JsonMapping:
    """Return the controlling owner reference, of which there is at most one."""
    for reference in references:
        if isinstance(reference, dict) and reference.get("controller") is True:
            return reference
    return {}


def _deployment(kind: str, name: str, template_hash: str) -> str:
    ending = f"-{template_hash}"
    ours = kind == "ReplicaSet" and template_hash and name.endswith(ending)
    return name.removesuffix(ending) if ours else ""


def _text(found: JsonMapping, key: str) -> str:
    return clip(str(found.get(key) or ""))
