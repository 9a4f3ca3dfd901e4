"""What the service is connected to: the only module that imports adapters.

`Connections` is the world as the use cases see it, by ports; `open_connections` opens the real one.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from hamicommon.access.checks import Access
from hamicommon.access.reviews import KubernetesAccessReviews
from hamicommon.bus.client import Bus
from hamicommon.bus.connecting import open_bus
from hamicommon.fault_injection import around, faults_of
from hamicommon.grants.grant import Grant, read_signed
from hamicommon.grants.signing import load_private_key, public_key, sign
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.ledger.database import open_database
from hamicommon.ledger.outbox.relay import OutboxRelay
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.vendors.registry import Vendors

from hami_scheduler.adapters.kubernetes import (
    KubernetesClaimApi,
    KubernetesNodeApi,
    KubernetesPodApi,
    KubernetesPodEvents,
    KubernetesTemplateApi,
)
from hami_scheduler.adapters.nats import NatsGrantAnnouncer, NatsNodeWitness
from hami_scheduler.adapters.postgres.allocations.store import PostgresAllocationStore
from hami_scheduler.adapters.postgres.decisions import PostgresDecisionLog
from hami_scheduler.adapters.postgres.housekeeping import (
    PostgresCallJournal,
    PostgresJournal,
    PostgresRetention,
)
from hami_scheduler.adapters.postgres.inventory.counters import PostgresCounters
from hami_scheduler.adapters.postgres.inventory.store import PostgresInventory
from hami_scheduler.adapters.postgres.limits import PostgresLimits
from hami_scheduler.adapters.postgres.queries import PostgresLedgerStats, PostgresQueries
from hami_scheduler.adapters.postgres.quotas import PostgresQuotas
from hami_scheduler.adapters.postgres.row_repairs import PostgresRowRepairs
from hami_scheduler.adapters.redis import RedisNodeLock, open_node_lock
from hami_scheduler.adapters.token_reviews import KubernetesTokenReviews
from hami_scheduler.background_queue import BackgroundQueue
from hami_scheduler.bus.auth import Logins
from hami_scheduler.ledger.quota import quota_amounts
from hami_scheduler.settings import Settings

NAME = "hami-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Everything that the bootstrap opened."""

    replica: str
    """A name that no other process has."""
    store: PostgresAllocationStore
    inventory: PostgresInventory
    counters: PostgresCounters
    row_repairs: PostgresRowRepairs
    quotas: PostgresQuotas
    decisions: PostgresDecisionLog
    journal: PostgresJournal
    retention: PostgresRetention
    queries: PostgresQueries
    ping: Callable[[], Awaitable[None]]
    relay: OutboxRelay
    lock: RedisNodeLock
    pods: KubernetesPodApi
    claims: KubernetesClaimApi
    templates: KubernetesTemplateApi
    nodes: KubernetesNodeApi
    events: KubernetesPodEvents
    background: BackgroundQueue
    grants: NatsGrantAnnouncer
    witness: NatsNodeWitness
    sign: Callable[[Grant], str]
    read_signed: Callable[[str], Grant]
    """Raises: InvalidRequest when it was not signed by `sign`."""
    bus: Bus
    api: KubeApi
    limits: PostgresLimits | None = None
    """What nodes find of limits; None: it is not taken."""
    ledger_stats: PostgresLedgerStats | None = None
    """For the bus; None: they are not published."""
    access: Access | None = None
    """Who may ask on the operators' port; None: it is not served."""
    calls: PostgresCallJournal | None = None
    """Where calls of operators are kept; None: the log alone has them."""
    logins: Logins | None = None
    """Answers the bus server about node-agents, where it is so configured."""


async def open_connections(
    settings: Settings,
    vendors: Vendors,
    bulkhead: Bulkhead,
    stack: AsyncExitStack,
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
    background = BackgroundQueue(
        idle_s=settings.background_idle_s,
        max_delay_s=settings.background_max_delay_s,
        bulkhead=bulkhead,
    )
    relay = OutboxRelay(database, bus, until_idle=background.until_idle, bulkhead=bulkhead)

    def signed(grant: Grant) -> str:
        return sign(grant, key)

    quota_of = partial(quota_amounts, vendors=vendors)

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

    lock = await stack.enter_async_context(open_node_lock(settings.redis, lock_s=settings.lock_s))
    return Connections(
        replica=secrets.token_hex(4),
        store=store,
        inventory=around(PostgresInventory(database, on_commit=relay.wake), "inventory", faults),
        counters=PostgresCounters(database),
        row_repairs=PostgresRowRepairs(database, on_commit=relay.wake),
        quotas=PostgresQuotas(database, quota_of=quota_of),
        decisions=PostgresDecisionLog(database),
        journal=PostgresJournal(database),
        retention=PostgresRetention(database),
        queries=PostgresQueries(database),
        calls=PostgresCallJournal(database),
        ping=database.ping,
        relay=relay,
        lock=around(lock, "lock", faults),
        pods=around(KubernetesPodApi(api), "pods", faults),
        claims=around(KubernetesClaimApi(api), "claims", faults),
        templates=around(KubernetesTemplateApi(api), "templates", faults),
        nodes=around(KubernetesNodeApi(api), "nodes", faults),
        events=KubernetesPodEvents(
            api, background, component=settings.scheduler_name, bulkhead=bulkhead
        ),
        background=background,
        grants=around(NatsGrantAnnouncer(bus), "grants", faults),
        witness=around(NatsNodeWitness(bus), "witness", faults),
        sign=signed,
        read_signed=lambda text: read_signed(text, public_key(key)),
        bus=bus,
        api=api,
        limits=PostgresLimits(database),
        ledger_stats=PostgresLedgerStats(database, bulkhead=bulkhead),
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
