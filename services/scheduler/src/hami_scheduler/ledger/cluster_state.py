"""Cards and quotas in memory: the ledger's, with assumptions added.

Like kube-scheduler's cache: /filter *assumes* a placement, which counts from then on; the commit of
its grant *confirms* it; and it is *forgotten* when kube-scheduler gives the pod up, the pod is
gone, or no /bind comes in time. A later /filter of the pod replaces it, so a call may be repeated
any number of times. Only the active scheduler writes grants, so its commits keep the state equal to
the ledger; `refresh` compares both now and then, and repairs a difference.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum

from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.errors import HamiError
from hamicommon.ledger.card_rows import CardDemand, wanted_by
from hamicommon.ledger.model import CardCounters, Change, Command, Draft, Entry
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.vendor_policy import VendorRules

from hami_scheduler.ledger.quota import QuotaBook
from hami_scheduler.ports.ledger import (
    AllocationStore,
    CardReader,
    LedgerCard,
    PairScores,
    QuotaStore,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """Placement that counts before its grant is written."""

    draft: Draft
    cards: tuple[CardDemand, ...]
    since: float
    """Time of the assumption, by `ClusterState`'s clock like `until`."""
    until: float
    """Time at which it is forgotten without a /bind."""


class Forgotten(StrEnum):
    """Reason for which an assumption ended without a grant; a label of metrics."""

    POD_GONE = "pod gone"
    POD_ENDED = "pod ended"
    BOUND_ELSEWHERE = "bound elsewhere"
    GIVEN_UP = "given up"
    """kube-scheduler set PodScheduled to False."""
    GATED = "gated"
    GROUP_GIVEN_UP = "group given up"
    DEADLINE = "deadline"


MAX_ASSUMED_S = 300.0
"""Maximum time that an assumption waits for its /bind."""


@dataclass(eq=False)
class ClusterState:
    """Cards, quotas and assumptions of the active scheduler.

    An assumption waits `ttl_s` for its /bind, unless it was given another time; `on_freed` and
    `on_forgotten` are called when one ends without a grant.
    """

    cards: CardReader
    _: KW_ONLY
    quota_store: QuotaStore
    grants: AllocationStore
    rules: Mapping[str, VendorRules]
    ttl_s: float
    on_freed: Callable[[], None] = lambda: None
    on_forgotten: Callable[[Forgotten], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.cluster = ClusterView(self.rules)
        self.quotas = QuotaBook()
        self._assumed: dict[PodUid, Assumption] = {}
        """The oldest first."""
        self._on_card: defaultdict[GpuUuid, list[CardDemand]] = defaultdict(list)
        """Amounts that are assumed of each card."""
        self._binding: dict[PodUid, NodeName] = {}
        """Pods whose grant is in the ledger and whose binding is not known to have ended."""
        self._versions: dict[GpuUuid, int] = {}
        self._sum = 0
        self._nodes: dict[NodeName, frozenset[GpuUuid]] = {}
        self._node_of: dict[GpuUuid, NodeName] = {}
        self._doubtful: set[NodeName] = set()
        """Nodes that the next refresh reads, whatever their versions."""
        self._refreshing = asyncio.Lock()
        self._refreshed_at: float | None = None
        self.changes = 0
        """Increases with every change of cards or quotas, but not with trials on the cards."""

    # Assumptions

    def assume(self, draft: Draft, *, ttl_s: float | None = None) -> None:
        """Count the placement from now on, in place of the pod's earlier assumption."""
        self._drop(draft.pod_uid)
        cards = wanted_by(draft, self.rules)
        since = self.clock()
        until = since + (self.ttl_s if ttl_s is None else ttl_s)
        self._assumed[draft.pod_uid] = Assumption(
            draft=draft, cards=cards, since=since, until=until
        )
        self.quotas.assume(draft.namespace, draft.quota)
        self.changes += 1
        for card in cards:
            self._on_card[card.uuid].append(card)
            self._shift(card, 1)

    def wait_for_bind(self, pod_uid: PodUid, more_s: float = MAX_ASSUMED_S) -> None:
        """Extend the pod's assumption by this many seconds from now, up to `MAX_ASSUMED_S`.

        kube-scheduler is known to wait before it binds the pod there, or has begun to.
        """
        found = self._assumed.get(pod_uid)
        if found is not None:
            until = min(self.clock() + more_s, found.since + MAX_ASSUMED_S)
            self._assumed[pod_uid] = replace(found, until=max(found.until, until))

    def lift(self, pod_uids: Iterable[PodUid]) -> bool:
        """Stop counting assumptions of pods that are decided again; return whether there were any.

        The caller assumes new ones, or calls `notify_freed`.
        """
        lifted = [self._drop(uid) for uid in pod_uids]
        return any(each is not None for each in lifted)

    @contextmanager
    def without(self, pod_uids: Iterable[PodUid]) -> Iterator[None]:
        """Leave these assumptions out of the cards, inside a block."""
        left_out = [self._assumed[uid] for uid in pod_uids if uid in self._assumed]
        cards = [card for each in left_out for card in each.cards]
        for card in cards:
            self._shift(card, -1)
        for each in left_out:
            self.quotas.assume(each.draft.namespace, each.draft.quota, -1)
        try:
            yield
        finally:
            for card in cards:
                self._shift(card, 1)
            for each in left_out:
                self.quotas.assume(each.draft.namespace, each.draft.quota)

    def notify_freed(self) -> None:
        """Report that capacity freed by `lift` was not taken again."""
        self.on_freed()

    def assumption(self, pod_uid: PodUid) -> Assumption | None:
        """Return the pod's assumption, if it has one."""
        return self._assumed.get(pod_uid)

    def binding_node(self, pod_uid: PodUid) -> NodeName | None:
        """Return the node to which the ledger binds the pod, if known."""
        return self._binding.get(pod_uid)

    def note_binding(self, pod_uid: PodUid, node: NodeName) -> None:
        """Remember a binding found in the ledger."""
        self._binding[pod_uid] = node

    def forget(self, pod_uid: PodUid, reason: Forgotten) -> bool:
        """Stop counting the pod's assumption; return False if it has none."""
        found = self._drop(pod_uid)
        if found is None:
            return False
        extra = {"pod_uid": pod_uid, "node": found.draft.placement.node, "reason": reason.value}
        logger.info("Forgot the assumed placement", extra=extra)
        self.on_forgotten(reason)
        self.on_freed()
        return True

    def expire(self) -> None:
        """Forget assumptions without a /bind in time."""
        now = self.clock()
        for uid in [uid for uid, each in self._assumed.items() if each.until < now]:
            self.forget(uid, Forgotten.DEADLINE)

    def on_committed(self, answered: Sequence[tuple[Command, Change | HamiError | None]]) -> None:
        """Apply a transaction: confirm the grants' assumptions and set the counters.

        All in one step: the counters are those of the whole transaction.
        """
        counters: list[CardCounters] = []
        confirmed: list[CardDemand] = []
        refused = False
        for command, answer in answered:
            if isinstance(command, Entry):
                found = self._assumed.get(command.draft.pod_uid)
                if found is not None and found.draft.allocation_id == command.draft.allocation_id:
                    is_granted = isinstance(answer, Change)
                    self._drop(command.draft.pod_uid, shift=not is_granted)
                    confirmed += found.cards if is_granted else ()
                    refused |= not is_granted
            if isinstance(answer, Change):
                self._note_state(answer)
                self.quotas.apply(answer.quotas)
                counters += answer.counters
        counted = self._apply(counters)
        for card in confirmed:
            if card.uuid not in counted:
                # Read since with a newer version: the ledger's part was known already.
                self._shift(card, -1)
        if refused:
            self.on_freed()

    def apply(self, change: Change) -> None:
        """Set the counters of a commit; those older than the known ones are ignored."""
        self.quotas.apply(change.quotas)
        self._apply(change.counters)

    def _note_state(self, change: Change) -> None:
        allocation = change.allocation
        if allocation.state is AllocationState.BINDING:
            self._binding[allocation.pod_uid] = allocation.node
        else:
            self._binding.pop(allocation.pod_uid, None)

    def _drop(self, pod_uid: PodUid, *, shift: bool = True) -> Assumption | None:
        found = self._assumed.pop(pod_uid, None)
        if found is None:
            return None
        self.quotas.assume(found.draft.namespace, found.draft.quota, -1)
        self.changes += 1
        for card in found.cards:
            on_card = self._on_card[card.uuid]
            on_card.remove(card)
            if not on_card:
                del self._on_card[card.uuid]
            if shift:
                self._shift(card, -1)
        return found

    def _shift(self, card: CardDemand, sign: int) -> None:
        details = [each["detail"] for each in card.details]
        self.cluster.shift(
            card.uuid,
            slots=sign * card.slots,
            memory_mib=sign * card.memory_mib,
            core_percent=sign * card.core_percent,
            added=details if sign > 0 else (),
            dropped=details if sign < 0 else (),
        )

    def _apply(self, counters: Iterable[CardCounters]) -> set[GpuUuid]:
        """Return the cards whose counters were newer than the known ones."""
        self.changes += 1
        newest: dict[GpuUuid, CardCounters] = {}
        for card in counters:
            known = self._versions.get(card.uuid)
            if known is None or card.version <= known:
                continue
            if card.uuid not in newest or newest[card.uuid].version < card.version:
                newest[card.uuid] = card
        for uuid, card in newest.items():
            if card.version != self._versions[uuid] + 1 or card.node != self._node_of.get(uuid):
                # Something else about the card may have changed.
                self._doubtful.add(NodeName(card.node))
            self._set_version(uuid, card.version)
            assumed = self._on_card.get(uuid, ())
            self.cluster.apply(
                uuid,
                slots=card.used_slots + sum(each.slots for each in assumed),
                memory_mib=card.used_memory_mib + sum(each.memory_mib for each in assumed),
                core_percent=card.used_core_percent + sum(each.core_percent for each in assumed),
                version=card.version,
                holdings=[
                    *card.holdings,
                    *(item["detail"] for each in assumed for item in each.details),
                ],
            )
        return set(newest)

    # Reading the ledger

    @property
    def loaded(self) -> bool:
        """Return whether the ledger has been read."""
        return self._refreshed_at is not None

    @property
    def age_s(self) -> float:
        """Return the seconds since this state last equalled the ledger; at first infinite."""
        if self._refreshed_at is None:
            return float("inf")
        return time.monotonic() - self._refreshed_at

    async def load(self) -> None:
        """Read the ledger when this scheduler becomes active. Raises: Unavailable."""
        for pod_uid in list(self._assumed):
            self._drop(pod_uid)
        self._binding.clear()
        async for some in self.grants.standing():
            for row in some:
                if row.state is AllocationState.BINDING:
                    self._binding[row.pod_uid] = row.node
        await self.refresh()

    async def refresh(self) -> bool:
        """Read what differs from the ledger; return whether anything did. Raises: Unavailable."""
        async with self._refreshing:
            started = time.monotonic()
            quotas_differ = self.quotas.load(await self.quota_store.list_uses())
            self.changes += quotas_differ
            if self.loaded and not self._doubtful and await self.cards.tally() == self._tally():
                self._refreshed_at = started
                return quotas_differ
            ledger = await self.cards.versions()
            doubtful, self._doubtful = self._doubtful, set()
            await self._reload(stale := self._stale_nodes(ledger) | doubtful)
            self._refreshed_at = started
            return bool(stale) or quotas_differ

    async def refresh_nodes(self, *nodes: NodeName) -> None:
        """Read these nodes again, even if they seem unchanged. Raises: Unavailable."""
        async with self._refreshing:
            await self._reload(set(nodes))

    async def refresh_quotas(self) -> None:
        """Read the quotas again. Raises: Unavailable."""
        self.changes += 1
        self.quotas.load(await self.quota_store.list_uses())

    def doubt(self, node: NodeName) -> None:
        """Make the next refresh read the node, whose cards may differ."""
        self._doubtful.add(node)

    async def _reload(self, nodes: set[NodeName]) -> None:
        """Read the nodes, and nodes that a card has left for one of them."""
        read: set[NodeName] = set()
        while nodes:
            names = sorted(nodes)
            try:
                cards = await self.cards.cards(names)
                pair_scores = await self.cards.pair_scores(names)
            except BaseException:  # also a cancellation: nothing else would have them read again
                self._doubtful |= nodes
                raise
            read |= nodes
            # Otherwise such a card would count on both: the tally, which has it once, is right.
            left = {self._node_of.get(card.usage.device.uuid, card.node) for card in cards} - read
            self._replace(nodes, cards, pair_scores)
            nodes = left

    def _tally(self) -> tuple[int, int]:
        return len(self._versions), self._sum

    def _stale_nodes(self, ledger: dict[str, tuple[NodeName, int]]) -> set[NodeName]:
        stale = {
            node
            for uuid, (node, version) in ledger.items()
            if self._versions.get(GpuUuid(uuid)) != version
        }
        for node, uuids in self._nodes.items():
            if any(uuid not in ledger or ledger[uuid][0] != node for uuid in uuids):
                stale.add(node)
        return stale

    def _replace(
        self, nodes: set[NodeName], cards: list[LedgerCard], pair_scores: dict[NodeName, PairScores]
    ) -> None:
        self.changes += 1
        grouped: dict[NodeName, list[LedgerCard]] = {node: [] for node in nodes}
        for card in cards:
            grouped.setdefault(card.node, []).append(card)
        # A card may come from a node that is not read here, or have gone there before.
        touched = {card.usage.device.uuid for card in cards}
        touched.update(*(self._nodes.get(node, frozenset()) for node in grouped))
        self._shift_all(touched, -1)
        for node in grouped:
            self._forget_node(node)
        for node, mine in grouped.items():
            if not mine:
                self.cluster.remove_node(node)
                continue
            self.cluster.set_node(
                node,
                [CardState(card.usage, card.version) for card in mine],
                pair_scores=pair_scores.get(node),
            )
            self._nodes[node] = frozenset(card.usage.device.uuid for card in mine)
            # The engine keeps newer counters that came in the meantime, and so does the tally.
            for state in self.cluster.cards(node):
                self._node_of[state.usage.device.uuid] = node
                self._set_version(state.usage.device.uuid, state.version)
        self._shift_all(touched, 1)

    def _shift_all(self, uuids: Iterable[GpuUuid], sign: int) -> None:
        for uuid in uuids:
            for card in self._on_card.get(uuid, ()):
                self._shift(card, sign)

    def _forget_node(self, node: NodeName) -> None:
        """Drop the node's cards, except those that are known on another node now."""
        for uuid in self._nodes.pop(node, frozenset()):
            if self._node_of.get(uuid) == node:
                del self._node_of[uuid]
                self._sum -= self._versions.pop(uuid)

    def _set_version(self, uuid: GpuUuid, version: int) -> None:
        self._sum += version - self._versions.get(uuid, 0)
        self._versions[uuid] = version
