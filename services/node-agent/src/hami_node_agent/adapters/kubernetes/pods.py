"""Watch this node's pods and answer questions about them.

The agent never writes a pod: annotations of pods belong to the scheduler (architecture 2.4). A
grant in `hami.io/grant` counts only if our scheduler signed it for this node, and of a pod only the
newest attempt: an annotation older than one already seen is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from cachetools import LRUCache
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import HamiError, InvalidRequest, NotFound
from hamicommon.grants.grant import verify
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.types import Json
from hamicommon.process.bulkhead import Bulkhead
from nacl.signing import VerifyKey

from hami_node_agent.adapters.kubernetes.node import warning
from hami_node_agent.adapters.kubernetes.pod_fields import (
    CONFIG_HASH,
    MIRROR,
    container_ids,
    containers_of,
    devices_of,
    is_terminal,
    kept_of,
    literal_env,
    mig_devices_of,
    phase_of,
    ref_of,
    signed_text,
)
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.feed import node_grant
from hami_node_agent.grants.ports import MigDevice
from hami_node_agent.grants.records import PodsSeen

logger = logging.getLogger(__name__)


class SignedGrants:
    """Signed grants in the annotation `hami.io/grant`; of several for a pod the newest."""

    def __init__(self, node: str, key: VerifyKey | None) -> None:
        """`key`: the scheduler's public key; without it no annotation is accepted."""
        self._node = node
        self._key = key
        self._tokens: dict[str, int] = {}
        """By pod: the highest that a signed grant had while we watched."""

    @property
    def readable(self) -> bool:
        """Whether signed grants can be verified."""
        return self._key is not None

    def forget(self, pod_uid: str) -> None:
        """Forget the newest token of a deleted pod."""
        self._tokens.pop(pod_uid, None)

    def of(self, pod: Json) -> NodeGrant | None:
        """Return the verified grant in the pod's annotation; None if there is none."""
        text, uid = signed_text(pod), pod["metadata"]["uid"]
        if self._key is None or not text or is_terminal(pod):
            return None
        try:
            grant = verify(text, self._key, now=datetime.now(UTC))
        except InvalidRequest as exc:
            logger.warning(
                "Ignoring a signed grant that is not valid",
                extra={"pod": pod["metadata"]["name"], "error": str(exc)},
            )
            return None
        # A signed grant copied to another pod, or from another node, is worth nothing.
        if grant.pod_uid != uid or grant.node != self._node:
            logger.warning(
                "Ignoring the signed grant of another pod", extra={"pod": pod["metadata"]["name"]}
            )
            return None
        if grant.token < self._tokens.get(uid, grant.token):
            logger.warning("Ignoring an older signed grant", extra={"pod": pod["metadata"]["name"]})
            return None
        self._tokens[uid] = grant.token
        return node_grant(grant)


# Gone pods are remembered only against grants that arrive late: a minute's worth is plenty.
MAX_GONE = 1000


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
        self._signed = SignedGrants(node, key)
        self._gone: LRUCache[PodUid, None] = LRUCache(MAX_GONE)
        self._by_uid: dict[str, Json] = {}
        self._containers: dict[str, tuple[str, str]] = {}
        """By the runtime's id: pod uid and name."""
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
        """Watch until cancelled."""
        await self._informer.run()

    @property
    def live(self) -> bool:
        """Whether the watch is current."""
        return self._informer.synced.is_set() and self._informer.connected

    def _on_upsert(self, pod: Json, old: Json | None) -> None:
        uid = pod["metadata"]["uid"]
        self._by_uid[uid] = pod
        if old is not None:
            self._drop_containers(old)
        self._containers |= {each: (uid, name) for each, name in container_ids(pod)}
        self._seen = None
        if old is None or signed_text(old) != signed_text(pod):
            self._signed.of(pod)

    def _on_delete(self, pod: Json) -> None:
        uid = PodUid(pod["metadata"]["uid"])
        self._by_uid.pop(uid, None)
        self._drop_containers(pod)
        self._signed.forget(uid)
        self._gone[uid] = None
        self._seen = None

    def _drop_containers(self, pod: Json) -> None:
        for container_id, _ in container_ids(pod):
            self._containers.pop(container_id, None)

    def container_of(self, container_id: str) -> tuple[str, str] | None:
        """Return (pod uid, name) of the container with this runtime id, as the kubelet reported it.

        Its report comes a moment after the start.
        """
        return self._containers.get(container_id)

    def knows(self, pod_uid: str) -> bool:
        """Return whether the pod object exists, by the watch."""
        return pod_uid in self._by_uid

    def snapshot(self) -> PodsSeen:
        """Return what the watch has at present."""
        if self._seen is None:
            over = (PodUid(uid) for uid, pod in self._by_uid.items() if is_terminal(pod))
            self._seen = PodsSeen(
                ended=frozenset(over) | frozenset(self._gone),
                bound=frozenset(map(PodUid, self._by_uid)),
            )
        return self._seen

    def name_of(self, pod_uid: str) -> PodRef | None:
        """Return the pod of this node with that uid."""
        pod = self._by_uid.get(pod_uid)
        return None if pod is None else ref_of(pod)

    def mig_devices(self) -> list[MigDevice]:
        """Return the MIG slices that were made for this node's pods, by their annotations."""
        return [
            device
            for pod in self._by_uid.values()
            if not is_terminal(pod)
            for device in mig_devices_of(pod)
        ]

    def literal_env(self, pod_uid: str, container: str) -> dict[str, str] | None:
        """Return a container's literal environment; None if the watch lacks the pod."""
        pod = self._by_uid.get(pod_uid)
        return None if pod is None else literal_env(pod, container)

    def uid_of(self, namespace: str, name: str) -> str:
        """Return the uid of a pod of this node; empty if unknown."""
        pod = self._informer.store.get((namespace, name))
        return "" if pod is None else str(pod["metadata"]["uid"])

    def api_uid(self, kubelet_uid: str) -> str:
        """Return the API server's uid for a pod's uid at the kubelet; static pods have two uids.

        They differ for static pods: there the API server has a mirror, which names the other.
        """
        if kubelet_uid not in self._by_uid:
            for uid, pod in self._by_uid.items():
                annotations = pod["metadata"].get("annotations") or {}
                if MIRROR in annotations and annotations.get(CONFIG_HASH) == kubelet_uid:
                    return uid
        return kubelet_uid

    async def still_there(self, *, namespace: str, name: str, pod_uid: str) -> bool:
        """Ask the API server whether the pod object exists. Raises: Unavailable."""
        try:
            pod = await self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        except NotFound:
            return False
        return bool(pod["metadata"]["uid"] == pod_uid)

    async def container_env(self, grant: NodeGrant, container: str) -> Mapping[str, str]:
        """Return a container's literal environment; empty if the API server is unavailable."""
        pod = self._by_uid.get(grant.pod_uid)
        if pod is None:
            try:
                pod = await self._api.request(
                    "GET",
                    f"/api/v1/namespaces/{grant.namespace}/pods/{grant.pod_name}",
                    timeout_s=1.0,
                )
            except HamiError as exc:
                logger.warning(
                    "Failed to read a pod, its environment is unknown", extra={"error": str(exc)}
                )
                return {}
        if pod["metadata"]["uid"] != grant.pod_uid:
            return {}
        return literal_env(pod, container)

    async def signed_grants(self) -> tuple[NodeGrant, ...]:
        """Return the verified grants in annotations of this node's pods.

        Read from the API server, because the watch may lag. Raises: Unavailable.
        """
        if not self._signed.readable:
            return ()
        answer = await self._api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={self._node}")
        found = (self._signed.of(pod) for pod in answer.get("items") or [])
        return tuple(grant for grant in found if grant is not None)

    async def warn(self, pod: PodRef, message: str) -> None:
        """Create a Warning event on the pod; failures are logged."""
        involved = {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        event = warning(involved, pod.namespace, "DeviceAllocationFailed", message, node=self._node)
        try:
            await self._api.create(f"/api/v1/namespaces/{pod.namespace}/events", event)
        except HamiError as exc:
            logger.warning("Failed to write an event", extra={"pod": pod.name, "error": str(exc)})

    def waiting_for(self, count: int) -> tuple[PodRef, ...]:
        """Return pods that have not started and request `count` devices in one container."""
        return tuple(
            ref_of(pod)
            for pod in self._by_uid.values()
            if phase_of(pod) == "Pending"
            and any(devices_of(c, self._resource) == count for c in containers_of(pod))
        )
