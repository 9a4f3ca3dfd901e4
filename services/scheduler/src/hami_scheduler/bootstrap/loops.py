"""The background loops: what writes, what watches, what listens on the bus.

`standby_loops` run in every replica, all others in the active one only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial

from hamicommon.bus.client import Deliver, Subscription
from hamicommon.bus.logins import ASK_SUBJECT
from hamicommon.domain.allocations import Allocation, Placement
from hamicommon.domain.ids import PodUid
from hamicommon.errors import InvalidRequest
from hamicommon.events import INVENTORY_STREAM, REPORTS_STREAM
from hamicommon.k8s.types import JsonMapping
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.periodic import every

from hami_scheduler.adoption.resource_claims import SUBJECT as CLAIMS_SUBJECT
from hami_scheduler.adoption.unmanaged import SUBJECT as UNMANAGED_SUBJECT
from hami_scheduler.adoption.unmanaged import UnmanagedGrants
from hami_scheduler.api.service import Loop
from hami_scheduler.bootstrap.connections import Connections
from hami_scheduler.bootstrap.holders import claim_grants, running_pods
from hami_scheduler.bootstrap.informers import Watches
from hami_scheduler.bootstrap.shared import Core
from hami_scheduler.bus.device_moves import SUBJECT as MOVES_SUBJECT
from hami_scheduler.bus.device_moves import GrantMoves
from hami_scheduler.bus.grant_snapshots import QUEUE, GrantSnapshots
from hami_scheduler.bus.grant_snapshots import SUBJECT as SNAPSHOT_SUBJECT
from hami_scheduler.bus.heartbeats import LOOK_EVERY_S
from hami_scheduler.bus.inventories import InventoryReports
from hami_scheduler.bus.ledger_stats import PUBLISH_EVERY_S, LedgerStatsPublisher
from hami_scheduler.bus.mig_instances import MadeInstances
from hami_scheduler.bus.orphans import OrphanReporter
from hami_scheduler.bus.reports import GrantReports
from hami_scheduler.ledger.quota import quota_amounts
from hami_scheduler.placement import fragmentation_tables
from hami_scheduler.placement.demand import ARRIVALS_AGAIN_S
from hami_scheduler.placement.draft import vendors_annotations
from hami_scheduler.reconcile import ended_waits, retention
from hami_scheduler.reconcile.annotation_diff import misread
from hami_scheduler.reconcile.card_conditions import CardConditionReporter
from hami_scheduler.reconcile.counters import CounterRepairer
from hami_scheduler.reconcile.lying_rows import LyingRows
from hami_scheduler.reconcile.reconciler import Reaper, Reconciler, WatchedCluster
from hami_scheduler.reconcile.restore import GrantRestorer
from hami_scheduler.reconcile.retention import HistoryCleanup
from hami_scheduler.reconcile.stuck_pods import StuckPodReporter
from hami_scheduler.reconcile.ungranted_pods import UngrantedPods

# Nothing can be decided before the ledger was read once.
LOAD_AGAIN_S = 1.0
# The API server is listed within a second or two of the start; the first comparison follows soon.
SYNCED_AGAIN_S = 0.5
TIDY_EVERY_S = 600.0


def periodic(
    name: str,
    interval_s: float | Callable[[], float],
    one_round: Callable[[], Awaitable[object]],
    bulkhead: Bulkhead | None = None,
) -> tuple[str, Loop]:
    """A loop of rounds, by its name; with `bulkhead` a round that fails is counted and repeated."""
    return name, lambda: every(interval_s, one_round, name=name, bulkhead=bulkhead)


def standby_loops(
    core: Core, connections: Connections, watches: Watches
) -> tuple[tuple[str, Loop], ...]:
    """What keeps a replica ready, and what every replica answers; nothing of it writes."""
    every_s = core.settings.reconcile_s
    snapshots = GrantSnapshots(connections.store, bulkhead=core.instruments.bulkhead)
    bus = connections.bus
    loops = [
        *((name, informer.run) for name, informer in watches.informers().items()),
        periodic(
            "view",
            lambda: every_s if core.state.loaded else LOAD_AGAIN_S,
            lambda: compare_state(core),
            core.instruments.bulkhead,
        ),
        periodic(
            "agents",
            min(LOOK_EVERY_S, every_s),
            core.liveness.once,
            core.instruments.bulkhead,
        ),
        ("snapshots", lambda: bus.serve(SNAPSHOT_SUBJECT, QUEUE, snapshots.respond)),
    ]
    if connections.logins is not None:
        respond = connections.logins.respond
        loops.append(("logins", lambda: bus.serve(ASK_SUBJECT, QUEUE, respond)))
    return tuple(loops)


def lying_rows(core: Core, connections: Connections) -> LyingRows:
    """What compares rows of grants with their witnesses."""
    settings = core.settings
    ends = (
        *(settings.reservation_s, settings.bind_timeout_s),
        *(settings.lock_s, settings.release_unconfirmed_s),
    )

    def misread_of(row: Allocation, pod: JsonMapping) -> Mapping[str, str]:
        devices = {
            card.usage.device.uuid: card.usage.device for card in core.state.cluster.cards(row.node)
        }
        if any(s.uuid not in devices for each in row.containers for s in each.shares):
            return {}
        try:
            selections = core.requests.of(pod).selections
        except InvalidRequest:
            return {}
        placement = Placement(node=row.node, containers=row.containers)
        written = vendors_annotations(
            placement, devices, selections, core.vendors, now=datetime.now(UTC)
        )
        return misread(row, written, core.vendors)

    return LyingRows(
        store=connections.row_repairs,
        journal=connections.journal,
        instruments=core.instruments,
        read_signed=connections.read_signed,
        misread=misread_of,
        annotate=connections.store.annotate,
        longest_s=10 * max(ends),
    )


def writing_loops(
    core: Core, connections: Connections, rows: LyingRows
) -> tuple[tuple[str, Loop], ...]:
    """What writes to the ledger, the bus and the API server by its own clock."""
    settings = core.settings
    # A row that nobody foresaw ends one round, with what is known from before, and not the process.
    rounds = partial(periodic, bulkhead=core.instruments.bulkhead)
    reaper = Reaper(
        ledger=connections.store,
        pods=connections.pods,
        transitions=core.transitions,
        agent_speaks=core.liveness.speaks,
        rows=rows,
        bulkhead=core.instruments.bulkhead,
    )
    late = StuckPodReporter(
        ledger=connections.store,
        pods=connections.pods,
        silent=lambda: core.liveness.silent,
        announcer=core.announcer,
        instruments=core.instruments,
        late_s=core.settings.bound_late_s,
    )
    conditions = CardConditionReporter(
        connections.queries,
        silent=lambda: core.liveness.mute,
        announcer=core.announcer,
        bulkhead=core.instruments.bulkhead,
    )
    cleanup = HistoryCleanup(
        connections.retention,
        {
            "grants": settings.grant_days,
            "drift": settings.drift_days,
            "health": settings.health_days,
            "limits": settings.limit_days,
            "calls": settings.call_days,
            "capacity": settings.capacity_days,
            "cards": settings.card_days,
        },
    )
    return (
        ("outbox", connections.relay.run),
        ("ledger-writer", core.writer.run),
        ("decisions", core.recorder.run),
        rounds(
            "arrivals",
            lambda: ARRIVALS_AGAIN_S if core.demand.arrivals.restored else LOAD_AGAIN_S,
            core.demand.arrivals.restore,
        ),
        rounds("usual-pods", fragmentation_tables.LOOK_EVERY_S, core.tables.once),
        rounds(
            "old-decisions",
            TIDY_EVERY_S,
            partial(connections.decisions.tidy, keep_days=settings.decision_days),
        ),
        rounds("old-history", retention.EVERY_S, cleanup.once),
        ("pod-events", connections.events.run),
        ("background", connections.background.run),
        ("requeue", core.requeuer.run),
        rounds("reap", settings.reap_s, reaper.once),
        rounds("late", settings.reconcile_s, late.once),
        rounds("card-conditions", settings.reconcile_s, conditions.once),
    )


async def compare_state(core: Core) -> None:
    """Read the ledger the first time, and compare the state with it from then on."""
    if not core.state.loaded:
        await core.state.load()
    elif await core.state.refresh():
        core.requeuer.capacity_freed()
    core.state.expire()


def watching_loops(
    core: Core, connections: Connections, watches: Watches, grant_rows: LyingRows
) -> tuple[tuple[str, Loop], ...]:
    """What follows the API server, and compares it with the ledger."""
    reconciler = Reconciler(
        ledger=connections.store,
        pods=connections.pods,
        transitions=core.transitions,
        mirrors=core.mirrors,
        journal=connections.journal,
        instruments=core.instruments,
        watched=WatchedCluster(pods=watches.pods.by_uid, nodes=watches.nodes.names),
        ungranted=_ungranted_pods(core, connections, watches, grant_rows),
        rows=grant_rows,
    )
    every_s = core.settings.reconcile_s
    rounds = partial(periodic, bulkhead=core.instruments.bulkhead)

    counters = CounterRepairer(
        store=connections.counters,
        view=core.state,
        journal=connections.journal,
        instruments=core.instruments,
    )

    async def reconcile() -> None:
        if not watches.missing():
            await reconciler.once()
            # After the rows: what those hold is what is counted.
            await counters.once()
            core.requeuer.capacity_freed()

    return (
        *_template_loops(watches),
        ("pod-changes", watches.pods.run),
        ("pod-comparisons", watches.pods.run_comparisons),
        ("node-changes", watches.node_sync.run),
        ("node-groups", watches.node_groups.run),
        ("annotated-nodes", watches.annotated.run),
        ("claim-holders", watches.holders.run),
        ("quota-changes", lambda: watches.quotas.run(every_s)),
        rounds("ended-waits", ended_waits.COMPARE_INTERVAL_S, watches.ended_waits.once),
        rounds("reconcile", lambda: SYNCED_AGAIN_S if watches.missing() else every_s, reconcile),
    )


def _template_loops(watches: Watches) -> tuple[tuple[str, Loop], ...]:
    templates, informer = watches.templates, watches.template_informer
    if templates is None or informer is None:
        return ()

    def listed() -> bool:
        return informer.synced.is_set() and watches.pod_informer.synced.is_set()

    return (("claim-templates", lambda: templates.run(listed)),)


def _ungranted_pods(
    core: Core, connections: Connections, watches: Watches, rows: LyingRows
) -> UngrantedPods:
    return UngrantedPods(
        store=connections.store,
        restorer=GrantRestorer(
            store=connections.store,
            apply=core.state.apply,
            read_signed=connections.read_signed,
            quota_of=lambda containers: quota_amounts(containers, core.vendors),
            witness=connections.witness,
            put_back=rows.put_back,
        ),
        claimed=watches.holders,
        journal=connections.journal,
        announcer=core.announcer,
        instruments=core.instruments,
        wants_devices=core.requests.wants_devices,
        scheduler_name=core.settings.scheduler_name,
    )


def bus_loops(
    core: Core,
    connections: Connections,
    inventories: InventoryReports,
    watches: Watches,
) -> tuple[tuple[str, Loop], ...]:
    """What the agents report and ask."""
    reports = GrantReports(
        store=connections.store,
        transitions=core.transitions,
        orphans=OrphanReporter(
            journal=connections.journal, announcer=core.announcer, instruments=core.instruments
        ),
        instances=MadeInstances(
            store=connections.store, pods=connections.pods, doubt_mirror=core.mirrors.doubt
        ),
        pods=connections.pods,
        known_pods=watches.pods.by_uid,
    )

    def takes_any_card(uid: PodUid) -> bool:
        pod = watches.pods.by_uid.get(uid)
        return pod is not None and core.requests.takes_any_card(pod)

    moves = GrantMoves(
        store=connections.store,
        view=core.state,
        doubt_mirror=core.mirrors.doubt,
        takes_any_card=takes_any_card,
    )
    unmanaged = UnmanagedGrants(
        running_pods(core, connections),
        view=core.state,
        vendors=core.vendors,
        request_of=core.requests.of,
    )
    claims = claim_grants(core, connections)
    inventory_source = Subscription(
        stream=INVENTORY_STREAM,
        subject="hami.inventory.v1.*",
        consumer="scheduler-inventory",
        deliver=Deliver.LAST_PER_SUBJECT,
    )
    reports_source = Subscription(
        stream=REPORTS_STREAM, subject="hami.reports.v1.*", consumer="scheduler-reports"
    )
    bus = connections.bus
    loops: list[tuple[str, Loop]] = [
        ("inventory", lambda: bus.consume_all(inventory_source, inventories.handle_all)),
        ("reports", lambda: bus.consume_all(reports_source, reports.handle_all)),
        ("moves", lambda: bus.serve(MOVES_SUBJECT, QUEUE, moves.respond)),
        ("unmanaged", lambda: bus.serve(UNMANAGED_SUBJECT, QUEUE, unmanaged.respond)),
        ("resource-claims", lambda: bus.serve(CLAIMS_SUBJECT, QUEUE, claims.respond)),
        ("feeds", lambda: bus.serve_feeds(QUEUE)),
        ("deliveries", lambda: bus.settle_deliveries(QUEUE)),
    ]
    if connections.ledger_stats is not None:
        publisher = LedgerStatsPublisher(
            connections.ledger_stats,
            bus,
            replica=connections.replica,
            bulkhead=core.instruments.bulkhead,
        )
        loops.append(periodic("ledger-stats", PUBLISH_EVERY_S, publisher.once))
    return tuple(loops)
