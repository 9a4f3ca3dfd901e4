"""The ledger of grants in Postgres: commands, moves, reads.

Each call is one transaction with its events and announcements. What was announced goes on in
`hamicommon.ledger.outbox`; the counters go to the view of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hamicommon.domain.ids import AllocationId
from hamicommon.errors import Conflict, HamiError
from hamicommon.ledger.cards.moves import Move
from hamicommon.ledger.constraints import ConstraintViolation
from hamicommon.ledger.database import Database
from hamicommon.ledger.model import Change, Command, Draft, Entry, QuotaOf, Rules, StateStep

from hami_scheduler.adapters.postgres.allocations.commit import commit
from hami_scheduler.adapters.postgres.allocations.moving import move
from hami_scheduler.adapters.postgres.allocations.reads import PostgresLedgerReader

_ANNOTATE = """
UPDATE allocations a SET annotations = a.annotations || $3::jsonb
 WHERE a.id = $1 AND a.token = $2 AND a.ended_at IS NULL
RETURNING a.id
"""


class PostgresAllocationStore(PostgresLedgerReader):
    """Ports AllocationStore and LedgerReader.

    `quota_of` returns what an allocation's slices count in quotas, `rules` the rules of the vendors
    of its cards; `on_commit` is called after each change, so that it is announced without delay.
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

    async def commit(self, commands: Sequence[Command]) -> list[Change | HamiError | None]:
        """See the port."""
        try:
            async with self._database.transaction() as connection:
                answers = await commit(connection, commands, self._rules, self._quota_of)
        except ConstraintViolation as exc:
            raise Conflict(f"the ledger changed at the same moment: {exc}") from exc
        self._on_commit()
        return answers

    async def begin(self, draft: Draft) -> Change:
        """See the port."""
        return await self.enter(Entry(draft=draft))

    async def enter(self, entry: Entry) -> Change:
        """See the port."""
        [answer] = await self.commit([entry])
        if isinstance(answer, HamiError):
            raise answer
        assert answer is not None
        return answer

    async def advance(self, step: StateStep) -> Change | None:
        """See the port."""
        [answer] = await self.commit([step])
        assert not isinstance(answer, HamiError)
        return answer

    async def move(self, moves: Sequence[Move]) -> tuple[Change, ...] | None:
        """See the port."""
        async with self._database.transaction() as connection:
            changes = await move(connection, moves, self._rules, self._quota_of)
        self._on_commit()
        return changes

    async def annotate(
        self, allocation_id: AllocationId, token: int, annotations: Mapping[str, str]
    ) -> bool:
        """See the port."""
        row = await self._database.fetchrow(_ANNOTATE, allocation_id, token, dict(annotations))
        return row is not None
