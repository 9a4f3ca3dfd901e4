"""Every statement that services send to Postgres, once: grants, cards, quotas, decisions, usage.

`speak` plays it with the code of this version. What a version sent is recorded, so that the code of
an older version can be heard by a newer schema:

    python -m tests.integration.db.migrations.conversation DSN FILE  (an empty database)
"""

import asyncio
import base64
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import asyncpg
from hami_metrics.adapters.ledger import PostgresLedger
from hami_metrics.adapters.postgres import PostgresUsageStore
from hami_metrics.domain.samples import FINE_S, Sample, Series, bucket_of
from hami_scheduler.adapters.postgres.allocations.store import PostgresAllocationStore
from hami_scheduler.adapters.postgres.decisions import PostgresDecisionLog
from hami_scheduler.adapters.postgres.housekeeping import PostgresJournal
from hami_scheduler.adapters.postgres.inventory import PostgresInventory
from hami_scheduler.adapters.postgres.queries import PostgresQueries
from hami_scheduler.adapters.postgres.quotas import PostgresQuotas
from hami_scheduler.ports.ledger import AgentInventory, DecisionRow
from hamicommon.bus.client import Outgoing
from hamicommon.domain.allocations import AllocationState as S
from hamicommon.domain.allocations import ContainerGrant, DeviceShare, Placement
from hamicommon.domain.devices import GpuDevice, NodeInventory
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.ledger import pool as connections
from hamicommon.ledger.database import Database, open_database
from hamicommon.ledger.model import Draft, StateStep
from hamicommon.ledger.outbox.relay import OutboxRelay
from hamicommon.ledger.pool import open_pool
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

NODE = NodeName("node-a")
RESOURCE = "nvidia.com/gpumem"
HERE = Path(__file__).parent


def _ids() -> Iterator[AllocationId]:
    return (AllocationId(f"00000000-0000-4000-8000-{n:012}") for n in range(1, 100))


def _container(*cards: str) -> ContainerGrant:
    shares = tuple(
        DeviceShare(uuid=GpuUuid(card), vendor="NVIDIA", memory_mib=100, core_percent=10)
        for card in cards
    )
    return ContainerGrant(index=0, name="main", role="app", shares=shares)


def _draft(allocation: AllocationId, pod: str, *cards: str, **changes: Any) -> Draft:
    placement = Placement(node=NODE, containers=(_container(*cards),))
    given: dict[str, Any] = {"lease_s": 60.0, "quota": {RESOURCE: 100}, **changes}
    return Draft(
        allocation_id=allocation,
        pod_uid=PodUid(pod),
        namespace="team",
        pod_name=pod,
        placement=placement,
        **given,
    )


class _Heard:
    """A bus that takes everything."""

    connected = True

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[None]:
        return [None for _ in messages]


async def speak(dsn: str) -> None:
    """The scheduler's part, then that of the metrics service."""
    settings = PostgresSettings(dsn=SecretStr(dsn), pool_max=1)
    async with open_database(settings, application="test") as database:
        await _cards(database)
        await _grants(database)
        await _decisions(database)
        await _use_other_stores(database)
    async with open_pool(settings, "test") as pool:
        await _usage(PostgresUsageStore(pool))
        await PostgresLedger(pool).snapshot()


async def _cards(database: Database) -> None:
    inventory = PostgresInventory(database, on_commit=_nothing)
    for sequence, healthy in enumerate((True, False, True)):
        cards = tuple(
            GpuDevice(
                uuid=GpuUuid(f"GPU-{n}"),
                index=n,
                vendor="NVIDIA",
                type="NVIDIA A100",
                slots=4,
                memory_mib=1000,
                core_percent=100,
                healthy=healthy,
            )
            for n in range(3)
        )
        reported = NodeInventory(node=NODE, devices=cards, observed_at=datetime.now(UTC))
        report = AgentInventory(inventory=reported, agent_id="a", sequence=sequence + 1)
        await inventory.record_all([report])
    await inventory.set_cordoned(NODE, frozenset({GpuUuid("GPU-2")}))
    await inventory.cards()
    await inventory.versions()
    await inventory.tally()
    quotas = PostgresQuotas(database, quota_of=lambda _: {RESOURCE: 100})
    await quotas.set_limits("team", {RESOURCE: 10_000})
    await quotas.list_uses()


async def _grants(database: Database) -> None:
    store = PostgresAllocationStore(
        database, quota_of=lambda _: {RESOURCE: 100}, on_commit=_nothing
    )
    ids = _ids()
    whole = next(ids)
    await store.begin(_draft(whole, "pod-1", "GPU-0"))
    for source, target in ((S.BINDING, S.BINDING), (S.BINDING, S.BOUND), (S.BOUND, S.ALLOCATED)):
        step = StateStep(
            allocation_id=whole,
            sources=frozenset({source}),
            target=target,
            new_token=target is S.BINDING,
            lease_s=30.0,
        )
        await store.advance(step)
    second = next(ids)
    await store.begin(_draft(second, "pod-2", "GPU-0", "GPU-1", quota={}))
    for allocation, end in ((whole, S.RELEASED), (second, S.EXPIRED)):
        row = await store.get(allocation)
        assert row is not None
        step = StateStep(allocation_id=row.id, sources=frozenset({row.state}), target=end)
        await store.advance(step)
    await store.begin(_draft(next(ids), "pod-2", "GPU-1", quota={}))
    await store.begin(_draft(next(ids), "pod-3", "GPU-1", quota={}))
    await store.live(NODE)
    await store.overdue()
    async for _ in store.standing():
        pass
    relay = OutboxRelay(database, _Heard(), until_idle=asyncio.Event().wait)
    await relay.relay_once()


async def _decisions(database: Database) -> None:
    log = PostgresDecisionLog(database)
    for outcome in ("refused", "refused", "placed"):
        await log.record([_decision(outcome)])
    await log.tidy(keep_days=14)


def _decision(outcome: str) -> DecisionRow:
    return DecisionRow(
        pod_uid=PodUid("pod-9"),
        namespace="team",
        pod_name="pod-9",
        outcome=outcome,
        node=None,
        allocation_id=None,
        candidates=1,
        request={},
        policy={},
        reason_counts={"memory": 1},
        detail=b"\x00",
        inventory=None,
        counters=None,
        message="no",
        summary="no",
        view_version=1,
        phase_ms={},
        trace_id="",
        decided_at=datetime.now(UTC),
    )


async def _use_other_stores(database: Database) -> None:
    await PostgresJournal(database).drift("c", "s", "d", repaired=True)
    queries = PostgresQueries(database)
    await queries.allocations(namespace="team")
    await queries.nodes()
    await queries.devices()
    await queries.history("pod-1")
    await queries.decisions("pod-9")
    await queries.held_at(datetime.now(UTC), [NODE], "team")
    await queries.unhealthy_since(["GPU-0"], datetime.now(UTC))
    await queries.outbox_lag()
    await queries.last_refusals(["pod-9"])
    await queries.quota_room()
    await PostgresInventory(database, on_commit=_nothing).mark_gone(NODE)


async def _usage(store: PostgresUsageStore) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    sample = Sample(
        series=Series(node=NODE, device_uuid="GPU-0", pod_uid="pod-1", namespace="team"),
        sampled_at=now,
        core_percent=1.0,
    )
    await store.write([sample])
    await store.sum_up(NODE, bucket_of(now, FINE_S))
    await store.unsummed_buckets(now - timedelta(hours=1))
    await _keep(store, now)


async def _keep(store: PostgresUsageStore, now: datetime) -> None:
    await store.keep_samples(now.date(), 3)
    await store.sum_up_namespaces(now + timedelta(hours=1))
    await store.forget_namespaces(3600, now - timedelta(days=1))
    await store.forget_rollups(FINE_S, now - timedelta(days=1))


def _nothing() -> None:
    """Ignore the outbox: no relay runs here."""


@contextlib.contextmanager
def record_statements(sent: list[tuple[str, Any]]) -> Iterator[None]:
    """Record statements of all services' pools in order, except the driver's own."""
    prepare = connections._prepare

    def note(query: asyncpg.connection.LoggedQuery) -> None:
        if query.exception is None and "typeinfo_tree" not in query.query:
            sent.append((query.query.strip(), _encode_value(query.args)))

    async def prepare_with_logger(connection: Any) -> None:
        await prepare(connection)
        connection.add_query_logger(note)

    with mock.patch.object(connections, "_prepare", prepare_with_logger):
        yield


def _encode_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return {"$at": value.isoformat()}
    if isinstance(value, date):
        return {"$day": value.isoformat()}
    if isinstance(value, timedelta):
        return {"$s": value.total_seconds()}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _encode_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_encode_value(item) for item in value]
    return value


def decode_value(value: Any) -> Any:
    """The other way round."""
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$at" in value:
        return datetime.fromisoformat(value["$at"])
    if "$day" in value:
        return date.fromisoformat(value["$day"])
    if "$s" in value:
        return timedelta(seconds=value["$s"])
    if "$bytes" in value:
        return base64.b64decode(value["$bytes"])
    return {key: decode_value(item) for key, item in value.items()}


def read(file: Path) -> Iterator[tuple[str, list[Any]]]:
    """(statement, arguments) of a recording, in order."""
    recording = json.loads(file.read_text())
    for number, args in recording["calls"]:
        yield recording["statements"][number], decode_value(args)


async def record(dsn: str, file: Path) -> None:
    """Writes what this version sends, each statement once."""
    sent: list[tuple[str, Any]] = []
    with record_statements(sent):
        await speak(dsn)
    numbers: dict[str, int] = {}
    pairs = [[numbers.setdefault(sql, len(numbers)), args] for sql, args in sent]
    lines = ",\n".join(json.dumps(pair) for pair in pairs)
    statements = ",\n".join(json.dumps(sql) for sql in numbers)
    file.write_text(f'{{"statements": [\n{statements}\n],\n"calls": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1], Path(sys.argv[2])))
