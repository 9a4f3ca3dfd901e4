"""Makes the use cases and their background loops out of an opened outside world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hamicommon.bus.client import Deliver, Subscription
from hamicommon.bus.logins import ASK_SUBJECT
from hamicommon.domain.requests import PodRequest, Policy
from hamicommon.errors import Unavailable
from hamicommon.events import INVENTORY_STREAM, REPORTS_STREAM
from hamicommon.k8s.annotations import DEVICE_CORDON, annotations_of, decode_cordon
from hamicommon.k8s.informer import Informer, Trim
from hamicommon.k8s.resources import pod_request, wants_devices
from hamicommon.placement.view import ClusterView
from hamicommon.vendors.registry import Vendors

from hami_scheduler.adopting import Adopting
from hami_scheduler.annotated_nodes import AnnotatedNodes
from hami_scheduler.announcing import Announcer
from hami_scheduler.binding import Binding, BindRules
from hami_scheduler.domain.told import lives
from hami_scheduler.explaining import Explaining
from hami_scheduler.filtering import Filtering
from hami_scheduler.following import SUBJECT as EVENTS_SUBJECT
from hami_scheduler.following import LedgerFollower
from hami_scheduler.hearing import LOOK_EVERY_S, AgentHearing
from hami_scheduler.instruments import Instruments
from hami_scheduler.lateness import LateWatch
from hami_scheduler.mirrored_locks import MirroredLocks
from hami_scheduler.mirrors import Mirrors
from hami_scheduler.nodekeeping import NodeKeeping
from hami_scheduler.nudging import Nudger
from hami_scheduler.outside import Outside
from hami_scheduler.quotakeeping import QuotaKeeping
from hami_scheduler.quotas import quota_amounts, quota_limits
from hami_scheduler.reconciling import Reaper, Reconciler
from hami_scheduler.recording import DecisionQueue
from hami_scheduler.releasing import Releasing
from hami_scheduler.reports import GrantReports, InventoryReports
from hami_scheduler.reserving import Reserving
from hami_scheduler.restoring import Restoring
from hami_scheduler.service import Loop, Service
from hami_scheduler.settings import Settings
from hami_scheduler.simulating import Simulating
from hami_scheduler.snapshots import QUEUE, GrantSnapshots
from hami_scheduler.snapshots import SUBJECT as SNAPSHOT_SUBJECT
from hami_scheduler.trimming import trimmed_node, trimmed_pod
from hami_scheduler.unmanaged import SUBJECT as UNMANAGED_SUBJECT
from hami_scheduler.unmanaged import UnmanagedPods
from hami_scheduler.view import LedgerView
from hami_scheduler.waiting import WaitingPods
from hami_scheduler.watching import NodeWatch, PodWatch

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """What the use cases share."""

    settings: Settings
    vendors: Vendors
    defaults: Policy
    instruments: Instruments
    waiting: WaitingPods
    view: LedgerView
    announcer: Announcer
    recorder: DecisionQueue
    nudger: Nudger
    mirrored: MirroredLocks
    releasing: Releasing
    hearing: AgentHearing
    mirrors: Mirrors

    def request_of(self, pod: Json) -> PodRequest:
        return pod_request(dict(pod), self.vendors, self.defaults)

    def wants_devices(self, pod: Json) -> bool:
        return wants_devices(dict(pod), self.vendors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watches:
    pods: PodWatch
    nodes: NodeWatch
    annotated: AnnotatedNodes
    keeping: NodeKeeping
    quotas: QuotaKeeping
    pod_informer: Informer
    node_informer: Informer
    quota_informer: Informer

    def missing(self) -> dict[str, str]:
        """Informers that have not listed yet."""
        informers = {"pods": self.pod_informer, "nodes": self.node_informer}
        return {
            name: "the API server has not been listed yet"
            for name, informer in informers.items()
            if not informer.synced.is_set()
        }


def build(settings: Settings, vendors: Vendors, outside: Outside) -> Service:
    """The whole service."""
    core = _core(settings, vendors, outside)
    filtering, binding = _deciding(core, outside)
    inventories = InventoryReports(
        store=outside.inventory,
        view=core.view,
        on_heard=core.hearing.heard,
        on_freed=core.nudger.capacity_freed,
    )
    watches = _watches(core, outside, inventories)

    async def readiness() -> Mapping[str, str]:
        missing = watches.missing()
        try:
            await outside.ping()
        except Unavailable as exc:
            missing["postgres"] = str(exc)
        if not core.view.loaded:
            missing["view"] = "the ledger has not been read yet"
        return missing

    return Service(
        filtering=filtering,
        binding=binding,
        queries=outside.queries,
        letters=outside.bus.letters,
        explaining=Explaining(
            queries=outside.queries,
            pods=outside.pods,
            vendors=vendors,
            scheduler_name=settings.scheduler_name,
            recorder=core.recorder,
            new_view=lambda: ClusterView(vendors.rules),
        ),
        simulating=Simulating(view=core.view, vendors=vendors, defaults=core.defaults),
        adopting=Adopting(
            store=outside.store,
            ledger=outside.store,
            pods=outside.pods,
            witness=outside.witness,
            grants=outside.grants,
            view=core.view,
            announcer=core.announcer,
            instruments=core.instruments,
            vendors=vendors,
            known_pods=watches.pods.by_uid,
            synced=lambda: not watches.missing(),
            request_of=core.request_of,
        ),
        instruments=core.instruments,
        readiness=readiness,
        measure=lambda: _measure(core, outside),
        loops=(
            *_writing_loops(core, outside),
            *_watching_loops(core, outside, watches),
            *_bus_loops(core, outside, inventories, watches),
        ),
    )


def _core(settings: Settings, vendors: Vendors, outside: Outside) -> _Core:
    instruments, waiting = Instruments(), WaitingPods()
    announcer = Announcer(outside.events)
    view = LedgerView(outside.inventory, vendors.rules)
    mirrored = MirroredLocks(
        nodes=outside.nodes,
        pods=outside.pods,
        lock=outside.lock,
        store=outside.store,
        vendors=vendors,
    )
    nudger = Nudger(view=view, waiting=waiting, pods=outside.pods, instruments=instruments)
    gpu = tuple(part.strip() for part in settings.gpu_scheduler_policy.split(","))
    return _Core(
        settings=settings,
        vendors=vendors,
        defaults=Policy(node=settings.node_scheduler_policy, gpu=gpu),
        instruments=instruments,
        waiting=waiting,
        view=view,
        announcer=announcer,
        recorder=DecisionQueue(outside.decisions, announcer),
        nudger=nudger,
        mirrored=mirrored,
        releasing=Releasing(
            store=outside.store,
            lock=outside.lock,
            mirrored=mirrored,
            announcer=announcer,
            grants=outside.grants,
            view=view,
            instruments=instruments,
            release_unconfirmed_s=settings.release_unconfirmed_s,
            on_freed=nudger.capacity_freed,
        ),
        hearing=AgentHearing(
            reader=outside.inventory,
            bus_connected_for_s=lambda: outside.bus.connected_for_s,
            on_heard_again=nudger.capacity_freed,
            silent_s=settings.agent_silent_s,
        ),
        mirrors=Mirrors(
            store=outside.store,
            pods=outside.pods,
            vendors=vendors,
            journal=outside.journal,
            instruments=instruments,
        ),
    )


def _deciding(core: _Core, outside: Outside) -> tuple[Filtering, Binding]:
    reserving = Reserving(
        view=core.view,
        store=outside.store,
        pods=outside.pods,
        vendors=core.vendors,
        defaults=core.defaults,
        reservation_s=core.settings.reservation_s,
        recorder=core.recorder,
        instruments=core.instruments,
    )
    filtering = Filtering(
        view=core.view,
        reserving=reserving,
        reserve=core.settings.allocate_at == "filter",
        vendors=core.vendors,
        defaults=core.defaults,
        announcer=core.announcer,
        recorder=core.recorder,
        waiting=core.waiting,
        instruments=core.instruments,
        silent=lambda: core.hearing.silent,
    )
    binding = Binding(
        store=outside.store,
        lock=outside.lock,
        mirrored=core.mirrored,
        pods=outside.pods,
        grants=outside.grants,
        releasing=core.releasing,
        placing=reserving.on_node,
        sign=outside.sign,
        announcer=core.announcer,
        instruments=core.instruments,
        on_unanswered=core.hearing.unanswered,
        rules=BindRules(timeout_s=core.settings.bind_timeout_s),
    )
    return filtering, binding


def _watches(core: _Core, outside: Outside, inventories: InventoryReports) -> _Watches:
    pods = PodWatch(
        store=outside.store,
        releasing=core.releasing,
        waiting=core.waiting,
        request_of=core.request_of,
        scheduler_name=core.settings.scheduler_name,
    )
    keeping = NodeKeeping(
        store=outside.inventory,
        view=core.view,
        forget=inventories.forget,
        on_freed=core.nudger.capacity_freed,
    )
    nodes = NodeWatch(cordon_of=_cordon_of, on_cordon=keeping.cordon, on_gone=keeping.gone)
    annotated = AnnotatedNodes(
        store=outside.inventory,
        view=core.view,
        nodes=outside.nodes,
        locks=core.mirrored,
        vendors=core.vendors,
        journal=outside.journal,
        instruments=core.instruments,
        on_written=keeping.again,
        on_freed=core.nudger.capacity_freed,
    )
    quotas = QuotaKeeping(
        store=outside.quotas,
        limits_of=lambda quota: quota_limits(quota, core.vendors),
        synced=lambda: quota_informer.synced.is_set(),
        on_freed=core.nudger.capacity_freed,
    )

    def node_seen(new: dict[str, Any], old: dict[str, Any] | None) -> None:
        nodes.on_upsert(new, old)
        annotated.on_upsert(new, old)
        core.hearing.node_seen(new["metadata"]["name"], lives(new, core.vendors))

    def node_gone(node: dict[str, Any]) -> None:
        nodes.on_delete(node)
        annotated.on_delete(node)
        core.hearing.node_gone(node["metadata"]["name"])

    def informer(
        path: str, handlers: PodWatch | QuotaKeeping, trim: Trim | None = None
    ) -> Informer:
        return Informer(
            outside.api,
            path,
            on_upsert=handlers.on_upsert,
            on_delete=handlers.on_delete,
            trim=trim,
        )

    quota_informer = informer("/api/v1/resourcequotas", quotas)
    return _Watches(
        pods=pods,
        nodes=nodes,
        annotated=annotated,
        keeping=keeping,
        quotas=quotas,
        pod_informer=informer("/api/v1/pods", pods, trimmed_pod),
        node_informer=Informer(
            outside.api,
            "/api/v1/nodes",
            on_upsert=node_seen,
            on_delete=node_gone,
            trim=trimmed_node,
        ),
        quota_informer=quota_informer,
    )


def _cordon_of(node: Json) -> frozenset[str]:
    return frozenset(decode_cordon(annotations_of(node).get(DEVICE_CORDON, "")))


def _writing_loops(core: _Core, outside: Outside) -> tuple[tuple[str, Loop], ...]:
    reaper = Reaper(
        ledger=outside.store,
        pods=outside.pods,
        releasing=core.releasing,
        agent_speaks=core.hearing.speaks,
    )
    late = LateWatch(
        ledger=outside.store,
        store=outside.store,
        pods=outside.pods,
        silent=lambda: core.hearing.silent,
        announcer=core.announcer,
        instruments=core.instruments,
        late_s=core.settings.bound_late_s,
    )
    return (
        ("outbox", outside.relay.run),
        ("view", lambda: core.view.run(core.settings.reconcile_s)),
        ("decisions", core.recorder.run),
        ("old-decisions", lambda: core.recorder.tidy(keep_days=core.settings.decision_days)),
        ("pod-events", outside.events.run),
        ("lock-releases", outside.lock.listen),
        ("nudges", core.nudger.run),
        ("reap", lambda: reaper.run(core.settings.reap_s)),
        ("late", lambda: late.run(core.settings.reconcile_s)),
        ("agents", lambda: core.hearing.run(min(LOOK_EVERY_S, core.settings.reconcile_s))),
    )


def _watching_loops(
    core: _Core, outside: Outside, watches: _Watches
) -> tuple[tuple[str, Loop], ...]:
    reconciler = Reconciler(
        store=outside.store,
        ledger=outside.store,
        pods=outside.pods,
        releasing=core.releasing,
        mirrors=core.mirrors,
        journal=outside.journal,
        announcer=core.announcer,
        instruments=core.instruments,
        known_pods=watches.pods.by_uid,
        known_nodes=watches.nodes.names,
        synced=lambda: not watches.missing(),
        wants_devices=core.wants_devices,
        scheduler_name=core.settings.scheduler_name,
        on_compared=core.nudger.capacity_freed,
        restoring=Restoring(
            store=outside.store,
            apply=core.view.apply,
            read_signed=outside.read_signed,
            quota_of=lambda containers: quota_amounts(containers, core.vendors),
        ),
    )
    every_s = core.settings.reconcile_s
    return (
        ("pods", watches.pod_informer.run),
        ("nodes", watches.node_informer.run),
        ("quotas", watches.quota_informer.run),
        ("pod-changes", watches.pods.run),
        ("node-changes", watches.keeping.run),
        ("annotated-nodes", watches.annotated.run),
        ("quota-changes", lambda: watches.quotas.run(every_s)),
        ("reconcile", lambda: reconciler.run(every_s)),
    )


def _bus_loops(
    core: _Core, outside: Outside, inventories: InventoryReports, watches: _Watches
) -> tuple[tuple[str, Loop], ...]:
    reports = GrantReports(
        store=outside.store,
        releasing=core.releasing,
        pods=outside.pods,
        known_pods=watches.pods.by_uid,
        view=core.view,
        announcer=core.announcer,
        mirrors=core.mirrors,
        journal=outside.journal,
    )
    unmanaged = UnmanagedPods(
        store=outside.store,
        pods=outside.pods,
        view=core.view,
        vendors=core.vendors,
        request_of=core.request_of,
        announcer=core.announcer,
        instruments=core.instruments,
    )
    follower, snapshots = LedgerFollower(core.view), GrantSnapshots(outside.store)
    outside.relay.listener = follower.relayed
    # The first two share their work among replicas; each replica follows the ledger for itself.
    inventory_source = Subscription(
        stream=INVENTORY_STREAM,
        subject="hami.inventory.v1.*",
        consumer="scheduler-inventory",
        deliver=Deliver.LAST_PER_SUBJECT,
    )
    reports_source = Subscription(
        stream=REPORTS_STREAM, subject="hami.reports.v1.*", consumer="scheduler-reports"
    )
    bus = outside.bus
    loops = (
        ("inventory", lambda: bus.consume(inventory_source, inventories.handle)),
        ("reports", lambda: bus.consume(reports_source, reports.handle)),
        ("ledger-events", lambda: bus.follow(EVENTS_SUBJECT, follower.handle)),
        ("snapshots", lambda: bus.serve(SNAPSHOT_SUBJECT, QUEUE, snapshots.respond)),
        ("unmanaged", lambda: bus.serve(UNMANAGED_SUBJECT, QUEUE, unmanaged.respond)),
    )
    if outside.logins is None:
        return loops
    respond = outside.logins.respond
    return (*loops, ("logins", lambda: bus.serve(ASK_SUBJECT, QUEUE, respond)))


async def _measure(core: _Core, outside: Outside) -> None:
    found = core.instruments
    found.view_age.set(core.view.age_s)
    found.lock_fallbacks.set(outside.lock.fallbacks)
    found.decisions_dropped.set(core.recorder.dropped)
    found.decisions_without_cards.set(core.recorder.dropped_moments)
    found.decisions_waiting.set(core.recorder.waiting)
    found.events_dropped.set(outside.events.dropped)
    found.outbox_published.set(outside.relay.published)
    found.dead_letters.set(outside.bus.dead_letters)
    found.stream_problems.set(len(outside.bus.streams.problems))
    found.silent_agents.set(len(core.hearing.silent))
    try:
        found.dead_letters_kept.set(await outside.bus.letters.kept())
    except Unavailable:
        found.dead_letters_kept.set(float("nan"))
    try:
        rows, age_s = await outside.queries.outbox_lag()
    except Unavailable:
        rows, age_s = float("nan"), float("nan")
    found.outbox_rows.set(rows)
    found.outbox_age.set(age_s)
