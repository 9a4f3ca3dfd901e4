"""The composition root, the only module that imports adapters: builds all and closes it again."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from hamicommon import deviceconfig
from hamicommon.bus.client import Deliver, Subscription, open_bus
from hamicommon.db.database import open_database
from hamicommon.db.outbox import OutboxRelay
from hamicommon.domain.requests import Policy
from hamicommon.errors import Unavailable
from hamicommon.events import EVENTS_STREAM, INVENTORY_STREAM, REPORTS_STREAM
from hamicommon.grants import Grant, load_private_key, sign
from hamicommon.k8s.annotations import DEVICE_CORDON, annotations_of, decode_cordon
from hamicommon.k8s.client import open_kube_api
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.resources import pod_request, wants_devices
from hamicommon.vendors.registry import Vendors

from hami_scheduler.adapters.kubernetes import KubernetesPodApi, KubernetesPodEvents
from hami_scheduler.adapters.nats import NatsGrantAnnouncer
from hami_scheduler.adapters.postgres_allocations import PostgresAllocationStore
from hami_scheduler.adapters.postgres_decisions import PostgresDecisionLog
from hami_scheduler.adapters.postgres_housekeeping import PostgresJournal, PostgresNodeLease
from hami_scheduler.adapters.postgres_inventory import PostgresInventory
from hami_scheduler.adapters.postgres_queries import PostgresQueries
from hami_scheduler.adapters.redis import open_node_lock
from hami_scheduler.announcing import Announcer
from hami_scheduler.binding import Binding, BindRules
from hami_scheduler.filtering import Filtering
from hami_scheduler.following import SUBJECT as EVENTS_SUBJECT
from hami_scheduler.following import LedgerFollower
from hami_scheduler.instruments import Instruments
from hami_scheduler.nodekeeping import NodeKeeping
from hami_scheduler.nudging import Nudger
from hami_scheduler.quotas import quota_amounts
from hami_scheduler.reconciling import Reaper, Reconciler
from hami_scheduler.recording import DecisionQueue
from hami_scheduler.releasing import Releasing
from hami_scheduler.reports import GrantReports, InventoryReports
from hami_scheduler.reserving import Reserving
from hami_scheduler.service import Service
from hami_scheduler.settings import Settings
from hami_scheduler.snapshots import QUEUE, GrantSnapshots
from hami_scheduler.snapshots import SUBJECT as SNAPSHOT_SUBJECT
from hami_scheduler.view import LedgerView
from hami_scheduler.waiting import WaitingPods
from hami_scheduler.watching import NodeWatch, PodWatch

NAME = "hami-scheduler"


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """Connects to everything and wires the use cases; closes in reverse.

    Raises: InvalidRequest when a file that the settings name is not usable.
    """
    vendors = Vendors.from_config(deviceconfig.load(settings.device_config_file))
    key = load_private_key(settings.grant_key_file)
    defaults = Policy(
        node=settings.node_scheduler_policy,
        gpu=tuple(part.strip() for part in settings.gpu_scheduler_policy.split(",")),
    )
    instruments = Instruments()
    waiting = WaitingPods()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(settings.postgres, application=NAME)
        )
        bus = await stack.enter_async_context(open_bus(settings.nats, NAME, owns_streams=True))
        api = await stack.enter_async_context(open_kube_api(settings.kubernetes.kubeconfig))
        lease = PostgresNodeLease(database, lock_s=settings.lock_s)
        lock = await stack.enter_async_context(
            open_node_lock(settings.redis, lease, lock_s=settings.lock_s)
        )
        relay = OutboxRelay(database, bus)
        store = PostgresAllocationStore(
            database,
            quota_of=lambda containers: quota_amounts(containers, vendors),
            on_commit=relay.wake,
        )
        inventory = PostgresInventory(database, on_commit=relay.wake)
        journal = PostgresJournal(database)
        queries = PostgresQueries(database)
        view = LedgerView(inventory)
        pods = KubernetesPodApi(api)
        events = KubernetesPodEvents(api, component=settings.scheduler_name)
        announcer = Announcer(events)
        recorder = DecisionQueue(PostgresDecisionLog(database))
        nudger = Nudger(view=view, waiting=waiting, pods=pods, instruments=instruments)
        grants = NatsGrantAnnouncer(bus)
        releasing = Releasing(
            store=store,
            lock=lock,
            grants=grants,
            view=view,
            instruments=instruments,
            release_unconfirmed_s=settings.release_unconfirmed_s,
            on_freed=nudger.capacity_freed,
        )
        reserving = Reserving(
            view=view,
            store=store,
            pods=pods,
            vendors=vendors,
            defaults=defaults,
            reservation_s=settings.reservation_s,
            recorder=recorder,
            instruments=instruments,
        )
        filtering = Filtering(
            view=view,
            reserving=reserving,
            reserve=settings.allocate_at == "filter",
            vendors=vendors,
            defaults=defaults,
            announcer=announcer,
            recorder=recorder,
            waiting=waiting,
            instruments=instruments,
        )

        def signed(grant: Grant) -> str:
            return sign(grant, key)

        binding = Binding(
            store=store,
            lock=lock,
            pods=pods,
            grants=grants,
            releasing=releasing,
            placing=reserving.on_node,
            sign=signed,
            vendors=vendors,
            announcer=announcer,
            instruments=instruments,
            rules=BindRules(timeout_s=settings.bind_timeout_s),
        )
        pod_watch = PodWatch(
            store=store,
            releasing=releasing,
            waiting=waiting,
            request_of=lambda pod: pod_request(dict(pod), vendors, defaults),
            scheduler_name=settings.scheduler_name,
        )
        inventories = InventoryReports(store=inventory, view=view, on_freed=nudger.capacity_freed)
        keeping = NodeKeeping(
            store=inventory,
            view=view,
            forget=inventories.forget,
            on_freed=nudger.capacity_freed,
        )
        node_watch = NodeWatch(
            cordon_of=lambda node: frozenset(
                decode_cordon(annotations_of(node).get(DEVICE_CORDON, ""))
            ),
            on_cordon=keeping.cordon,
            on_gone=keeping.gone,
        )
        pod_informer = Informer(
            api, "/api/v1/pods", on_upsert=pod_watch.on_upsert, on_delete=pod_watch.on_delete
        )
        node_informer = Informer(
            api, "/api/v1/nodes", on_upsert=node_watch.on_upsert, on_delete=node_watch.on_delete
        )
        reports = GrantReports(
            store=store,
            releasing=releasing,
            pods=pods,
            view=view,
            announcer=announcer,
            journal=journal,
        )
        reconciler = Reconciler(
            store=store,
            ledger=store,
            pods=pods,
            releasing=releasing,
            journal=journal,
            announcer=announcer,
            instruments=instruments,
            known_pods=pod_watch.by_uid,
            known_nodes=node_watch.names,
            synced=lambda: pod_informer.synced.is_set() and node_informer.synced.is_set(),
            wants_devices=lambda pod: wants_devices(dict(pod), vendors),
            scheduler_name=settings.scheduler_name,
        )
        reaper = Reaper(ledger=store, pods=pods, releasing=releasing)
        follower = LedgerFollower(view)
        snapshots = GrantSnapshots(store)

        async def readiness() -> Mapping[str, str]:
            missing = {}
            try:
                await database.ping()
            except Unavailable as exc:
                missing["postgres"] = str(exc)
            if not view.loaded:
                missing["view"] = "the ledger has not been read yet"
            for name, informer in (("pods", pod_informer), ("nodes", node_informer)):
                if not informer.synced.is_set():
                    missing[name] = "the API server has not been listed yet"
            return missing

        async def measure() -> None:
            instruments.view_age.set(view.age_s)
            instruments.lock_fallbacks.set(lock.fallbacks)
            instruments.decisions_dropped.set(recorder.dropped)
            instruments.events_dropped.set(events.dropped)
            instruments.outbox_published.set(relay.published)
            instruments.dead_letters.set(bus.dead_letters)
            try:
                rows, age_s = await queries.outbox_lag()
            except Unavailable:
                rows, age_s = float("nan"), float("nan")
            instruments.outbox_rows.set(rows)
            instruments.outbox_age.set(age_s)

        inventory_source = Subscription(
            stream=INVENTORY_STREAM,
            subject="hami.inventory.v1.*",
            consumer="scheduler-inventory",
            deliver=Deliver.LAST_PER_SUBJECT,
        )
        reports_source = Subscription(
            stream=REPORTS_STREAM, subject="hami.reports.v1.*", consumer="scheduler-reports"
        )
        events_source = Subscription(
            stream=EVENTS_STREAM,
            subject=EVENTS_SUBJECT,
            consumer=f"scheduler-view-{uuid.uuid4().hex[:12]}",
            deliver=Deliver.NEW,
            ephemeral=True,
        )
        yield Service(
            filtering=filtering,
            binding=binding,
            queries=queries,
            instruments=instruments,
            readiness=readiness,
            measure=measure,
            loops=(
                ("outbox", relay.run),
                ("view", lambda: view.run(settings.reconcile_s)),
                ("decisions", recorder.run),
                ("pod-events", events.run),
                ("lock-releases", lock.listen),
                ("nudges", nudger.run),
                ("pods", pod_informer.run),
                ("nodes", node_informer.run),
                ("pod-changes", pod_watch.run),
                ("node-changes", keeping.run),
                ("reconcile", lambda: reconciler.run(settings.reconcile_s)),
                ("reap", lambda: reaper.run(settings.reap_s)),
                ("inventory", lambda: bus.consume(inventory_source, inventories.handle)),
                ("reports", lambda: bus.consume(reports_source, reports.handle)),
                ("ledger-events", lambda: bus.consume(events_source, follower.handle)),
                ("snapshots", lambda: bus.serve(SNAPSHOT_SUBJECT, QUEUE, snapshots.respond)),
            ),
        )
