"""Find pods on nodes without a grant: the ledger lost it, or they bypassed the scheduler.

Input: a pod that asks for our cards, met by the reconciler. A pod that was bound without the
scheduler gets one event with what to change. A grant that the ledger lost, as after the restore of
an older backup (FAULT-45), is entered again; that of a pod that runs by ResourceClaims from the
claims (`adoption/`). A pod's `hami.io/grant` was signed by our own scheduler for this pod and node,
so it was granted. If the ledger does not know that grant, the ledger is older, and the grant is
entered with its own id and with the signed text as evidence. The kubelet's checkpoint shows on
which of the node's cards it is now: a release before this one may have moved the pod since. A node
that does not answer is asked again for a while, then the signed cards count. A grant that the
ledger knows has ended there, and stays ended. User input can't make a grant: the signature is over
pod, node and cards, and the checkpoint is the node's.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from hamicommon.domain.allocations import (
    AllocationState,
    ContainerGrant,
    DeviceShare,
    Origin,
    Placement,
)
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import CapacityConflict, Conflict, InvalidRequest, NotFound, Unavailable
from hamicommon.events import HeldContainer, NodeHoldings
from hamicommon.grants.grant import Grant
from hamicommon.k8s.annotations import GRANT, annotations_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.ledger.model import Change, Draft, Entry, QuotaAmounts

from hami_scheduler.drift import Drift
from hami_scheduler.ledger.state_machine import TERMINAL_PHASES, PodFacts, facts_of
from hami_scheduler.pod_events import UNMANAGED, Announcer
from hami_scheduler.ports.ledger import AllocationStore

if TYPE_CHECKING:
    from hami_scheduler.adapters.nats import NatsNodeWitness
    from hami_scheduler.adoption.resource_claims import ClaimHolders

logger = logging.getLogger(__name__)

ACTOR = "reconciler"
REASON = "missing in the ledger; restored from its signed grant"
MOVED = "on the cards that its kubelet's checkpoint has"
UNCONFIRMED = "its node did not report whether it is still on these cards"
# An agent that lives answers within seconds. Without its answer the cards are still counted
# soon: cards that are not counted may be granted again.
PATIENCE_S = 30.0
# One answer of a node serves all its pods of one comparison.
ANSWER_KEPT_S = 5.0


class Outcome(StrEnum):
    """Result of an attempt to restore a grant."""

    NONE = "none"
    """The pod has no grant of ours that the ledger could have lost."""
    RESTORED = "restored"
    LATER = "later"
    """The restoration must be tried again.

    The card is unknown, the node has not answered, another writer was faster, or the row is live
    again.
    """


@dataclass(eq=False, kw_only=True)
class GrantRestorer:
    """Write grants that the ledger lost back into it."""

    store: AllocationStore
    apply: Callable[[Change], None]
    read_signed: Callable[[str], Grant]
    quota_of: Callable[[Sequence[ContainerGrant]], QuotaAmounts]
    witness: NatsNodeWitness
    put_back: Callable[[AllocationId], Awaitable[bool]]
    clock: Callable[[], float] = time.monotonic
    _silent_since: dict[NodeName, float] = field(default_factory=dict, init=False)
    _answers: dict[NodeName, tuple[float, NodeHoldings | None]] = field(
        default_factory=dict, init=False
    )

    async def restore(self, pod: JsonMapping) -> Outcome:
        """Restore the pod's grant if the ledger lost it. Raises: Unavailable."""
        facts = facts_of(pod)
        grant = self._signed_for(pod, facts)
        if grant is None:
            return Outcome.NONE
        row = await self.store.get(AllocationId(grant.allocation_id))
        if row is not None:
            # One that ended stays ended, unless its history knows of no end.
            return Outcome.LATER if await self.put_back(row.id) else Outcome.NONE
        holdings = await self._holdings_of(NodeName(grant.node))
        if holdings is None and self._patient(NodeName(grant.node)):
            return Outcome.LATER
        try:
            change = await self.store.enter(self._entry(pod, grant, facts, holdings))
        except (CapacityConflict, Conflict) as exc:
            logger.warning(
                "Failed to restore a grant that the ledger lost; trying again later",
                extra={"error": str(exc)},
            )
            return Outcome.LATER
        self.apply(change)
        logger.info("Restored a lost grant", extra={"pod_uid": facts.uid, "node": grant.node})
        return Outcome.RESTORED

    def _signed_for(self, pod: JsonMapping, facts: PodFacts) -> Grant | None:
        text = annotations_of(pod).get(GRANT, "")
        if not text:
            return None
        try:
            grant = self.read_signed(text)
        except InvalidRequest as exc:
            logger.warning("Ignoring a grant without a valid signature", extra={"error": str(exc)})
            return None
        if (grant.pod_uid, grant.node) != (facts.uid, facts.node):
            return None
        return grant

    async def _holdings_of(self, node: NodeName) -> NodeHoldings | None:
        """Return the holders of the node's cards; None if the node does not report them."""
        at, kept = self._answers.get(node, (float("-inf"), None))
        if self.clock() - at < ANSWER_KEPT_S:
            return kept
        try:
            holdings = await self.witness.holdings(node)
        except (NotFound, Unavailable) as exc:
            logger.warning(
                "Failed to list the pods that hold cards of a node", extra={"error": str(exc)}
            )
            found = None
        else:
            found = holdings if holdings.readable else None
        if found is not None:
            self._silent_since.pop(node, None)
        self._answers[node] = (self.clock(), found)
        return found

    def _patient(self, node: NodeName) -> bool:
        since = self._silent_since.setdefault(node, self.clock())
        return self.clock() - since < PATIENCE_S

    def _entry(
        self, pod: JsonMapping, grant: Grant, facts: PodFacts, holdings: NodeHoldings | None
    ) -> Entry:
        signed = grant.domain_containers()
        containers = signed if holdings is None else as_held(signed, facts.uid, holdings.containers)
        more = UNCONFIRMED if holdings is None else MOVED if containers != signed else ""
        draft = Draft(
            allocation_id=AllocationId(grant.allocation_id),
            pod_uid=PodUid(grant.pod_uid),
            namespace=grant.namespace,
            pod_name=grant.pod_name,
            placement=Placement(node=NodeName(grant.node), containers=containers),
            lease_s=0.0,
            quota=self.quota_of(containers),
            traceparent=grant.traceparent,
            actor=ACTOR,
        )
        return Entry(
            draft=draft,
            state=AllocationState.ALLOCATED if facts.started else AllocationState.BOUND,
            # Its slices are held, whether the cards have room for them in the ledger or not.
            origin=Origin.ADOPTED,
            reason=f"{REASON}; {more}" if more else REASON,
            evidence={
                "grant": annotations_of(pod)[GRANT],
                "token": grant.token,
                "books": None  # codespell:ignore books - a key of stored events
                if holdings is None
                else _cards_by_container(facts.uid, holdings.containers),
            },
        )


def as_held(
    signed: Sequence[ContainerGrant], uid: PodUid, held: Iterable[HeldContainer]
) -> tuple[ContainerGrant, ...]:
    """Return the containers with the cards on which the kubelet counts their ids.

    A container that the checkpoint doesn't have, or with another number of cards, stays as it was
    signed.
    """
    cards = _cards_by_container(uid, held)
    return tuple(
        replace(container, shares=_on_cards(container.shares, cards.get(container.name, ())))
        for container in signed
    )


def _cards_by_container(uid: PodUid, held: Iterable[HeldContainer]) -> dict[str, list[str]]:
    """Return the cards of each container to which our agent gave its answer."""
    return {
        one.container: list(one.cards_of_ids) for one in held if one.pod_uid == uid and one.ours
    }


def _on_cards(shares: tuple[DeviceShare, ...], cards: Sequence[str]) -> tuple[DeviceShare, ...]:
    """Return slices on cards that the pod holds; others are moved to its remaining cards."""
    if len(cards) != len(shares):
        return shares
    left = Counter(cards)
    stays = []
    for share in shares:
        stays.append(left[share.uuid] > 0)
        left[share.uuid] -= int(stays[-1])
    others = iter(sorted(left.elements()))
    return tuple(
        share if stay else replace(share, uuid=GpuUuid(next(others)))
        for share, stay in zip(shares, stays, strict=True)
    )


CLASS = "pod-without-grant"
CLAIMS_REASON = "restored from the allocation of its ResourceClaims"
UNMANAGED_TEXT = (
    "this pod was bound to node {node} without the scheduler {scheduler} and has no grant: its "
    "containers don't start; remove spec.nodeName and set spec.schedulerName: {scheduler}; a pod "
    "that HAMi started is taken over by `hamictl adopt`"
)


CLAIMS_TEXT = "this pod runs on node {node} with ResourceClaims but has no grant: {why}"


@dataclass(eq=False, kw_only=True)
class UngrantedPods:
    """Restore lost grants, and report other pods, each once."""

    store: AllocationStore
    restorer: GrantRestorer
    claimed: ClaimHolders
    drift: Drift
    announcer: Announcer
    wants_devices: Callable[[JsonMapping], bool]
    scheduler_name: str
    _reported: set[PodUid] = field(default_factory=set, init=False)
    """Pods that were reported and still exist without a grant."""
    _others: set[PodUid] = field(default_factory=set, init=False)
    """Pods whose claims are not ours."""

    def keep(self, held: Collection[PodUid], pods: Mapping[PodUid, JsonMapping]) -> None:
        """Forget other pods, after all were compared.

        `held`: pods with a grant; `pods`: all that are watched.
        """
        self._reported = {
            uid
            for uid in self._reported
            if uid in pods and uid not in held and facts_of(pods[uid]).phase not in TERMINAL_PHASES
        }
        self._others &= pods.keys()
        self.drift.show_standing(CLASS, len(self._reported))

    async def check(self, uid: PodUid, pod: JsonMapping) -> int:
        """Return the number of differences of the pod, 0 or 1. Raises: Conflict, Unavailable."""
        facts = facts_of(pod)
        if (
            facts.node is None
            or facts.deleting
            or facts.phase in TERMINAL_PHASES
            or uid in self._reported
        ):
            return 0
        wants_devices = self.wants_devices(pod)
        # Before it has started, its node asks when it prepares the claims.
        by_claims = facts.started and uid not in self._others and _has_claims(pod)
        if not (wants_devices or by_claims) or await self.store.live_of(uid) is not None:
            return 0
        if not wants_devices:
            return await self._check_claims(uid, pod, str(facts.node))
        lost = await self.restorer.restore(pod)
        if lost is Outcome.RESTORED:
            await self._note_restored(uid, pod, REASON)
        elif lost is Outcome.NONE:
            text = UNMANAGED_TEXT.format(node=facts.node, scheduler=self.scheduler_name)
            await self._report(uid, pod, text)
        return 1

    async def _check_claims(self, uid: PodUid, pod: JsonMapping, node: str) -> int:
        try:
            ours = await self.claimed.restore(pod)
        except Conflict as exc:
            await self._report(uid, pod, CLAIMS_TEXT.format(node=node, why=exc))
            return 1
        if not ours:
            self._others.add(uid)
            return 0
        await self._note_restored(uid, pod, CLAIMS_REASON)
        return 1

    async def _note_restored(self, uid: PodUid, pod: JsonMapping, reason: str) -> None:
        await self.drift.note("grant-lost", _subject(uid, pod), reason, repaired=True)

    async def _report(self, uid: PodUid, pod: JsonMapping, text: str) -> None:
        self._reported.add(uid)
        metadata = pod["metadata"]
        ref = PodRef(metadata["namespace"], metadata["name"], uid)
        self.announcer.announce(ref, UNMANAGED, text)
        await self.drift.note(CLASS, _subject(uid, pod), text, repaired=False)


def _has_claims(pod: JsonMapping) -> bool:
    return bool((pod.get("spec") or {}).get("resourceClaims"))


def _subject(uid: PodUid, pod: JsonMapping) -> str:
    metadata = pod["metadata"]
    return f"{metadata['namespace']}/{metadata['name']} ({uid})"
