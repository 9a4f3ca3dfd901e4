"""Placeholder pods, for each of which an autoscaler adds one node.

A placeholder asks for no card, so any autoscaler can count it. It goes to no node with slices or
with another placeholder, nor to one that is there already, and every pod of a usual priority may
have its place.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b

from hamicommon.admission.marker import SLICE
from hamicommon.clipping import clip
from hamicommon.errors import NotFound
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json
from hamicommon.scaling.node_types import (
    HOSTNAME,
    KARPENTER_POOL,
    OWN_HOSTNAME,
    NodeType,
    labels_of,
)

from hami_scheduler.ports.scaling import ScaleWish

LABEL = "hami.io/placeholder"
"""Label of placeholder pods: the number of the request for a node (wish)."""
PRIORITY_CLASS = "hami-placeholder"
"""PriorityClass of placeholder pods: -1, as Cluster Autoscaler ignores pods below -10."""
MAX_REASON = 300
_MAX_NAME = 40
_AUTOSCALERS = ("cluster-autoscaler", "karpenter")


def placeholder_name(kind: str, number: int) -> str:
    """Return the placeholder's name, equal in two schedulers, so that only one of them creates it.

    >>> placeholder_name("a100x4", 2)
    'hami-scale-a100x4-2'
    """
    name = re.sub("[^a-z0-9]+", "-", kind.lower()).strip("-")
    if name != kind or len(name) > _MAX_NAME:
        digest = blake2b(kind.encode(), digest_size=4).hexdigest()
        name = f"{name[:_MAX_NAME]}-{digest}".lstrip("-")
    return f"hami-scale-{name}-{number}"


def placeholder(
    wish: ScaleWish,
    kind: NodeType,
    existing: Iterable[Json],
    *,
    image: str,
    secrets: Sequence[Json] = (),
) -> Json:
    """Return the placeholder pod of a request for a node.

    Args:
        wish: the node that is wanted, with what its pods ask of the host.
        kind: its type.
        existing: the nodes of the type, which it does not use.
        image: an image that can sleep.
        secrets: `imagePullSecrets` for it.
    """
    apart = [
        {
            "topologyKey": HOSTNAME,
            "namespaceSelector": {},
            "labelSelector": {"matchExpressions": [{"key": key, "operator": "Exists"}]},
        }
        for key in (SLICE, LABEL)
    ]
    affinity: Json = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}}
    names: defaultdict[str, list[str]] = defaultdict(list)
    for label, name in sorted(map(host_name_of, existing)):
        names[label].append(name)
    if names:
        elsewhere = [
            {"key": label, "operator": "NotIn", "values": values} for label, values in names.items()
        ]
        affinity["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": elsewhere}]
            }
        }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": placeholder_name(wish.type, wish.number),
            "labels": {LABEL: str(wish.id), "app.kubernetes.io/part-of": "hami"},
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true",
            },
        },
        "spec": {
            "priorityClassName": PRIORITY_CLASS,
            "nodeSelector": dict(kind.selector),
            "tolerations": [
                {"key": each.key, "operator": "Equal", "value": each.value, "effect": each.effect}
                for each in kind.taints
            ],
            "affinity": affinity,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "imagePullSecrets": list(secrets),
            "containers": [
                {
                    "name": "wait",
                    "image": image,
                    "command": ["sleep", "infinity"],
                    "resources": {
                        "requests": {
                            "cpu": f"{wish.host.cpu_milli}m",
                            "memory": f"{wish.host.memory_mib}Mi",
                        }
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "readOnlyRootFilesystem": True,
                    },
                }
            ],
        },
    }


def nodes_before(placeholder: Json) -> frozenset[str]:
    """Return the host names of the type's nodes that existed when the placeholder was created."""
    affinity = (placeholder["spec"].get("affinity") or {}).get("nodeAffinity")
    if affinity is None:
        return frozenset()
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return frozenset(name for each in term["matchExpressions"] for name in each["values"])


def host_name_of(node: Json) -> tuple[str, str]:
    """Return the label that distinguishes a node from others of its type, and its value.

    The value is the node's name until its kubelet sets the label. A node of Karpenter may come with
    a random value of our label, because Karpenter makes up values for what a pod excludes.
    """
    labels = labels_of(node)
    name = labels.get(HOSTNAME, str(node["metadata"]["name"]))
    if KARPENTER_POOL in labels:
        return OWN_HOSTNAME, labels.get(OWN_HOSTNAME, name)
    return HOSTNAME, name


class Placeholders:
    """Placeholder pods at the API server; every call raises the errors of `KubeApi`."""

    def __init__(self, api: KubeApi, *, namespace: str, pod_name: str, image: str) -> None:
        """Create the client.

        `pod_name`: this scheduler's pod, whose image is used if `image` is empty.
        """
        self._api = api
        self._namespace, self._pod_name, self._image = namespace, pod_name, image
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    async def all(self) -> list[Json]:
        """Return the placeholder pods that exist."""
        found: list[Json] = (await self._api.get(self._path, labelSelector=LABEL))["items"]
        return found

    async def create(self, wish: ScaleWish, kind: NodeType, existing: Sequence[Json]) -> None:
        """Create the placeholder pod of a request, and label the nodes that it excludes.

        Raises: Conflict if its name is taken.
        """
        for node in existing:
            label, name = host_name_of(node)
            if label == OWN_HOSTNAME and label not in labels_of(node):
                with suppress(NotFound):
                    path = f"/api/v1/nodes/{node['metadata']['name']}"
                    await self._api.patch(path, {"metadata": {"labels": {label: name}}})
        image, secrets = self._image, list[Json]()
        if not image:
            own = (await self._api.get(f"{self._path}/{self._pod_name}"))["spec"]
            image = own["containers"][0]["image"]
            secrets = own.get("imagePullSecrets") or []
        body = placeholder(wish, kind, existing, image=image, secrets=secrets)
        await self._api.create(self._path, body)

    async def delete(self, pod: Json) -> None:
        """Delete this placeholder pod (by uid); a missing pod is no error."""
        metadata = pod["metadata"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        try:
            await self._api.delete(f"{self._path}/{metadata['name']}", options)
        except NotFound:
            return

    async def explain(self, uid: str) -> str:
        """Return an autoscaler's last message about this very pod; empty without one."""
        path = f"/api/v1/namespaces/{self._namespace}/events"
        found = (await self._api.get(path, fieldSelector=f"involvedObject.uid={uid}"))["items"]
        reported = [
            event
            for event in found
            if str(
                (event.get("source") or {}).get("component") or event.get("reportingComponent")
            ).startswith(_AUTOSCALERS)
        ]
        if not reported:
            return ""
        last = max(
            reported, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime"))
        )
        return clip(str(last.get("message", "")), MAX_REASON)
