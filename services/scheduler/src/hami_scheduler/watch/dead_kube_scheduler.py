"""Release of the Lease for a kube-scheduler that died with it.

A kube-scheduler that ends in order releases its Lease, and another one has it within a second. One
that was killed can't, and all pods would wait until the Lease expires: for three times as long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from hamicommon.errors import Conflict, HamiError
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.informer import Informer, key_of
from hamicommon.k8s.types import Json, JsonMapping

from hami_scheduler.activity import SchedulerLease

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.25
CONNECT_TIMEOUT_S = 1.0


class DeadKubeScheduler:
    """Look at the port of this pod's kube-scheduler while the Lease is in its name."""

    def __init__(
        self, address: str, api: KubeApi, lease: SchedulerLease, informer: Informer
    ) -> None:
        """`address`: host:port; `informer`: has the Lease."""
        host, _, self._port = address.rpartition(":")
        self._host = host.strip("[]")
        self._api = api
        self._lease = lease
        self._informer = informer

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            # Taken before the look: what changed the Lease since was not that process.
            seen = list(self._informer.store.values())
            if self._lease.is_named_here and await self._is_dead():
                for lease in seen:
                    await self._release(lease)
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _is_dead(self) -> bool:
        """Return whether nothing listens on its port.

        It listens for as long as it may hold the Lease. One that is there and does not answer keeps
        the Lease until it expires.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(self._host, int(self._port))
        except ConnectionRefusedError:
            return True
        except (TimeoutError, OSError):
            return False
        writer.close()
        return False

    async def _release(self, lease: Json) -> None:
        namespace, name = key_of(lease)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        about = {"lease": self._lease.name}
        try:
            await self._api.replace(path, {**lease, "spec": released(lease.get("spec") or {})})
        except Conflict:
            return  # somebody has it already
        except HamiError as exc:
            logger.warning("Failed to release the Lease", extra=about | {"error": str(exc)})
        else:
            logger.warning("Released the Lease: kube-scheduler has died", extra=about)


def released(spec: JsonMapping) -> Mapping[str, object]:
    """Return what client-go writes when it gives a Lease up."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    kept = {"leaseTransitions": spec["leaseTransitions"]} if "leaseTransitions" in spec else {}
    return {**kept, "leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now}
