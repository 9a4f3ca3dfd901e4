"""This node's Node object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hamicommon.k8s.client import KubeApi

from hami_node_agent.adapters.kubernetes.events import warning


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

    async def forget(self, keys: Iterable[str]) -> None:
        """Removes annotations from the Node. Raises: Unavailable, NotFound, Forbidden."""
        gone = dict.fromkeys(keys)
        if gone:
            await self._api.patch(self._path, {"metadata": {"annotations": gone}})

    async def warn(self, reason: str, message: str) -> None:
        """A Warning event on the Node. Raises: Unavailable, Forbidden."""
        # As the kubelet's own: a Node has no namespace, and its name stands for its uid.
        involved = {"kind": "Node", "name": self._node, "uid": self._node}
        event = warning(involved, "default", reason, message, node=self._node)
        await self._api.create("/api/v1/namespaces/default/events", event)
