"""Open the service's connections, and make the adapters that use them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from hamicommon.access.checks import Access
from hamicommon.access.reviews import KubernetesAccessReviews
from hamicommon.bus.client import Bus
from hamicommon.bus.connecting import open_bus
from hamicommon.fault_injection import Faults, Port, around, faults_of
from hamicommon.grants.grant import read_signed
from hamicommon.grants.signing import load_private_key, public_key, sign
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.ledger.database import Database, open_database
from hamicommon.ledger.outbox.relay import OutboxRelay
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.vendors.registry import Vendors

from hami_scheduler.adapters import kubernetes
from hami_scheduler.adapters.nats import NatsGrantAnnouncer, NatsNodeWitness
from hami_scheduler.adapters.postgres import housekeeping
from hami_scheduler.adapters.postgres.allocations.rooms import PostgresRooms
from hami_scheduler.adapters.postgres.allocations.store import PostgresAllocationStore
from hami_scheduler.adapters.postgres.decisions import PostgresDecisionLog
from hami_scheduler.adapters.postgres.inventory import PostgresInventory
from hami_scheduler.adapters.postgres.queries import PostgresLedgerStats, PostgresQueries
from hami_scheduler.adapters.postgres.quotas import PostgresQuotas
from hami_scheduler.adapters.postgres.row_repairs import PostgresCounters, PostgresRowRepairs
from hami_scheduler.adapters.postgres.scaling import PostgresScaling
from hami_scheduler.adapters.redis import RedisNodeLock, open_node_lock
from hami_scheduler.background_queue import BackgroundQueue
from hami_scheduler.bus.auth import Logins
from hami_scheduler.ledger.quota import quota_amounts
from hami_scheduler.scaling.placeholders import Placeholders
from hami_scheduler.settings import Settings

NAME = "hami-scheduler"


class Connections:
    """Connections to the ledger, the bus, the node locks and the API server."""

    def __init__(
        self,
        settings: Settings,
        vendors: Vendors,
        bulkhead: Bulkhead,
        *,
        database: Database,
        bus: Bus,
        lock: RedisNodeLock,
        api: KubeApi,
        faults: Faults | None,
    ) -> None:
        def wrap(port: Port, name: str) -> Port:
            return around(port, name, faults)

        key = load_private_key(settings.grant_key_file)
        quota_of = partial(quota_amounts, vendors=vendors)
        self.bus, self.api, self.ping = wrap(bus, "bus"), api, database.ping
        self.background = BackgroundQueue(
            idle_s=settings.background_idle_s,
            max_delay_s=settings.background_max_delay_s,
            bulkhead=bulkhead,
        )
        self.relay = OutboxRelay(
            database, self.bus, until_idle=self.background.until_idle, bulkhead=bulkhead
        )
        wake = self.relay.wake
        store = PostgresAllocationStore(
            database, quota_of=quota_of, rules=vendors.rules, on_commit=wake
        )
        self.store = wrap(store, "store")
        self.inventory = wrap(PostgresInventory(database, on_commit=wake), "inventory")
        self.counters = PostgresCounters(database)
        self.row_repairs = PostgresRowRepairs(database, on_commit=wake)
        self.quotas = PostgresQuotas(database, quota_of=quota_of)
        self.decisions = PostgresDecisionLog(database)
        self.journal = housekeeping.PostgresJournal(database)
        self.retention = housekeeping.PostgresRetention(database)
        self.queries = PostgresQueries(database)
        self.calls = housekeeping.PostgresCallJournal(database)
        self.limits = housekeeping.PostgresLimits(database)
        self.rooms = wrap(PostgresRooms(database), "rooms")
        self.scaling = PostgresScaling(database)
        self.placeholders = Placeholders(
            api,
            namespace=settings.scale_namespace,
            pod_name=settings.pod_name,
            image=settings.scale_image,
        )
        self.ledger_stats = PostgresLedgerStats(database, bulkhead=bulkhead)
        self.lock = wrap(lock, "lock")
        self.pods = wrap(kubernetes.KubernetesPodApi(api), "pods")
        self.claims = wrap(kubernetes.KubernetesClaimApi(api), "claims")
        self.templates = wrap(kubernetes.KubernetesTemplateApi(api), "templates")
        self.nodes = wrap(kubernetes.KubernetesNodeApi(api), "nodes")
        self.events = kubernetes.KubernetesPodEvents(
            api, self.background, component=settings.scheduler_name
        )
        self.grants = wrap(NatsGrantAnnouncer(self.bus), "grants")
        self.witness = wrap(NatsNodeWitness(self.bus), "witness")
        self.sign = partial(sign, key=key)
        self.read_signed = partial(read_signed, key=public_key(key))
        self.access = _access(settings, api)
        self.logins = _logins(settings, api)


async def open_connections(
    settings: Settings, vendors: Vendors, bulkhead: Bulkhead, stack: AsyncExitStack
) -> Connections:
    """Open everything; `stack` closes it in reverse order."""
    faults = faults_of(settings.failpoints.file)
    enter = stack.enter_async_context
    return Connections(
        settings,
        vendors,
        bulkhead,
        database=await enter(open_database(settings.postgres, application=NAME, faults=faults)),
        bus=await enter(open_bus(settings.nats, NAME, owns_streams=True, echo=False)),
        faults=faults,
        api=await enter(open_kube_api(settings.kubernetes.kubeconfig)),
        lock=await enter(open_node_lock(settings.redis, lock_s=settings.lock_s)),
    )


def _access(settings: Settings, api: KubeApi) -> Access | None:
    if not settings.operator_bind:
        return None
    return Access(KubernetesAccessReviews(api, audience=settings.operator_audience))


def _logins(settings: Settings, api: KubeApi) -> Logins | None:
    if settings.bus_login_key_file is None:
        return None
    return Logins(
        reviews=kubernetes.KubernetesTokenReviews(api, audience=settings.bus_login_audience),
        agents=settings.bus_login_agents,
        key=load_private_key(settings.bus_login_key_file),
    )
