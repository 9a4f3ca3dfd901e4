"""The ledger of grants in Postgres: commands and reads.

Each command is one transaction with its events. What was written is announced by
`hamicommon.ledger.outbox`; the counters go to the view of the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import Conflict, HamiError
from hamicommon.ledger.constraints import ConstraintViolation
from hamicommon.ledger.database import Database
from hamicommon.ledger.model import Change, Command, Draft, Entry, QuotaOf, Rules, StateStep

from hami_scheduler.adapters.postgres.allocations.commit import commit
from hami_scheduler.adapters.postgres.rows import (
    LIVE_SQL,
    SELECT_ALLOCATION,
    SELECT_STANDING,
    SELECT_STANDING_OF,
    allocation_of,
)

# Some 3 ms of the event loop; tens of thousands at once would hold decisions up for a second.
STANDING_BATCH = 256

_ANNOTATE = """
UPDATE allocations a SET annotations = a.annotations || $3::jsonb
 WHERE a.id = $1 AND a.token = $2 AND a.ended_at IS NULL
RETURNING a.id
"""


class PostgresAllocationStore:
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
        self._database = database
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
        if isinstance(answer, HamiError):
            raise answer
        return answer

    async def annotate(
        self, allocation_id: AllocationId, token: int, annotations: Mapping[str, str]
    ) -> bool:
        """See the port."""
        row = await self._database.fetchrow(_ANNOTATE, allocation_id, token, dict(annotations))
        return row is not None

    async def get(self, allocation_id: AllocationId) -> Allocation | None:
        """See the port."""
        return await self._one("a.id = $1", allocation_id)

    async def live_of(self, pod_uid: PodUid) -> Allocation | None:
        """See the port."""
        return await self._one(f"a.pod_uid = $1 AND {LIVE_SQL}", pod_uid)

    async def live(self, node: NodeName | None = None) -> list[Allocation]:
        """See the port."""
        where = f"{LIVE_SQL} AND ($1::text IS NULL OR a.node = $1)"
        return await self._many(where, node)

    async def standing(self) -> AsyncIterator[list[Allocation]]:
        """See the port."""
        after = ""
        while rows := await self._database.fetch(SELECT_STANDING, after, STANDING_BATCH):
            yield [allocation_of(row) for row in rows]
            after = rows[-1]["pod_uid"]

    async def standing_of(self, pod_uids: Sequence[PodUid]) -> list[Allocation]:
        """See the port."""
        rows = await self._database.fetch(SELECT_STANDING_OF, list(pod_uids))
        return [allocation_of(row) for row in rows]

    async def whole(self, ids: Sequence[AllocationId]) -> list[Allocation]:
        """See the port."""
        return await self._many("a.id = ANY($1::uuid[])", list(ids))

    async def overdue(self) -> list[Allocation]:
        """See the port."""
        return await self._many(f"a.deadline < now() AND {LIVE_SQL}")

    async def late(self, after_s: float) -> list[Allocation]:
        """See the port."""
        return await self._many(
            "a.state = 'bound' AND a.bound_at < now() - make_interval(secs => $1)", after_s
        )

    async def _one(self, where: str, *args: object) -> Allocation | None:
        row = await self._database.fetchrow(f"{SELECT_ALLOCATION} WHERE {where}", *args)
        return None if row is None else allocation_of(row)

    async def _many(self, where: str, *args: object) -> list[Allocation]:
        rows = await self._database.fetch(f"{SELECT_ALLOCATION} WHERE {where}", *args)
        return [allocation_of(row) for row in rows]
