"""Groups of pods that start together: the group that a pod names, and its minimum of members.

Kubernetes' own (`spec.schedulingGroup`, gates of 1.36), and the label of scheduler-plugins'
coscheduling, whose quorum its PodGroup has, or the pods themselves by `hami.io/group-min`.
"""

from __future__ import annotations

from typing import NamedTuple

from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.pod_annotations import GROUP_MIN
from hamicommon.k8s.types import JsonMapping

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
NATIVE_API, COSCHEDULING_API = "scheduling.k8s.io", "scheduling.x-k8s.io"


class PodGroup(NamedTuple):
    """Name of a group of pods."""

    namespace: str
    name: str
    is_native: bool = False
    """Whether `spec.schedulingGroup` names the group, so that kube-scheduler holds its members."""

    @property
    def key(self) -> str:
        """Key of the group: `namespace/name`."""
        return f"{self.namespace}/{self.name}"


def group_of(pod: JsonMapping) -> PodGroup | None:
    """Return the group that the pod names; None if it names none."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    namespace = str(metadata.get("namespace") or "default")
    native = (spec.get("schedulingGroup") or {}).get("podGroupName")
    if native:
        return PodGroup(namespace, str(native), is_native=True)
    label = (metadata.get("labels") or {}).get(GROUP_LABEL)
    return PodGroup(namespace, str(label)) if label else None


def own_quorum(pod: JsonMapping) -> int | None:
    """Return the pod's `hami.io/group-min`; None if it is absent or cannot be read."""
    try:
        return GROUP_MIN.read(annotations_of(pod))
    except InvalidRequest:  # of a pod that the webhook did not see
        return None


def quorum_of(pod_group: JsonMapping) -> int | None:
    """Return how many members a PodGroup object requires to start together.

    None if it requires none.
    """
    spec = pod_group.get("spec") or {}
    gang = (spec.get("schedulingPolicy") or {}).get("gang") or {}
    found = gang.get("minCount") or spec.get("minMember")
    return int(found) if found else None
