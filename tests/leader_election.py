"""kube-scheduler's leader election over a Lease, for tests of who is active.

Times follow client-go: a lease that was not renewed for its duration may be taken; a holder that
could not renew in time ends itself rather than risk two schedulers.
"""

import asyncio
import logging
from datetime import UTC, datetime

from hamicommon.errors import Conflict, HamiError, NotFound, Unavailable
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json
from kubelocal.kubescheduler.configuration import Seconds
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

logger = logging.getLogger(__name__)


class LeaderElection(BaseModel):
    """A configuration's `leaderElection`: the holder of this Lease schedules."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    leader_elect: bool = True
    resource_name: str = "kube-scheduler"
    resource_namespace: str = "kube-system"
    lease_duration: Seconds = 15.0
    renew_deadline: Seconds = 10.0
    retry_period: Seconds = 2.0


class Leadership:
    """Our side of one Lease."""

    def __init__(self, api: KubeApi, config: LeaderElection, identity: str) -> None:
        self._api = api
        self._config = config
        self._identity = identity
        self._collection = (
            f"/apis/coordination.k8s.io/v1/namespaces/{config.resource_namespace}/leases"
        )
        self._path = f"{self._collection}/{config.resource_name}"
        # When we last saw the holder write: its clock is not ours.
        self._observed: tuple[str, float] = ("", 0.0)

    async def acquire(self) -> None:
        """Return once we hold the lease."""
        held = await self._try()
        while not held:
            await asyncio.sleep(self._config.retry_period)
            held = await self._try()
        logger.info("leading", extra={"identity": self._identity})

    async def hold(self) -> None:
        """Renew until that fails for too long.

        Raises:
            Unavailable: the lease is lost.
        """
        renewed_s = _now()
        while _now() - renewed_s < self._config.renew_deadline:
            await asyncio.sleep(self._config.retry_period)
            if await self._try():
                renewed_s = _now()
        raise Unavailable("leader election lost: another scheduler may be running")

    async def _try(self) -> bool:
        try:
            lease = await self._api.get(self._path)
        except NotFound:
            return await self._write(None)
        except HamiError as exc:
            logger.warning("lease not read", extra={"error": str(exc)})
            return False
        spec = lease.get("spec") or {}
        holder, mark = spec.get("holderIdentity"), str(spec.get("renewTime"))
        if mark != self._observed[0]:
            self._observed = (mark, _now())
        expired = _now() - self._observed[1] > self._config.lease_duration
        if holder and holder != self._identity and not expired:
            return False
        return await self._write(lease)

    async def _write(self, lease: Json | None) -> bool:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict((lease or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + bool(lease)
            spec["acquireTime"] = now
        spec |= {
            "holderIdentity": self._identity,
            "renewTime": now,
            "leaseDurationSeconds": round(self._config.lease_duration),
        }
        try:
            if lease is None:
                metadata = {
                    "name": self._config.resource_name,
                    "namespace": self._config.resource_namespace,
                }
                body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
                await self._api.create(
                    self._collection, {**body, "metadata": metadata, "spec": spec}
                )
            else:
                await self._api.replace(self._path, {**lease, "spec": spec})
        except Conflict:
            return False
        except HamiError as exc:
            logger.warning("lease not written", extra={"error": str(exc)})
            return False
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()
