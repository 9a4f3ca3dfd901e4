"""What the DRA driver needs of the API server; `adapters/kubernetes/resource_api.py` has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from hamicommon.k8s.types import Json


class ClaimReader(Protocol):
    """Claims and the pods that they are reserved for."""

    async def claim(self, namespace: str, name: str) -> Json:
        """Raises: NotFound, Forbidden, Unavailable."""

    async def pod(self, namespace: str, name: str) -> Json:
        """Raises: NotFound, Unavailable."""


class SliceStore(Protocol):
    """The ResourceSlices of this node and our driver."""

    @property
    def synced(self) -> bool:
        """True when `slices` is what the API server has, but for what is on its way."""

    @property
    def slices(self) -> Mapping[str, Json]:
        """By name."""

    async def run(self, changed: Callable[[], None]) -> None:
        """Follows the API server until cancelled; `changed` after every change."""

    async def node_uid(self) -> str:
        """The uid of our Node. Raises: NotFound, Unavailable."""

    async def write(self, body: Json) -> None:
        """Creates the slice or, where it has a resourceVersion, replaces it.

        Raises: Conflict when it has changed since, InvalidRequest, Forbidden, Unavailable.
        """

    async def remove(self, name: str) -> None:
        """Deletes it; one that is gone is gone. Raises: Forbidden, Unavailable."""
