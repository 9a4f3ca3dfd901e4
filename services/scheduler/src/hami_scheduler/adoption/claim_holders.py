"""Pods that come to a claim which another pod holds: they are in the ledger before it ends.

The kubelet has a claim prepared once: a second pod on it starts without a question to its node's
agent. It was bound, and so is in the watch and in the claim's `reservedFor`, before. In: pods of
the informer that name a claim, and grants that are about to end (`Transitions.before_end`). Out: a
grant of each pod that holds a claim; the ledger counts the claim's slices once, and gives them back
with the last (ADR 12).

A pod that is bound later, when the one before it has ended, is another case: a pod has ended for
the API server when its kubelet has unprepared its claims, so the next one asks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import PodUid
from hamicommon.dra.claims import claim_names, pods_of
from hamicommon.errors import Conflict, Forbidden, InvalidRequest, NotFound, Unavailable
from hamicommon.grants.grant import grant_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.adoption.resource_claims import ClaimGrants
from hami_scheduler.adoption.running_pods import NodeQuestion
from hami_scheduler.ledger.state_machine import TERMINAL_PHASES, facts_of
from hami_scheduler.ports.cluster import GrantAnnouncer
from hami_scheduler.ports.ledger import AllocationStore
from hami_scheduler.work_queue import WorkQueue

if TYPE_CHECKING:
    from hami_scheduler.adapters.kubernetes import KubernetesClaimApi

logger = logging.getLogger(__name__)

ATTEMPTS = 3


@dataclass(eq=False, kw_only=True)
class ClaimHolders:
    """Handlers of the pod informer, the worker behind them, and the look before an end."""

    grants: ClaimGrants
    claims: KubernetesClaimApi
    store: AllocationStore
    announcer: GrantAnnouncer
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    clock: Callable[[], float] | None = None
    _pods: dict[str, JsonMapping] = field(default_factory=dict, init=False)
    """Pods in the queue."""
    _handled: set[PodUid] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue("claim-holders", self._sync, self.bulkhead, self.clock)

    def pod_seen(self, pod: JsonMapping) -> None:
        """The informer saw a pod, or a change of one."""
        if not any("resourceClaimName" in each for each in pod["spec"].get("resourceClaims") or ()):
            return
        facts = facts_of(pod)
        if facts.node is None or facts.phase in TERMINAL_PHASES or facts.uid in self._handled:
            return
        self._pods[facts.uid] = pod
        self.queue.add(facts.uid)

    def pod_gone(self, pod: JsonMapping) -> None:
        """The informer saw it go."""
        uid = PodUid(pod["metadata"]["uid"])
        self._pods.pop(uid, None)
        self._handled.discard(uid)
        self.queue.discard(uid)

    async def _sync(self, key: str) -> None:
        uid, pod = PodUid(key), self._pods.get(key)
        if pod is None:
            return
        live, started = await self.store.live_of(uid), facts_of(pod).started
        if live is None and (started or await self._shares(pod)):
            live = await self._enter(_question(pod))
        # One that runs on claims of others is asked about once.
        if live is not None or started:
            self._handled.add(uid)
        if self._pods.get(key) is pod:  # otherwise it changed since, and is in the queue
            del self._pods[key]

    async def _shares(self, pod: JsonMapping) -> bool:
        """Whether another pod has a claim of its; who is alone asks when the node prepares it."""
        namespace = str(pod["metadata"].get("namespace") or "default")
        try:
            names = claim_names(pod)
            claims = [await self.claims.get(namespace, name) for name in names.values()]
        except (NotFound, Forbidden):
            return False
        return any(len(pods_of(claim)) > 1 for claim in claims)

    async def before_end(self, allocation: Allocation) -> None:
        """All others that hold its claims are in the ledger after this. Raises: Unavailable."""
        counted = [each for each in allocation.claims if each.counted]
        for name in sorted({each.claim for each in counted}):
            try:
                claim = await self.claims.get(allocation.namespace, name)
            except (NotFound, Forbidden):
                continue
            if not {each.key for each in counted} & _slices(claim):
                # Another one by this name, or allocated again since.
                continue
            for pod in pods_of(claim):
                if pod["uid"] != allocation.pod_uid:
                    await self._enter(
                        NodeQuestion(
                            node=allocation.node,
                            uid=PodUid(pod["uid"]),
                            namespace=allocation.namespace,
                            name=str(pod["name"]),
                        )
                    )

    async def restore(self, pod: JsonMapping) -> bool:
        """Enter the grant of a pod that runs without one.

        The ledger lost it, and nobody asks again. False: it has no card of ours by its claims.

        Raises: Conflict when the ledger has no room for it, Unavailable.
        """
        try:
            allocation = await self.grants.grant(_question(pod))
        except (NotFound, InvalidRequest, Forbidden):
            return False
        await self._announce(allocation)
        return True

    async def _enter(self, asked: NodeQuestion) -> Allocation | None:
        """None when it is not to have a grant. Raises: Unavailable."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                allocation = await self.grants.grant(asked)
                break
            except (NotFound, InvalidRequest, Conflict, Forbidden) as exc:
                # A race for the claim's rows, or for the pod's, is lost once or twice.
                if not isinstance(exc, Conflict) or attempt == ATTEMPTS:
                    extra = {"pod_uid": asked.uid, "error": clip(str(exc))}
                    logger.info("Refused a grant to the pod of a claim", extra=extra)
                    return None
        await self._announce(allocation)
        return allocation

    async def _announce(self, allocation: Allocation) -> None:
        try:
            await self.announcer.granted(grant_of(allocation))
        except Unavailable as exc:
            # The node gets it with the next snapshot.
            logger.warning("Failed to publish the grant of a claim", extra={"error": str(exc)})


def _question(pod: JsonMapping) -> NodeQuestion:
    facts, metadata = facts_of(pod), pod["metadata"]
    assert facts.node is not None
    return NodeQuestion(
        node=facts.node,
        uid=facts.uid,
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata["name"]),
    )


def _slices(claim: JsonMapping) -> set[tuple[str, str, str]]:
    """Keys of what is allocated to it."""
    uid = str(claim["metadata"]["uid"])
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return {
        (uid, str(each["request"]), str(each.get("shareID") or each["device"]))
        for each in (allocation.get("devices") or {}).get("results") or ()
    }
