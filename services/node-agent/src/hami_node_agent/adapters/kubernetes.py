"""This node's pods and Node object: a watch, the signed annotation, events, the register text.

The agent never writes a pod: annotations of pods belong to the scheduler (architecture 2.4).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from hamicommon.clipping import clip
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import HamiError, InvalidRequest, NotFound
from hamicommon.grants.grant import verify
from hamicommon.k8s.annotations import MIG_ALLOCATIONS
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.event_names import event_name
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.mig import decode_reservations
from hamicommon.k8s.types import Json
from hamicommon.process.bulkhead import Bulkhead
from nacl.signing import VerifyKey

from hami_node_agent.adapters.kept_pods import (
    CONFIG_HASH,
    GRANT_ANNOTATION,
    MIRROR,
    STATUSES,
    kept_of,
)
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.candidates import PodsSeen
from hami_node_agent.grants.feed import node_grant
from hami_node_agent.grants.ports import MigDevice

logger = logging.getLogger(__name__)

# Gone pods are remembered only against grants that arrive late: a minute's worth is plenty.
MAX_GONE = 1000
_TERMINAL = frozenset({"Succeeded", "Failed"})


class NodePods:
    """Pods whose spec.nodeName is this node."""

    def __init__(
        self,
        api: KubeApi,
        *,
        node: str,
        resource: str,
        key: VerifyKey | None,
        bulkhead: Bulkhead | None = None,
    ) -> None:
        self._api = api
        self._node = node
        self._resource = resource
        self._key = key
        self._gone: OrderedDict[PodUid, None] = OrderedDict()
        self._by_uid: dict[str, Json] = {}
        self._containers: dict[str, tuple[str, str]] = {}
        """By the runtime's id: pod uid and name."""
        self._tokens: dict[str, int] = {}
        """By pod: the highest that a signed grant had while we watched."""
        self._seen: PodsSeen | None = None
        """Until a pod changes: every answer asks, of all the node's pods."""
        self._informer = Informer(
            api,
            "/api/v1/pods",
            on_upsert=self._on_upsert,
            on_delete=self._on_delete,
            trim=kept_of,
            bulkhead=bulkhead,
            fieldSelector=f"spec.nodeName={node}",
        )

    async def run(self) -> None:
        """Keeps the watch going until cancelled."""
        await self._informer.run()

    @property
    def live(self) -> bool:
        """True while the watch follows the API server."""
        return self._informer.synced.is_set() and self._informer.connected

    def _on_upsert(self, pod: Json, old: Json | None) -> None:
        uid = pod["metadata"]["uid"]
        self._by_uid[uid] = pod
        if old is not None:
            self._drop_containers(old)
        self._containers |= {each: (uid, name) for each, name in _container_ids(pod)}
        self._seen = None
        if self._key is not None and (old is None or _signed_text(old) != _signed_text(pod)):
            self._signed_grant(pod, self._key)

    def _on_delete(self, pod: Json) -> None:
        uid = PodUid(pod["metadata"]["uid"])
        self._by_uid.pop(uid, None)
        self._drop_containers(pod)
        self._tokens.pop(uid, None)
        self._gone[uid] = None
        self._seen = None
        while len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)

    def _drop_containers(self, pod: Json) -> None:
        for container_id, _ in _container_ids(pod):
            self._containers.pop(container_id, None)

    def container_of(self, container_id: str) -> tuple[str, str] | None:
        """(pod uid, name) of the container that the runtime calls so, as the kubelet reported it.

        Its report comes a moment after the start.
        """
        return self._containers.get(container_id)

    def knows(self, pod_uid: str) -> bool:
        """True while the pod object is there."""
        return pod_uid in self._by_uid

    def seen(self) -> PodsSeen:
        """What the watch has at present."""
        if self._seen is None:
            over = {uid for uid, pod in self._by_uid.items() if _phase(pod) in _TERMINAL}
            self._seen = PodsSeen(
                bound=frozenset(PodUid(uid) for uid in self._by_uid.keys() - over),
                ended=frozenset(PodUid(uid) for uid in over) | frozenset(self._gone),
            )
        return self._seen

    def name_of(self, pod_uid: str) -> PodRef | None:
        """The pod of this node with that uid."""
        pod = self._by_uid.get(pod_uid)
        return None if pod is None else _ref(pod)

    def mig_devices(self) -> list[MigDevice]:
        """The MIG slices of this node's pods that were made, by their annotation."""
        return [
            device
            for pod in self._by_uid.values()
            if _phase(pod) not in _TERMINAL
            for device in _mig_devices(pod)
        ]

    def literal_env(self, pod_uid: str, container: str) -> dict[str, str] | None:
        """Literal env entries of a container; None when the watch has no such pod."""
        pod = self._by_uid.get(pod_uid)
        return None if pod is None else _env(pod, container)

    def uid_of(self, namespace: str, name: str) -> str:
        """The uid of a pod of this node, or the empty string."""
        pod = self._informer.store.get((namespace, name))
        return "" if pod is None else str(pod["metadata"]["uid"])

    def api_uid(self, kubelet_uid: str) -> str:
        """The uid at the API server of the pod that the kubelet calls so.

        They differ for static pods: there the API server has a mirror, which names the other.
        """
        if kubelet_uid not in self._by_uid:
            for uid, pod in self._by_uid.items():
                annotations = pod["metadata"].get("annotations") or {}
                if MIRROR in annotations and annotations.get(CONFIG_HASH) == kubelet_uid:
                    return uid
        return kubelet_uid

    async def still_there(self, *, namespace: str, name: str, pod_uid: str) -> bool:
        """Asks the API server itself whether the pod object exists. Raises: Unavailable."""
        try:
            pod = await self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        except NotFound:
            return False
        return bool(pod["metadata"]["uid"] == pod_uid)

    async def container_env(self, grant: NodeGrant, container: str) -> Mapping[str, str]:
        """Literal env entries of a container's spec; empty when the API server is away."""
        pod = self._by_uid.get(grant.pod_uid)
        if pod is None:
            try:
                pod = await self._api.request(
                    "GET",
                    f"/api/v1/namespaces/{grant.namespace}/pods/{grant.pod_name}",
                    timeout_s=1.0,
                )
            except HamiError as exc:
                logger.warning("pod not read, its env is unknown", extra={"error": str(exc)})
                return {}
        if pod["metadata"]["uid"] != grant.pod_uid:
            return {}
        return _env(pod, container)

    async def signed_grants(self) -> tuple[NodeGrant, ...]:
        """Grants in `hami.io/grant` of this node's pods that our scheduler signed for us.

        Read from the API server, not from the watch: it may be what is behind. Raises: Unavailable.
        """
        if self._key is None:
            return ()
        answer = await self._api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={self._node}")
        found = (self._signed_grant(pod, self._key) for pod in answer.get("items") or [])
        return tuple(grant for grant in found if grant is not None)

    def _signed_grant(self, pod: Json, key: VerifyKey) -> NodeGrant | None:
        text, uid = _signed_text(pod), pod["metadata"]["uid"]
        if not text or _phase(pod) in _TERMINAL:
            return None
        try:
            grant = verify(text, key, now=datetime.now(UTC))
        except InvalidRequest as exc:
            logger.warning(
                "signed grant refused", extra={"pod": pod["metadata"]["name"], "error": str(exc)}
            )
            return None
        # A signed grant copied to another pod, or from another node, is worth nothing.
        if grant.pod_uid != uid or grant.node != self._node:
            logger.warning("signed grant is another pod's", extra={"pod": pod["metadata"]["name"]})
            return None
        if grant.token < self._tokens.get(uid, grant.token):
            logger.warning("signed grant is older", extra={"pod": pod["metadata"]["name"]})
            return None
        self._tokens[uid] = grant.token
        return node_grant(grant)

    async def warn(self, pod: PodRef, message: str) -> None:
        """A Warning event on the pod; failures are logged."""
        involved = {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        event = _warning(
            involved, pod.namespace, "DeviceAllocationFailed", message, node=self._node
        )
        try:
            await self._api.create(f"/api/v1/namespaces/{pod.namespace}/events", event)
        except HamiError as exc:
            logger.warning("event not written", extra={"pod": pod.name, "error": str(exc)})

    def waiting_for(self, count: int) -> tuple[PodRef, ...]:
        """Pods that have not started and ask for `count` devices in one container."""
        return tuple(
            _ref(pod)
            for pod in self._by_uid.values()
            if _phase(pod) == "Pending"
            and any(_devices(c, self._resource) == count for c in _containers(pod))
        )


class NodeObject:
    """Our own Node."""

    def __init__(self, api: KubeApi, node: str) -> None:
        self._api = api
        self._node = node
        self._path = f"/api/v1/nodes/{node}"

    async def annotations(self) -> Mapping[str, str]:
        """The node's annotations. Raises: Unavailable, NotFound."""
        node = await self._api.get(self._path)
        return dict(node["metadata"].get("annotations") or {})

    async def versions(self) -> tuple[str, str]:
        """Of the kubelet and of the container runtime; empty where the Node does not state it.

        Raises: Unavailable, NotFound.
        """
        info = (await self._api.get(self._path)).get("status", {}).get("nodeInfo") or {}
        return info.get("kubeletVersion", ""), info.get("containerRuntimeVersion", "")

    async def annotate(self, annotations: Mapping[str, str]) -> None:
        """Merges annotations into the Node. Raises: Unavailable, NotFound, Forbidden."""
        await self._api.patch(self._path, {"metadata": {"annotations": dict(annotations)}})

    async def warn(self, reason: str, message: str) -> None:
        """A Warning event on the Node. Raises: Unavailable, Forbidden."""
        # As the kubelet's own: a Node has no namespace, and its name stands for its uid.
        involved = {"kind": "Node", "name": self._node, "uid": self._node}
        event = _warning(involved, "default", reason, message, node=self._node)
        await self._api.create("/api/v1/namespaces/default/events", event)


def _warning(
    involved: dict[str, str], namespace: str, reason: str, message: str, *, node: str
) -> Json:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "metadata": {
            "name": event_name(involved["name"], uuid4().hex[:16]),
            "namespace": namespace,
        },
        "involvedObject": {"apiVersion": "v1", **involved},
        "type": "Warning",
        "reason": reason,
        "message": clip(message, 1024),
        "source": {"component": "hami-node-agent", "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _ref(pod: Json) -> PodRef:
    metadata = pod["metadata"]
    return PodRef(uid=metadata["uid"], namespace=metadata["namespace"], name=metadata["name"])


def _signed_text(pod: Json) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(GRANT_ANNOTATION, ""))


def _phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _containers(pod: Json) -> list[dict[str, Any]]:
    spec = pod.get("spec") or {}
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _container_ids(pod: Json) -> Iterator[tuple[str, str]]:
    """(id, name) of those that were started; the API server has `containerd://<id>`."""
    status = pod.get("status") or {}
    for key in STATUSES:
        for each in status.get(key) or []:
            _, _, container_id = str(each.get("containerID") or "").rpartition("//")
            if container_id:
                yield container_id, each["name"]


def _env(pod: Json, container: str) -> dict[str, str]:
    return {
        entry["name"]: entry["value"]
        for spec in _containers(pod)
        if spec["name"] == container
        for entry in spec.get("env") or []
        if isinstance(entry.get("value"), str)
    }


def _mig_devices(pod: Json) -> list[MigDevice]:
    text = (pod["metadata"].get("annotations") or {}).get(MIG_ALLOCATIONS, "")
    try:
        reservations = decode_reservations(text)
    except InvalidRequest as exc:
        logger.debug("MIG reservations not read", extra={"error": str(exc)})
        return []
    names = [container["name"] for container in _containers(pod)]
    return [
        MigDevice(pod=_ref(pod), container=names[one.container_index], reservation=one)
        for one in reservations
        if one.mig_uuid and one.container_index < len(names)
    ]


def _devices(container: dict[str, Any], resource: str) -> int:
    quantity = ((container.get("resources") or {}).get("limits") or {}).get(resource, "0")
    text = str(quantity)
    return int(text) if text.isascii() and text.isdigit() else 0
