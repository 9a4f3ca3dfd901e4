"""Find out whether this replica is active, by the Lease of kube-scheduler's leader election.

kube-scheduler runs in the same pod and holds the Lease as `<pod>_<uuid>` while it schedules. The
replica in the holder's pod is active; the others stand by. Without a Lease a replica is always
active. A kube-scheduler that ends in order releases its Lease, and another acquires it within a
second. A killed one can't, and all pods would wait until the Lease expires, three times as long:
`DeadKubeScheduler` releases it then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from hamicommon.errors import Conflict, HamiError, Unavailable
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.informer import Informer, key_of
from hamicommon.k8s.types import Json, JsonMapping

logger = logging.getLogger(__name__)

ACTIVATION_TIMEOUT_S = 2.0
"""Time that a call waits for the Lease to be seen here; a refused call costs its pod a back-off."""


class StandingBy(Unavailable):
    """Error: another replica, which the message names, is active."""


class SchedulerLease:
    """State of the Lease, as its informer shows it.

    A renewal counts from when it was seen here, as in client-go: clocks of other machines may
    differ. The first sight may be of a holder that is long gone, so it counts for nothing until it
    changes.
    """

    def __init__(self, name: str, pod: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`name`: of the Lease, for messages; `pod`: pod in which this process runs."""
        self.name = name
        self._pod = pod
        self._clock = clock
        self._mark: tuple[str, str] | None = None
        """(holderIdentity, renewTime) as last seen."""
        self._duration_s = 0.0
        self._renewed_at_s = float("-inf")
        self._changed = asyncio.Event()

    def on_upsert(self, new: JsonMapping, _old: JsonMapping | None) -> None:
        """Take the Lease from the informer."""
        spec = new.get("spec") or {}
        duration_s = float(spec.get("leaseDurationSeconds") or 0)
        self._see(
            (str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")), duration_s
        )

    def on_delete(self, _last: JsonMapping) -> None:
        """Record that the Lease was deleted."""
        self._see(("", ""), 0.0)

    def _see(self, mark: tuple[str, str], duration_s: float) -> None:
        if self._mark is not None and mark != self._mark:
            self._renewed_at_s = self._clock()
        self._mark, self._duration_s = mark, duration_s
        self._changed.set()

    @property
    def holder(self) -> str:
        """Return the pod that holds it or held it last; empty if none did."""
        return "" if self._mark is None else self._mark[0].split("_")[0]

    @property
    def is_named_here(self) -> bool:
        """Return whether its holder is, or was, the kube-scheduler of this pod."""
        return self.holder == self._pod

    @property
    def is_held_here(self) -> bool:
        """Return whether this pod's kube-scheduler holds it now."""
        return self.is_named_here and self._left_s() > 0

    def _left_s(self) -> float:
        return self._renewed_at_s + self._duration_s - self._clock()

    def explain(self) -> str:
        """Return a sentence about the active replica."""
        if not self.holder:
            return f"no pod holds the Lease {self.name}"
        if self._left_s() <= 0:
            return f"{self.holder} has not renewed the Lease {self.name}"
        return f"{self.holder} holds the Lease {self.name}"

    async def wait_until_held_here(self) -> None:
        """Return when this pod's kube-scheduler holds it."""
        while not self.is_held_here:
            self._changed.clear()
            await self._changed.wait()

    async def wait_until_lost(self) -> None:
        """Return when this pod's kube-scheduler no longer holds it."""
        while self.is_held_here:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._left_s()):
                    await self._changed.wait()


class Activity:
    """Gate that lets only the active replica do its work."""

    def __init__(self, lease: SchedulerLease | None = None) -> None:
        """`lease` None: this replica is always active."""
        self.lease = lease
        self._active = asyncio.Event()
        if lease is None:
            self._active.set()

    @property
    def is_active(self) -> bool:
        """Return whether this replica decides and has read the ledger."""
        return self._active.is_set()

    def begin(self) -> None:
        """Let calls pass."""
        self._active.set()

    def end(self) -> None:
        """Refuse calls."""
        self._active.clear()

    def check(self) -> None:
        """Raise StandingBy unless this replica is active."""
        if self.is_active:
            return
        assert self.lease is not None  # without one it is always active
        if self.lease.is_held_here:
            raise StandingBy(
                "this replica has just become active and is still reading the ledger; "
                "the pod will be retried"
            )
        raise StandingBy(f"this replica is on standby: {self.lease.explain()}")

    async def wait(self) -> None:
        """Wait until this replica is active, as kube-scheduler may call before the Lease is seen.

        Raises: StandingBy when it does not become so in time.
        """
        if self.is_active:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ACTIVATION_TIMEOUT_S):
                await self._active.wait()
        self.check()


LOOK_INTERVAL_S = 0.25
CONNECT_TIMEOUT_S = 1.0


class DeadKubeScheduler:
    """Release the Lease if this pod's kube-scheduler has died, seen by its closed port."""

    def __init__(
        self, address: str, api: KubeApi, lease: SchedulerLease, informer: Informer
    ) -> None:
        """`address`: host:port of kube-scheduler; `informer`: of the Lease."""
        host, _, self._port = address.rpartition(":")
        self._host = host.strip("[]")
        self._api = api
        self._lease = lease
        self._informer = informer

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            # Taken before the look: what changed the Lease since was not that process.
            seen = list(self._informer.store.values())
            if self._lease.is_named_here and await self._is_dead():
                for lease in seen:
                    await self._release(lease)
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _is_dead(self) -> bool:
        """Return whether nothing listens on kube-scheduler's port.

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
            await self._api.replace(path, {**lease, "spec": released_spec(lease.get("spec") or {})})
        except Conflict:
            return  # another replica has it
        except HamiError as exc:
            logger.warning("Failed to release the Lease", extra=about | {"error": str(exc)})
        else:
            logger.warning("Released the Lease: kube-scheduler has died", extra=about)


def released_spec(spec: JsonMapping) -> Mapping[str, object]:
    """Return the Lease's spec as client-go writes it to release it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    kept = {"leaseTransitions": spec["leaseTransitions"]} if "leaseTransitions" in spec else {}
    return {**kept, "leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now}
