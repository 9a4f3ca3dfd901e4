"""Duties of kube-controller-manager that even a small cluster needs.

Dependents of a deleted owner are removed; a deleted namespace is emptied and then removed; pods on
a node that no longer exists are removed; old events expire. No other duty is emulated.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kubelocal.apiserver.calls import CONTROLLER, ApiTarget, Caller
from kubelocal.apiserver.errors import ApiError
from kubelocal.apiserver.schema.resources import STORED
from kubelocal.apiserver.storage.objects import UNKNOWN, StoredObject
from kubelocal.apiserver.storage.store import ObjectStore, Transaction
from kubelocal.apiserver.verbs.delete import Delete, Options

logger = logging.getLogger(__name__)
_CALLER = Caller(user=CONTROLLER)
_NOW = Options(grace_s=0)
# Checking the time of every event has a cost, and no client needs expiry to the second.
_EXPIRY_ROUND_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Interval of each duty, in seconds."""

    tick_s: float = 0.5
    lost_node_s: float = 20.0  # the pod collector of Kubernetes looks every 20 s
    event_life_s: float = 3600.0  # kube-apiserver's --event-ttl


class Controllers:
    """Perform the duties on a store until cancelled."""

    def __init__(self, store: ObjectStore, deleting: Delete, intervals: Intervals) -> None:
        self._store = store
        self._deleting = deleting
        self._intervals = intervals
        self._seen = store.version
        self._lost_since: dict[str, float] = {}
        self._expire_at_s = 0.0

    async def run_forever(self) -> None:
        """Run the controllers until the task is cancelled."""
        while True:
            await asyncio.sleep(self._intervals.tick_s)
            try:
                await self._collect_dependents()
                await self._end_namespaces()
                await self._collect_lost_pods(time.monotonic())
                if time.monotonic() >= self._expire_at_s:
                    self._expire_at_s = time.monotonic() + _EXPIRY_ROUND_S
                    await self._expire_events(datetime.now(UTC))
            except Exception:  # the outermost loop: the next round retries
                logger.exception("Failed to run a round of the controllers")

    async def _collect_dependents(self) -> None:
        """Delete objects whose owners are all gone."""
        if self._seen == self._store.version:
            return
        self._seen = self._store.version
        everything = [
            stored for name in STORED for stored in self._store.collections[name].values()
        ]
        owned = [stored for stored in everything if stored.owners]
        if not owned:
            return
        alive = {UNKNOWN, *(stored.uid for stored in everything)}
        for stored in owned:
            if not alive.intersection(stored.owners):
                await self._delete(stored, Options())

    async def _end_namespaces(self) -> None:
        for namespace in self._store.items("namespaces"):
            if namespace.fields["status.phase"] != "Terminating":
                continue
            inside = [
                stored
                for name in STORED
                for stored in self._store.items(name)
                if stored.namespace == namespace.name
            ]
            for stored in inside:
                await self._delete(stored, Options())
            if not inside:
                await self._remove_namespace(namespace)

    async def _remove_namespace(self, namespace: StoredObject) -> None:
        def work(transaction: Transaction) -> None:
            stored = transaction.get(*namespace.key)
            if stored is not None:
                body = stored.load()
                body["spec"] = {}
                if body["metadata"].get("finalizers"):
                    transaction.put("namespaces", body)
                else:
                    transaction.delete("namespaces", body)

        await self._store.transact(work)

    async def _collect_lost_pods(self, now_s: float) -> None:
        nodes = {name for _, name in self._store.collections["nodes"]}
        lost = {
            stored.uid: stored
            for stored in self._store.collections["pods"].values()
            if (node := stored.fields["spec.nodeName"]) and node not in nodes
        }
        self._lost_since = {uid: self._lost_since.get(uid, now_s) for uid in lost}
        for uid, since_s in self._lost_since.items():
            if now_s - since_s >= self._intervals.lost_node_s:
                await self._delete(lost[uid], _NOW)

    async def _expire_events(self, now: datetime) -> None:
        life = timedelta(seconds=self._intervals.event_life_s)
        oldest = (now - life).strftime("%Y-%m-%dT%H:%M:%SZ")
        events = self._store.collections["events"].values()
        # A repeated event is written again; the time of its version is in its body.
        old = [stored for stored in events if _last_time(stored) < oldest]

        def work(transaction: Transaction) -> None:
            for stored in old:
                current = transaction.get(*stored.key)
                if current is not None and current.version == stored.version:
                    transaction.delete("events", current.load())

        if old:
            await self._store.transact(work)

    async def _delete(self, stored: StoredObject, options: Options) -> None:
        collection, namespace, name = stored.key
        target = ApiTarget(resource=STORED[collection], namespace=namespace, name=name)
        options = Options(grace_s=options.grace_s, uid=stored.uid)
        try:
            await self._deleting.delete(target, _CALLER, options)
        except ApiError as error:
            if error.code not in (404, 409):
                raise


def _last_time(stored: StoredObject) -> str:
    body = stored.load()
    return str(body.get("lastTimestamp") or body["metadata"]["creationTimestamp"])
