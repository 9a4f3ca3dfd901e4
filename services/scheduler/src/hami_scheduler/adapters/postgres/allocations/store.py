"""The ledger of grants in Postgres: reserve, change state, move, read.

Every method is one transaction: cards and quota (guarded), the allocation's row, its event with the
pod's next number, and the outbox row that announces it. What was announced goes on in
`hamicommon.ledger.outbox`; the counters go to the view of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import AllocationId
from hamicommon.errors import Conflict, HamiError
from hamicommon.ledger.cards.moves import Move, quota_changes
from hamicommon.ledger.constraints import ConstraintViolation
from hamicommon.ledger.database import Database
from hamicommon.ledger.model import (
    BindingClaim,
    Change,
    Draft,
    Entry,
    QuotaOf,
    ReservationWrite,
    Rules,
    StateStep,
)

from hami_scheduler.adapters.postgres.allocations.batches.reserving import ReservationsTogether
from hami_scheduler.adapters.postgres.allocations.batches.steps import StepsTogether
from hami_scheduler.adapters.postgres.allocations.cards import (
    Swap,
    exchange_cards,
    take_quota,
)
from hami_scheduler.adapters.postgres.allocations.entering import enter
from hami_scheduler.adapters.postgres.allocations.moving import record_move
from hami_scheduler.adapters.postgres.allocations.reads import PostgresLedgerReader, locked
from hami_scheduler.adapters.postgres.allocations.reserving import Reservations
from hami_scheduler.adapters.postgres.allocations.steps import Steps

ANNOTATE = """
UPDATE allocations a SET annotations = a.annotations || $3::jsonb
 WHERE a.id = $1 AND a.token = $2 AND a.ended_at IS NULL
RETURNING a.id
"""


class PostgresAllocationStore(PostgresLedgerReader):
    """Ports AllocationStore and LedgerReader.

    `quota_of` returns what an allocation's slices count in quotas, `rules` which rules of the loop
    the vendors of its cards have; `on_commit` is called after each change, so that the outbox is
    looked at without delay.
    """

    def __init__(
        self,
        database: Database,
        *,
        quota_of: QuotaOf,
        rules: Rules = MappingProxyType({}),
        on_commit: Callable[[], None],
    ) -> None:
        super().__init__(database)
        self._rules = rules
        self._quota_of = quota_of
        self._on_commit = on_commit
        self._reservations = Reservations(
            database, quota_of=quota_of, rules=rules, on_commit=on_commit
        )
        self._reservations_together = ReservationsTogether(
            database, self._reservations, rules=rules, on_commit=on_commit
        )
        self._steps = Steps(database, quota_of=quota_of, on_commit=on_commit)
        self._steps_together = StepsTogether(database, self._steps, on_commit=on_commit)

    async def reserve(self, draft: Draft) -> Change:
        """See the port."""
        return await self._reservations.reserve(draft)

    async def reserve_all(self, writes: Sequence[ReservationWrite]) -> list[Change | HamiError]:
        """See the port."""
        return await self._reservations_together.reserve_all(writes)

    async def enter(self, entry: Entry) -> Change:
        """See the port."""
        try:
            async with self._database.transaction() as connection:
                change = await enter(connection, entry, self._rules, self._quota_of)
        except ConstraintViolation as exc:
            uid = entry.draft.pod_uid
            raise Conflict(f"pod {uid} has a grant by somebody else: {exc}") from exc
        self._on_commit()
        return change

    async def advance(self, step: StateStep) -> Change | None:
        """See the port."""
        return await self._steps.advance(step)

    async def advance_all(self, steps: Sequence[StateStep]) -> list[bool]:
        """See the port."""
        return await self._steps_together.advance_all(steps)

    async def claim_all(self, claims: Sequence[BindingClaim]) -> list[Allocation | None]:
        """See the port."""
        return await self._steps_together.claim_all(claims)

    async def move(self, moves: Sequence[Move]) -> tuple[Change, ...] | None:
        """See the port."""
        async with self._database.transaction() as connection:
            moved: list[tuple[Allocation, Move]] = []
            for move in sorted(moves, key=lambda move: move.allocation_id):
                old = await locked(connection, move.allocation_id)
                if old is None or old.token != move.token or not old.live:
                    return None
                moved.append((old, move))
            for namespace, amounts in quota_changes(moved, self._quota_of).items():
                await take_quota(connection, namespace, amounts)
            swaps = [Swap.of(old, move, self._rules) for old, move in moved]
            counters = await exchange_cards(connection, swaps)
            changes = [await record_move(connection, swap, counters) for swap in swaps]
        self._on_commit()
        return tuple(changes)

    async def annotate(
        self, allocation_id: AllocationId, token: int, annotations: Mapping[str, str]
    ) -> bool:
        """See the port."""
        row = await self._database.fetchrow(ANNOTATE, allocation_id, token, dict(annotations))
        return row is not None
