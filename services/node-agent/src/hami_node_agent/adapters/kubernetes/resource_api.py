"""Access to resource.k8s.io/v1 for the DRA driver: claims, their pods, this node's slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hamicommon.dra.claims import claim_path
from hamicommon.dra.devices import DRIVER
from hamicommon.errors import NotFound
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.types import Json
from hamicommon.process.bulkhead import Bulkhead

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@dataclass(eq=False)
class ResourceClaims:
    """Read claims, and the pods for which they are reserved."""

    api: KubeApi

    async def claim(self, namespace: str, name: str) -> Json:
        """Read a claim. Raises: NotFound, Forbidden, Unavailable."""
        return await self.api.get(claim_path(namespace, name))

    async def pod(self, namespace: str, name: str) -> Json:
        """Read a pod. Raises: NotFound, Unavailable."""
        return await self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")


class ResourceSlices:
    """ResourceSlices of this node and our driver."""

    def __init__(self, api: KubeApi, node: str, bulkhead: Bulkhead | None = None) -> None:
        self._api = api
        self._node = node
        self._node_uid = ""
        self._changed: Callable[[], None] = lambda: None
        self._informer = Informer(
            api,
            _SLICES,
            on_upsert=lambda _new, _old: self._changed(),
            on_delete=lambda _last: self._changed(),
            bulkhead=bulkhead,
            fieldSelector=f"spec.nodeName={node},spec.driver={DRIVER}",
        )

    @property
    def synced(self) -> bool:
        """Whether `slices` is current."""
        return self._informer.synced.is_set()

    @property
    def slices(self) -> Mapping[str, Json]:
        """Return the slices by name."""
        return {name: item for (_, name), item in self._informer.store.items()}

    async def run(self, changed: Callable[[], None]) -> None:
        """Watch until cancelled; `changed` is called after every change."""
        self._changed = changed
        await self._informer.run()

    async def node_uid(self) -> str:
        """Return the uid of our Node. Raises: NotFound, Unavailable."""
        if not self._node_uid:
            node = await self._api.get(f"/api/v1/nodes/{self._node}")
            self._node_uid = str(node["metadata"]["uid"])
        return self._node_uid

    async def write(self, body: Json) -> None:
        """Create the slice, or replace it if it has a resourceVersion.

        Raises: Conflict when it has changed since, InvalidRequest, Forbidden, Unavailable.
        """
        if "resourceVersion" in body["metadata"]:
            await self._api.replace(f"{_SLICES}/{body['metadata']['name']}", body)
        else:
            await self._api.create(_SLICES, body)

    async def remove(self, name: str) -> None:
        """Delete a slice, if it still exists. Raises: Forbidden, Unavailable."""
        try:
            await self._api.delete(f"{_SLICES}/{name}")
        except NotFound:
            return
