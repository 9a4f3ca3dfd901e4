"""The composition root, the only module that imports adapters: opens the outside world.

What is opened here goes into `wiring/`, which makes the use cases of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from hamicommon import device_config
from hamicommon.bus.client import open_bus
from hamicommon.fault_injection import around, faults_of
from hamicommon.grants.grant import Grant, read_signed
from hamicommon.grants.signing import load_private_key, public_key, sign
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.ledger.database import open_database
from hamicommon.ledger.model import LockHolder
from hamicommon.ledger.outbox import OutboxRelay
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.vendors.registry import Vendors

from hami_scheduler.adapters.kubernetes import (
    KubernetesNodeApi,
    KubernetesPodApi,
    KubernetesPodEvents,
)
from hami_scheduler.adapters.nats import NatsGrantAnnouncer, NatsNodeWitness
from hami_scheduler.adapters.postgres.allocations import PostgresAllocationStore
from hami_scheduler.adapters.postgres.decisions import PostgresDecisionLog
from hami_scheduler.adapters.postgres.housekeeping import (
    PostgresJournal,
    PostgresNodeLease,
    PostgresRetention,
)
from hami_scheduler.adapters.postgres.inventory import PostgresInventory
from hami_scheduler.adapters.postgres.queries import PostgresLedgerStats, PostgresQueries
from hami_scheduler.adapters.postgres.quotas import PostgresQuotas
from hami_scheduler.adapters.redis import open_node_lock
from hami_scheduler.adapters.token_reviews import KubernetesAccessReviews, KubernetesTokenReviews
from hami_scheduler.api.service import Service
from hami_scheduler.bootstrap.outside import Connections
from hami_scheduler.bootstrap.use_cases import build
from hami_scheduler.bus.auth import Logins
from hami_scheduler.deferred import DeferredWrites
from hami_scheduler.ledger.quota import quota_amounts
from hami_scheduler.ledger.state_machine import needs_node_lock
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.access import Access
from hami_scheduler.settings import Settings

NAME = "hami-scheduler"


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """Connects to everything and wires the use cases; closes in reverse.

    Raises: InvalidRequest when a file that the settings name is not usable.
    """
    vendors = Vendors.from_config(
        device_config.load(settings.device_config_file),
        enable_ascend=settings.enable_ascend,
        enable_iluvatar=settings.enable_iluvatar,
    )
    async with AsyncExitStack() as stack:
        instruments = SchedulerInstruments()
        outside = await _open_outside(settings, vendors, instruments.bulkhead, stack)
        yield build(settings, vendors, instruments, outside)


async def _open_outside(
    settings: Settings, vendors: Vendors, bulkhead: Bulkhead, stack: AsyncExitStack
) -> Connections:
    key = load_private_key(settings.grant_key_file)
    faults = faults_of(settings.failpoints.file)
    database = await stack.enter_async_context(
        open_database(settings.postgres, application=NAME, faults=faults)
    )
    bus = around(
        await stack.enter_async_context(
            open_bus(settings.nats, NAME, owns_streams=True, echo=False)
        ),
        "bus",
        faults,
    )
    api = await stack.enter_async_context(open_kube_api(settings.kubernetes.kubeconfig))
    relay = OutboxRelay(database, bus, bulkhead=bulkhead)

    def signed(grant: Grant) -> str:
        return sign(grant, key)

    def quota_of(containers: object) -> dict[str, int]:
        return quota_amounts(containers, vendors)  # type: ignore[arg-type]

    store = around(
        PostgresAllocationStore(
            database,
            quota_of=quota_of,
            rules={vendor.name: vendor.rules for vendor in vendors},
            on_commit=relay.wake,
        ),
        "store",
        faults,
    )

    async def still_needed(holder: LockHolder) -> bool:
        return needs_node_lock(await store.get(holder.allocation_id), holder.token)

    lease = PostgresNodeLease(database, lock_s=settings.lock_s)
    lock = await stack.enter_async_context(
        open_node_lock(settings.redis, lease, lock_s=settings.lock_s, still_needed=still_needed)
    )
    aside = DeferredWrites(bulkhead=bulkhead)
    return Connections(
        store=store,
        inventory=around(PostgresInventory(database, on_commit=relay.wake), "inventory", faults),
        quotas=PostgresQuotas(database, quota_of=quota_of),
        decisions=PostgresDecisionLog(database),
        journal=PostgresJournal(database),
        retention=PostgresRetention(database),
        queries=PostgresQueries(database),
        ping=database.ping,
        relay=relay,
        lock=around(lock, "lock", faults),
        pods=around(KubernetesPodApi(api), "pods", faults),
        nodes=around(KubernetesNodeApi(api), "nodes", faults),
        events=KubernetesPodEvents(
            api, aside, component=settings.scheduler_name, bulkhead=bulkhead
        ),
        aside=aside,
        grants=around(NatsGrantAnnouncer(bus), "grants", faults),
        witness=around(NatsNodeWitness(bus), "witness", faults),
        sign=signed,
        read_signed=lambda text: read_signed(text, public_key(key)),
        bus=bus,
        api=api,
        numbers=PostgresLedgerStats(database, bulkhead=bulkhead),
        access=_access(settings, api),
        logins=_logins(settings, api),
    )


def _access(settings: Settings, api: KubeApi) -> Access | None:
    if not settings.operator_bind:
        return None
    return Access(KubernetesAccessReviews(api, audience=settings.operator_audience))


def _logins(settings: Settings, api: KubeApi) -> Logins | None:
    if settings.bus_login_key_file is None:
        return None
    return Logins(
        reviews=KubernetesTokenReviews(api, audience=settings.bus_login_audience),
        agents=settings.bus_login_agents,
        key=load_private_key(settings.bus_login_key_file),
    )
