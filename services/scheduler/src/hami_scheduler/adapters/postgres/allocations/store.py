"""Ledger of grants in Postgres: commands and reads.

Commands that arrive together are one transaction with their events. The rows that they need are
locked, checked in memory, and written together: allocations first, then quotas, then cards. Steps
that end a grant free its cards before new grants take cards. `hamicommon.ledger.outbox` announces
the changes; the counters go to the view of the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from hamicommon.domain.allocations import LIVE_STATES, Allocation, AllocationState, ContainerGrant
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import CapacityConflict, Conflict, HamiError
from hamicommon.ledger.card_rows import CardDemand, CardRow, demands, wanted_by
from hamicommon.ledger.claimed import mark_counted, without
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.constraints import ConstraintViolation
from hamicommon.ledger.database import Database
from hamicommon.ledger.model import (
    Change,
    Command,
    Draft,
    Entry,
    QuotaOf,
    Rules,
    StateStep,
    refused_together,
)

from hami_scheduler.adapters.postgres.allocations.locked_rows import LockedRows
from hami_scheduler.adapters.postgres.allocations.rooms import (
    find_leaving,
    record_victims,
    rules_of_room,
)
from hami_scheduler.adapters.postgres.allocations.writing import (
    NewEvent,
    counted_elsewhere,
    insert_grants,
    passed_on,
    record_claims,
    write_steps,
)
from hami_scheduler.adapters.postgres.rows import (
    LIVE_SQL,
    SELECT_ALLOCATION,
    SELECT_LIGHT,
    SELECT_STANDING,
    SELECT_STANDING_OF,
    allocation_of,
)

_LIVE_PODS = f"SELECT a.pod_uid FROM allocations a WHERE a.pod_uid = ANY($1::text[]) AND {LIVE_SQL}"
_OF_IDS = "WHERE a.id = ANY($1::uuid[])"
_LOCKED = f"{_OF_IDS} ORDER BY a.id FOR UPDATE OF a"
Answer = Change | HamiError | None


@dataclass(slots=True)
class _Row:
    """Locked allocation as changed by this transaction."""

    allocation: Allocation
    last: StateStep | None = None
    gives: tuple[ContainerGrant, ...] = ()
    held: tuple[CardDemand, ...] = ()
    room: tuple[CardDemand, ...] = ()
    """Amounts of a room that its pod takes now."""


@dataclass(slots=True)
class _Batch:
    """Commands by number, with their effects on the rows."""

    answers: list[Answer]
    rows: dict[AllocationId, _Row] = field(default_factory=dict)
    stepped: dict[int, NewEvent] = field(default_factory=dict)
    granted: dict[int, Entry] = field(default_factory=dict)


async def commit(
    connection: Connection, commands: Sequence[Command], rules: Rules, quota_of: QuotaOf
) -> list[Answer]:
    """Carry out commands in one transaction.

    For each its change, why a grant was refused, or None for a step that is not due.

    Raises: Conflict and Unavailable for all of them, when one could not be written.
    """
    batch = _Batch([None] * len(commands))
    steps = [(i, each) for i, each in enumerate(commands) if isinstance(each, StateStep)]
    entries = [(i, each) for i, each in enumerate(commands) if isinstance(each, Entry)]
    batch.rows = await _lock(connection, [step for _, step in steps])
    for number, step in steps:
        _take_step(batch, number, step)
    for row in batch.rows.values():
        if row.last is not None and row.last.target not in LIVE_STATES:
            await _prepare_end(connection, row)
    entries = [(i, await _with_shared_claims(connection, each, quota_of)) for i, each in entries]
    wanted = {i: wanted_by(each.draft, rules) for i, each in entries}
    leaving = {i: await find_leaving(connection, e.room) for i, e in entries if e.room is not None}
    taken = {
        number: row
        for number, event in batch.stepped.items()
        if event.previous is AllocationState.RESERVED and event.state is AllocationState.BINDING
        for row in (batch.rows[event.allocation_id],)
    }
    for row in taken.values():
        row.room = await rules_of_room(connection, row.allocation, rules)

    ending = [row for row in batch.rows.values() if row.held or row.gives]
    ledger = await LockedRows.lock(
        connection,
        namespaces={each.draft.namespace for _, each in entries if each.draft.quota}
        | {row.allocation.namespace for row in ending if quota_of(row.gives)},
        cards={card.uuid for cards in wanted.values() for card in cards}
        | {card.uuid for row in ending for card in row.held}
        | {card.uuid for row in taken.values() for card in row.room},
    )
    for row in ending:
        ledger.count_quota(row.allocation.namespace, quota_of(row.gives), -1)
        ledger.give_back(row.allocation.id, row.held)
    for number, row in taken.items():
        try:
            ledger.take_room(row.allocation.id, row.allocation.node, row.room)
        except CapacityConflict as exc:
            batch.answers[number], row.last = exc, None
            del batch.stepped[number]
    live = await _live_pods(connection, [each.draft.pod_uid for _, each in entries])
    refused: dict[str, HamiError] = {}
    for number, entry in entries:
        try:
            if entry.together in refused:
                raise refused_together(entry, refused[entry.together])
            _grant(ledger, live, entry, wanted[number], leaving.get(number))
        except Conflict as exc:
            batch.answers[number] = exc
            if entry.together and entry.together not in refused:
                refused[entry.together] = exc
                _take_back(ledger, batch, entry.together, exc, wanted)
        else:
            batch.granted[number] = entry
    await ledger.write(connection)
    if batch.stepped:
        await _write_steps(connection, batch, ledger, quota_of)
    if batch.granted:
        await _write_grants(connection, batch, ledger, wanted)
    return batch.answers


async def _lock(connection: Connection, steps: Sequence[StateStep]) -> dict[AllocationId, _Row]:
    """Lock the steps' allocations; those that end or get a new token are read completely."""
    if not steps:
        return {}
    ids = sorted({step.allocation_id for step in steps})
    rows = await connection.fetch(f"{SELECT_LIGHT} {_LOCKED}", ids)
    whole = {s.allocation_id for s in steps if s.new_token or s.target not in LIVE_STATES}
    found = {AllocationId(row["id"]): allocation_of(row) for row in rows}
    if whole:
        rows = await connection.fetch(f"{SELECT_ALLOCATION} {_OF_IDS}", sorted(whole))
        found |= {AllocationId(row["id"]): allocation_of(row) for row in rows}
    return {identity: _Row(allocation) for identity, allocation in found.items()}


def _take_step(batch: _Batch, number: int, step: StateStep) -> None:
    row = batch.rows.get(step.allocation_id)
    if row is None or not _is_due(row.allocation, step):
        return
    batch.stepped[number] = NewEvent(
        allocation_id=row.allocation.id,
        pod_uid=row.allocation.pod_uid,
        previous=row.allocation.state,
        state=step.target,
        reason=step.reason,
        actor=step.actor,
    )
    # Of several steps of one allocation the last is written, with a token if one of them wants it.
    before = row.last
    row.last = (
        step if before is None else replace(step, new_token=before.new_token or step.new_token)
    )
    row.allocation = replace(row.allocation, state=step.target, reason=step.reason)


def _is_due(allocation: Allocation, step: StateStep) -> bool:
    return (
        allocation.state in step.sources
        and (step.token is None or allocation.token == step.token)
        and (step.node is None or allocation.node == step.node)
    )


async def _prepare_end(connection: Connection, row: _Row) -> None:
    """Compute the amounts that the ended allocation returns.

    A slice that other pods hold is counted for one of those from now on.
    """
    old = row.allocation
    assert row.last is not None
    kept = await passed_on(connection, old, row.last.actor)
    row.gives = without(old.containers, old.claims, kept) if kept else old.containers
    row.held = demands(row.gives)


async def _with_shared_claims(connection: Connection, entry: Entry, quota_of: QuotaOf) -> Entry:
    """Return the entry without slices that count for another pod."""
    if not entry.claims:
        return entry
    held = await counted_elsewhere(connection, entry.claims)
    if not held:
        return entry
    placement = entry.draft.placement
    containers = without(placement.containers, entry.claims, held)
    draft = replace(
        entry.draft, placement=replace(placement, containers=containers), quota=quota_of(containers)
    )
    return replace(entry, draft=draft, claims=mark_counted(entry.claims, held))


async def _live_pods(connection: Connection, pod_uids: Sequence[PodUid]) -> set[PodUid]:
    if not pod_uids:
        return set()
    rows = await connection.fetch(_LIVE_PODS, list(pod_uids))
    return {PodUid(row["pod_uid"]) for row in rows}


def _grant(
    ledger: LockedRows,
    live: set[PodUid],
    entry: Entry,
    wanted: Sequence[CardDemand],
    leaving: Sequence[Allocation] | None,
) -> None:
    """Count the grant, or nothing if it is refused.

    A room counts beside the grants in `leaving`, and must fit without them.

    Raises: Conflict, QuotaConflict, CapacityConflict.
    """
    draft, node = entry.draft, entry.draft.placement.node
    if draft.pod_uid in live:
        raise Conflict(f"pod {draft.pod_uid} has a grant already")
    if entry.guarded:
        ledger.check_quota(draft.namespace, draft.quota)
        gone = {each.id: demands(each.containers) for each in leaving or ()}
        ledger.check_cards(node, wanted, without=gone)
    else:
        ledger.check_present(node, wanted)
    ledger.count_quota(draft.namespace, draft.quota, 1)
    if entry.room is not None:
        ledger.take(draft.allocation_id, wanted, CardRow.count_room)
    else:
        ledger.take(
            draft.allocation_id, wanted, CardRow.take if entry.guarded else CardRow.count_held
        )
    live.add(draft.pod_uid)


def _take_back(
    ledger: LockedRows,
    batch: _Batch,
    name: str,
    why: HamiError,
    wanted: Mapping[int, Sequence[CardDemand]],
) -> None:
    """Undo the entries of this name, because one of them was refused."""
    for number, entry in list(batch.granted.items()):
        if entry.together == name:
            draft = entry.draft
            ledger.give_back(draft.allocation_id, wanted[number])
            ledger.count_quota(draft.namespace, draft.quota, -1)
            batch.answers[number] = refused_together(entry, why)
            del batch.granted[number]


async def _write_steps(
    connection: Connection, batch: _Batch, ledger: LockedRows, quota_of: QuotaOf
) -> None:
    last = [row.last for row in batch.rows.values() if row.last is not None]
    rows = await write_steps(connection, last, list(batch.stepped.values()))
    for (number, event), new in zip(batch.stepped.items(), rows, strict=True):
        row = batch.rows[event.allocation_id]
        ends = event.state not in LIVE_STATES
        batch.answers[number] = Change(
            allocation=replace(
                row.allocation,
                state=event.state,
                reason=event.reason,
                token=new["token"],
                deadline=new["deadline"],
            ),
            sequence=new["sequence"],
            counters=ledger.counters(card.uuid for card in (row.held if ends else row.room)),
            quotas=ledger.quota_use(row.allocation.namespace, quota_of(row.gives) if ends else {}),
        )


async def _write_grants(
    connection: Connection,
    batch: _Batch,
    ledger: LockedRows,
    wanted: dict[int, tuple[CardDemand, ...]],
) -> None:
    granted = batch.granted
    events = [
        NewEvent(
            allocation_id=entry.draft.allocation_id,
            pod_uid=entry.draft.pod_uid,
            previous=None,
            state=entry.state,
            reason=entry.reason,
            actor=entry.draft.actor,
            detail=entry.evidence,
        )
        for entry in granted.values()
    ]
    rows = await insert_grants(connection, list(granted.values()), events)
    for (number, entry), row in zip(granted.items(), rows, strict=True):
        await record_claims(connection, entry.draft.allocation_id, entry.claims)
        if entry.room is not None:
            await record_victims(connection, entry.draft.allocation_id, entry.room)
        batch.answers[number] = Change(
            allocation=_new_allocation(entry, row),
            sequence=row["sequence"],
            counters=ledger.counters(card.uuid for card in wanted[number]),
            quotas=ledger.quota_use(entry.draft.namespace, entry.draft.quota),
        )


def _new_allocation(entry: Entry, row: Any) -> Allocation:
    draft = entry.draft
    return Allocation(
        **{key: row[key] for key in ("attempt", "token", "reserved_at", "deadline", "has_agent")},
        id=draft.allocation_id,
        pod_uid=draft.pod_uid,
        namespace=draft.namespace,
        pod_name=draft.pod_name,
        node=draft.placement.node,
        state=entry.state,
        containers=draft.placement.containers,
        claims=entry.claims,
        traceparent=draft.traceparent,
        reason=entry.reason,
        annotations=draft.annotations,
        origin=entry.origin,
    )


# Some 3 ms of the event loop; tens of thousands in one batch would delay decisions for a second.
STANDING_BATCH = 256

_ANNOTATE = """
UPDATE allocations a SET annotations = a.annotations || $3::jsonb
 WHERE a.id = $1 AND a.token = $2 AND a.ended_at IS NULL
RETURNING a.id
"""


@dataclass(eq=False)
class PostgresAllocationStore:
    """Store and reader of grants in the ledger.

    `quota_of` returns what an allocation's slices count in quotas, `rules` the rules of the vendors
    of its cards; `on_commit` is called after each change, so that it is announced without delay.
    """

    database: Database
    _: KW_ONLY
    quota_of: QuotaOf
    rules: Rules = field(default_factory=dict)
    on_commit: Callable[[], None]

    async def commit(self, commands: Sequence[Command]) -> list[Change | HamiError | None]:
        """Commit commands together; steps that end a grant come before new grants."""
        try:
            async with self.database.transaction() as connection:
                answers = await commit(connection, commands, self.rules, self.quota_of)
        except ConstraintViolation as exc:
            raise Conflict(f"the ledger changed at the same moment: {exc}") from exc
        self.on_commit()
        return answers

    async def begin(self, draft: Draft) -> Change:
        """Take the cards and write the allocation in state `binding`, with a fencing token."""
        return await self.enter(Entry(draft=draft))

    async def enter(self, entry: Entry) -> Change:
        """Write a grant as the entry describes it, with token and evidence."""
        [answer] = await self.commit([entry])
        if isinstance(answer, HamiError):
            raise answer
        assert answer is not None
        return answer

    async def advance(self, step: StateStep) -> Change | None:
        """Change the state if the row still allows it; otherwise return None."""
        [answer] = await self.commit([step])
        if isinstance(answer, HamiError):
            raise answer
        return answer

    async def annotate(
        self, allocation_id: AllocationId, token: int, annotations: Mapping[str, str]
    ) -> bool:
        """Keep further annotations that the pod must have while the grant is live."""
        row = await self.database.fetchrow(_ANNOTATE, allocation_id, token, dict(annotations))
        return row is not None

    async def get(self, allocation_id: AllocationId) -> Allocation | None:
        """Return the allocation. Raises: Unavailable."""
        return await self._one("a.id = $1", allocation_id)

    async def live_of(self, pod_uid: PodUid) -> Allocation | None:
        """Return the pod's live allocation. Raises: Unavailable."""
        return await self._one(f"a.pod_uid = $1 AND {LIVE_SQL}", pod_uid)

    async def live(self, node: NodeName | None = None) -> list[Allocation]:
        """Return all live allocations, of one node or of all. Raises: Unavailable."""
        where = f"{LIVE_SQL} AND ($1::text IS NULL OR a.node = $1)"
        return await self._many(where, node)

    async def standing(self) -> AsyncIterator[list[Allocation]]:
        """Yield all live allocations without containers, some hundreds at a time."""
        after = ""
        while rows := await self.database.fetch(SELECT_STANDING, after, STANDING_BATCH):
            yield [allocation_of(row) for row in rows]
            after = rows[-1]["pod_uid"]

    async def standing_of(self, pod_uids: Sequence[PodUid]) -> list[Allocation]:
        """Return the live allocations of these pods, without containers. Raises: Unavailable."""
        rows = await self.database.fetch(SELECT_STANDING_OF, list(pod_uids))
        return [allocation_of(row) for row in rows]

    async def whole(self, ids: Sequence[AllocationId]) -> list[Allocation]:
        """Return these allocations with containers; a few hundred at most. Raises: Unavailable."""
        return await self._many("a.id = ANY($1::uuid[])", list(ids))

    async def overdue(self) -> list[Allocation]:
        """Return live allocations past their deadline. Raises: Unavailable."""
        return await self._many(f"a.deadline < now() AND {LIVE_SQL}")

    async def late(self, after_s: float) -> list[Allocation]:
        """Return allocations still `bound` so long after the binding. Raises: Unavailable."""
        return await self._many(
            "a.state = 'bound' AND a.bound_at < now() - make_interval(secs => $1)", after_s
        )

    async def _one(self, where: str, *args: object) -> Allocation | None:
        row = await self.database.fetchrow(f"{SELECT_ALLOCATION} WHERE {where}", *args)
        return None if row is None else allocation_of(row)

    async def _many(self, where: str, *args: object) -> list[Allocation]:
        rows = await self.database.fetch(f"{SELECT_ALLOCATION} WHERE {where}", *args)
        return [allocation_of(row) for row in rows]
