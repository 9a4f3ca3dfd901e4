"""The database of the simulation: grants with their announcements, quotas.

`FakeLedger` has the guards, `Inventories` adds nodes and cards; `tests/contract/ledger` compares
both with Postgres. Each method is one transaction: nothing awaits inside.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from hami_scheduler.ports.ledger import DecisionRow, LastRefusal, OpenWait
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import HamiError
from hamicommon.events import event_subject
from hamicommon.ledger.granted_cards import PodCard
from hamicommon.ledger.model import Change, Command, Entry, QuotaUse, StateStep

from tests.simulation.stores.inventories import Inventories

OnCommit = Callable[[Sequence[tuple[Change, Allocation | None]]], None]
"""Gets the changes of one transaction, each with the row as it was."""


class SimLedger(Inventories):
    """Everything that Postgres keeps."""

    def __init__(self, *, on_commit: OnCommit, **options: Any) -> None:
        super().__init__(**options)
        self._on_commit = on_commit
        self._changes: list[tuple[Change, Allocation | None]] = []
        """Changes of the current transaction."""

    async def ping(self) -> None:
        """Always succeed."""

    async def commit(self, commands: Sequence[Command]) -> list[Change | HamiError | None]:
        """Match FakeLedger.commit, with the announcements."""
        self._changes = []
        answers = await super().commit(commands)
        self._announce(*self._changes)
        return answers

    async def enter(self, entry: Entry) -> Change:
        """Match FakeLedger.enter, with the announcement."""
        self._changes = []
        change = await super().enter(entry)
        self._announce(*self._changes)
        return change

    async def advance(self, step: StateStep) -> Change | None:
        """Match FakeLedger.advance, with the announcement."""
        self._changes = []
        change = await super().advance(step)
        self._announce(*self._changes)
        return change

    def _enter(self, entry: Entry) -> Change:
        change = super()._enter(entry)
        self._changes.append((change, None))
        return change

    def _advance(self, step: StateStep) -> Change | None:
        old = self._allocations.get(step.allocation_id)
        change = super()._advance(step)
        if change is not None:
            self._changes.append((change, old))
        return change

    def _announce(self, *changes: tuple[Change, Allocation | None]) -> None:
        for change, _old in changes:
            self._announce_one(change)
        self._on_commit(changes)

    def _announce_one(self, change: Change) -> None:
        allocation = change.allocation
        self.outbox.add(
            event_subject("allocation", allocation.state.value),
            {
                "version": 1,
                "event_id": len(self.outbox.rows) + 1,
                "allocation_id": allocation.id,
                "pod_uid": allocation.pod_uid,
                "namespace": allocation.namespace,
                "pod_name": allocation.pod_name,
                "node": allocation.node,
                "state": allocation.state.value,
                "sequence": change.sequence,
                "reason": allocation.reason,
                "at": self._clock().isoformat(),
                "counters": [
                    {
                        "node": card.node,
                        "uuid": card.uuid,
                        "used_slots": card.used_slots,
                        "used_memory_mib": card.used_memory_mib,
                        "used_core_percent": card.used_core_percent,
                        "device_version": card.version,
                    }
                    for card in change.counters
                ],
            },
        )

    def everything(self) -> Iterable[Allocation]:
        """All allocations that ever were."""
        return self._allocations.values()

    def known_usage(self, uuid: GpuUuid) -> tuple[int, int, int] | None:
        """(slots, MiB, percent) that the card's row counts; None before its first inventory."""
        card = self._cards.get(uuid)
        if card is None:
            return None
        return card.used_slots, card.used_memory_mib, card.used_core_percent

    async def set_limits(self, namespace: str, limits: Mapping[str, int]) -> None:
        """See the port QuotaStore."""
        for of, resource in list(self._quotas):
            if of == namespace and resource not in limits:
                del self._quotas[of, resource]
        used: Counter[str] = Counter()
        for allocation in self._allocations.values():
            if allocation.live and allocation.namespace == namespace:
                used.update(self._quota_of(allocation.containers))
        for resource, limit in limits.items():
            self._quotas[namespace, resource] = [limit, used[resource]]

    async def list_uses(self) -> list[QuotaUse]:
        """See the port QuotaStore."""
        return [QuotaUse(*key, limit, used) for key, (limit, used) in self._quotas.items()]

    async def drift(self, kind: str, subject: str, detail: str, *, repaired: bool) -> None:
        """Do nothing; see PostgresJournal."""

    async def outbox_lag(self) -> tuple[float, datetime | None]:
        """See LedgerQueries; a row has no moment in here."""
        return float(sum(not row.published for row in self.outbox.rows)), None

    async def last_refusals(self, uids: Sequence[str]) -> dict[str, LastRefusal]:
        """See PostgresQueries; decisions are kept elsewhere in here."""
        return {}

    async def decisions(self, pod_uid: str) -> list[dict[str, Any]]:
        """See PostgresQueries; decisions are kept elsewhere in here."""
        return []

    async def pod_cards(
        self, *, pod_uid: str | None = None, silent: Collection[NodeName] = ()
    ) -> list[PodCard]:
        """See PostgresQueries; the simulation checks no events about cards."""
        return []

    async def quota_room(self) -> dict[tuple[str, str], int]:
        """See PostgresQueries."""
        return {key: limit - used for key, (limit, used) in self._quotas.items()}


class Everlasting:
    """Port HistoryRetention over a ledger whose whole history is some minutes old."""

    async def forget(self, kind: str, *, keep_days: int) -> int:
        """Remove nothing: no row is that old."""
        return 0


class Decisions:
    """Port DecisionLog; no test asks why a pod was refused."""

    async def record(self, decisions: Sequence[DecisionRow]) -> None:
        """Do nothing."""

    async def tidy(self, *, keep_days: int) -> int:
        """Do nothing."""
        return 0

    async def open_waits(self) -> list[OpenWait]:
        """Return none: no refusal is kept."""
        return []

    async def end_waits(self, ends: Mapping[PodUid, str]) -> None:
        """Do nothing: no wait is kept."""

    async def arrivals(self, limit: int) -> list[PodRequest]:
        """Return none: this policy does not depend on the mix of pods."""
        return []
