"""Access to this node's Node object, and Warning events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from uuid import uuid4

from hamicommon.clipping import clip
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.event_names import event_name
from hamicommon.k8s.quantities import parse_int
from hamicommon.k8s.types import Json


def warning(
    involved: dict[str, str], namespace: str, reason: str, message: str, *, node: str
) -> Json:
    """Return a Warning event about `involved`, as JSON for the API server."""
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


class NodeObject:
    """Node object of the node on which the agent runs."""

    def __init__(self, api: KubeApi, node: str) -> None:
        self._api = api
        self._node = node
        self._path = f"/api/v1/nodes/{node}"

    async def annotations(self) -> Mapping[str, str]:
        """Return the node's annotations. Raises: Unavailable, NotFound."""
        node = await self._api.get(self._path)
        return dict(node["metadata"].get("annotations") or {})

    async def versions(self) -> tuple[str, str]:
        """Return the versions of kubelet and container runtime; empty if the Node has none.

        Raises: Unavailable, NotFound.
        """
        info = (await self._api.get(self._path)).get("status", {}).get("nodeInfo") or {}
        return info.get("kubeletVersion", ""), info.get("containerRuntimeVersion", "")

    async def annotate(self, annotations: Mapping[str, str]) -> None:
        """Merge annotations into the Node. Raises: Unavailable, NotFound, Forbidden."""
        await self._api.patch(self._path, {"metadata": {"annotations": dict(annotations)}})

    async def forget(self, keys: Iterable[str]) -> None:
        """Remove annotations from the Node. Raises: Unavailable, NotFound, Forbidden."""
        gone = dict.fromkeys(keys)
        if gone:
            await self._api.patch(self._path, {"metadata": {"annotations": gone}})

    async def has_amounts(self, amounts: Mapping[str, int | None]) -> bool:
        """Return whether the Node lists just these amounts of resources; None: not the resource.

        Raises: Unavailable, NotFound.
        """
        status = (await self._api.get(self._path)).get("status") or {}
        listed = (status.get("capacity") or {}, status.get("allocatable") or {})
        return all(
            (parse_int(given[name]) if name in given else None) == amount
            for given in listed
            for name, amount in amounts.items()
        )

    async def set_amounts(self, amounts: Mapping[str, int | None]) -> None:
        """Set resources in the Node's capacity that no device plugin advertises; None removes one.

        The kubelet keeps them, and sets them to 0 when it registers its Node again.

        Raises: Unavailable, NotFound, Forbidden.
        """
        written = {name: None if n is None else str(n) for name, n in amounts.items()}
        status = {"capacity": written, "allocatable": written}
        await self._api.patch(f"{self._path}/status", {"status": status})

    async def warn(self, reason: str, message: str) -> None:
        """Create a Warning event on the Node. Raises: Unavailable, Forbidden."""
        # As the kubelet's own: a Node has no namespace, and its name stands for its uid.
        involved = {"kind": "Node", "name": self._node, "uid": self._node}
        event = warning(involved, "default", reason, message, node=self._node)
        await self._api.create("/api/v1/namespaces/default/events", event)
