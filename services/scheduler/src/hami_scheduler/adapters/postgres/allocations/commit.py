"""Commands of the ledger inside one transaction: grants that begin, and steps of state.

What a command needs is locked, judged on the locked rows in memory, and written together:
allocations first, then quotas, then cards. Steps that end a grant give their cards back before new
grants take theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hamicommon.domain.allocations import (
    LIVE_STATES,
    Allocation,
    AllocationState,
    ContainerGrant,
)
from hamicommon.domain.ids import AllocationId, PodUid
from hamicommon.errors import CapacityConflict, Conflict, HamiError
from hamicommon.ledger.card_rows import CardDemand, demands, wanted_by
from hamicommon.ledger.claimed import mark_counted, without
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.model import (
    Change,
    Command,
    Entry,
    QuotaOf,
    Rules,
    StateStep,
    refused_together,
)

from hami_scheduler.adapters.postgres.allocations.claims import (
    counted_elsewhere,
    passed_on,
    record_claims,
)
from hami_scheduler.adapters.postgres.allocations.locked_rows import LockedRows
from hami_scheduler.adapters.postgres.allocations.rooms import (
    find_leaving,
    record_victims,
    rules_of_room,
)
from hami_scheduler.adapters.postgres.allocations.writing import (
    NewEvent,
    insert_grants,
    write_steps,
)
from hami_scheduler.adapters.postgres.rows import (
    LIVE_SQL,
    SELECT_ALLOCATION,
    SELECT_LIGHT,
    allocation_of,
)

_LIVE_PODS = f"SELECT a.pod_uid FROM allocations a WHERE a.pod_uid = ANY($1::text[]) AND {LIVE_SQL}"
_OF_IDS = "WHERE a.id = ANY($1::uuid[])"
_LOCKED = f"{_OF_IDS} ORDER BY a.id FOR UPDATE OF a"
Answer = Change | HamiError | None


@dataclass(slots=True)
class _Row:
    """A locked allocation, as the steps of this transaction leave it."""

    allocation: Allocation
    last: StateStep | None = None
    gives: tuple[ContainerGrant, ...] = ()
    held: tuple[CardDemand, ...] = ()
    room: tuple[CardDemand, ...] = ()
    """Amounts of a room that its pod takes now."""


@dataclass(slots=True)
class _Batch:
    """Commands by their number, and what they do to the rows."""

    answers: list[Answer]
    rows: dict[AllocationId, _Row] = field(default_factory=dict)
    stepped: dict[int, NewEvent] = field(default_factory=dict)
    granted: dict[int, Entry] = field(default_factory=dict)


async def commit(
    connection: Connection, commands: Sequence[Command], rules: Rules, quota_of: QuotaOf
) -> list[Answer]:
    """Carry out the commands.

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
    """Lock the steps' allocations; those that end or get a new token are read whole."""
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
    """Compute what the ended allocation gives back.

    A slice that other pods hold is counted for one of those from now on.
    """
    old = row.allocation
    assert row.last is not None
    kept = await passed_on(connection, old, row.last.actor)
    row.gives = without(old.containers, old.claims, kept) if kept else old.containers
    row.held = demands(row.gives)


async def _with_shared_claims(connection: Connection, entry: Entry, quota_of: QuotaOf) -> Entry:
    """The entry without the slices that are counted for others who hold them."""
    if not entry.claims:
        return entry
    held = await counted_elsewhere(connection, entry.claims)
    if not held:
        return entry
    placement = entry.draft.placement
    containers = without(placement.containers, entry.claims, held)
    draft = replace(
        entry.draft,
        placement=replace(placement, containers=containers),
        quota=quota_of(containers),
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
    """Count the grant, or nothing.

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
    ledger.take(draft.allocation_id, wanted, held=not entry.guarded or entry.room is not None)
    live.add(draft.pod_uid)


def _take_back(
    ledger: LockedRows,
    batch: _Batch,
    name: str,
    why: HamiError,
    wanted: Mapping[int, Sequence[CardDemand]],
) -> None:
    """Count no entry of this name, one of which was refused."""
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
            allocation=_granted(entry, row),
            sequence=row["sequence"],
            counters=ledger.counters(card.uuid for card in wanted[number]),
            quotas=ledger.quota_use(entry.draft.namespace, entry.draft.quota),
        )


def _granted(entry: Entry, row: Any) -> Allocation:
    draft = entry.draft
    return Allocation(
        id=draft.allocation_id,
        pod_uid=draft.pod_uid,
        namespace=draft.namespace,
        pod_name=draft.pod_name,
        attempt=row["attempt"],
        node=draft.placement.node,
        state=entry.state,
        token=row["token"],
        containers=draft.placement.containers,
        claims=entry.claims,
        reserved_at=row["reserved_at"],
        deadline=row["deadline"],
        traceparent=draft.traceparent,
        reason=entry.reason,
        annotations=draft.annotations,
        origin=entry.origin,
        has_agent=row["has_agent"],
    )
