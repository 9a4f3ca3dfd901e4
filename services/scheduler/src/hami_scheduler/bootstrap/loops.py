"""The background loops: writers, watches and consumers of the bus.

`standby_loops` run in every replica, all others in the active one only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.bus.client import Deliver, Subscription
from hamicommon.bus.logins import ASK_SUBJECT
from hamicommon.errors import HamiError, Unavailable
from hamicommon.events import INVENTORY_STREAM, LIMITS_STREAM, REPORTS_STREAM
from hamicommon.k8s.informer import Informer
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.periodic import every
from hamicommon.process.shutdown import end

from hami_scheduler.activity import Activity, SchedulerLease
from hami_scheduler.adoption.resource_claims import SUBJECT as CLAIMS_SUBJECT
from hami_scheduler.api.app import Loop
from hami_scheduler.bootstrap.core import Core
from hami_scheduler.bootstrap.informers import Watches
from hami_scheduler.bootstrap.simulating import WARM_INTERVAL_S, Simulations
from hami_scheduler.bus import ledger_stats
from hami_scheduler.bus.heartbeats import CHECK_INTERVAL_S
from hami_scheduler.bus.reports import GrantReports
from hami_scheduler.enforcement.checks import CLOSE_INTERVAL_S, LimitChecks
from hami_scheduler.enforcement.periods import EvictionPolicy
from hami_scheduler.kueue.check import SliceCheck
from hami_scheduler.ledger.quota import quota_amounts
from hami_scheduler.placement import fragmentation_tables
from hami_scheduler.placement.closed_nodes import ClosedNodes
from hami_scheduler.placement.waiting_pods import ARRIVALS_INTERVAL_S
from hami_scheduler.pod_ending import PodEnder
from hami_scheduler.pod_events import LogLimit
from hami_scheduler.preemption import loop as preemption
from hami_scheduler.reconcile import ended_waits, retention
from hami_scheduler.reconcile.lying_rows import CounterRepairer
from hami_scheduler.reconcile.reconciler import Reaper, Reconciler
from hami_scheduler.reconcile.retention import HistoryCleanup
from hami_scheduler.reconcile.stuck_pods import CardConditionReporter, StuckPodReporter
from hami_scheduler.reconcile.ungranted_pods import GrantRestorer, UngrantedPods
from hami_scheduler.scaling import loop as scaling
from hami_scheduler.watch import claim_templates
from hami_scheduler.watch.annotated_nodes import LOOK_INTERVAL_S

logger = logging.getLogger(__name__)

# Nothing can be decided before the ledger was read once.
LOAD_RETRY_S = 1.0
# The API server is listed within a second or two of the start; the first comparison follows soon.
SYNC_RETRY_S = 0.5
TIDY_INTERVAL_S = 600.0

Loops = Sequence[tuple[str, Loop]]


def periodic(
    name: str,
    interval_s: float | Callable[[], float],
    one_round: Callable[[], Awaitable[object]],
    bulkhead: Bulkhead | None = None,
) -> tuple[str, Loop]:
    """A loop of rounds, by its name; with `bulkhead` a round that fails is counted and repeated."""
    return name, lambda: every(interval_s, one_round, name=name, bulkhead=bulkhead)


def standby_loops(core: Core, watches: Watches) -> Loops:
    """Return the loops of every replica, which keep it ready and write nothing."""
    every_s, connections = core.settings.reconcile_s, core.connections
    rounds = partial(periodic, bulkhead=core.bulkhead)
    snapshots = ledger_stats.GrantSnapshots(connections.store, bulkhead=core.bulkhead)
    bus, logins, queue = connections.bus, connections.logins, ledger_stats.QUEUE
    groups: Loops = ()
    if core.settings.groups != "off":
        groups = (("pod-groups", core.pod_groups.run),)
    loops: Loops = (
        *groups,
        *((name, informer.run) for name, informer in watches.informers.items()),
        rounds(
            "view",
            lambda: every_s if core.state.loaded else LOAD_RETRY_S,
            partial(compare_state, core),
        ),
        rounds("agents", min(CHECK_INTERVAL_S, every_s), core.liveness.once),
        ("snapshots", lambda: bus.serve(ledger_stats.SUBJECT, queue, snapshots.respond)),
    )
    if logins is None:
        return loops
    return (*loops, ("logins", lambda: bus.serve(ASK_SUBJECT, queue, logins.respond)))


async def compare_state(core: Core) -> None:
    """Read the ledger the first time, and compare the state with it from then on."""
    if not core.state.loaded:
        await core.state.load()
    elif await core.state.refresh():
        core.on_freed()


def writing_loops(core: Core) -> Loops:
    """Return the periodic loops that write to the ledger, the bus and the API server."""
    settings, connections = core.settings, core.connections
    # An unexpected row ends one round, with the state from before, and not the process.
    rounds = partial(periodic, bulkhead=core.bulkhead)
    reaper = Reaper(
        ledger=connections.store,
        pods=connections.pods,
        transitions=core.transitions,
        agent_speaks=core.liveness.speaks,
        rows=core.lying_rows,
        bulkhead=core.bulkhead,
    )
    late = StuckPodReporter(
        ledger=connections.store,
        pods=connections.pods,
        silent=core.silent,
        announcer=core.announcer,
        instruments=core.instruments,
        late_s=settings.bound_late_s,
    )
    conditions = CardConditionReporter(
        connections.queries,
        silent=lambda: core.liveness.mute,
        announcer=core.announcer,
        bulkhead=core.bulkhead,
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
    arrivals = core.demand.arrivals

    async def expire() -> None:
        core.state.expire()

    tidy = partial(connections.decisions.tidy, keep_days=settings.decision_days)
    return (
        ("outbox", connections.relay.run),
        ("ledger-writer", core.writer.run),
        ("decisions", core.recorder.run),
        rounds(
            "arrivals",
            lambda: ARRIVALS_INTERVAL_S if arrivals.restored else LOAD_RETRY_S,
            arrivals.restore,
        ),
        rounds("usual-pods", fragmentation_tables.CHECK_INTERVAL_S, core.tables.once),
        rounds("old-decisions", TIDY_INTERVAL_S, tidy),
        rounds("old-history", retention.INTERVAL_S, cleanup.once),
        ("background", connections.background.run),
        ("requeue", core.requeuer.run),
        ("wakes", core.requeuer.run_wakes),
        rounds("reap", settings.reap_s, reaper.once),
        rounds("assumptions", settings.reap_s, expire),
        rounds("late", settings.reconcile_s, late.once),
        rounds("card-conditions", settings.reconcile_s, conditions.once),
    )


def watching_loops(core: Core, watches: Watches) -> Loops:
    """Return the loops that follow the API server and compare it with the ledger."""
    connections, every_s = core.connections, core.settings.reconcile_s
    rounds = partial(periodic, bulkhead=core.bulkhead)
    reconciler = Reconciler(
        ledger=connections.store,
        pods=connections.pods,
        transitions=core.transitions,
        mirrors=core.mirrors,
        drift=core.drift,
        instruments=core.instruments,
        known_pods=watches.pods.by_uid,
        known_nodes=watches.nodes,
        ungranted=_ungranted_pods(core),
        rows=core.lying_rows,
    )
    counters = CounterRepairer(store=connections.counters, view=core.state, drift=core.drift)

    async def reconcile() -> None:
        if not watches.missing():
            await reconciler.once()
            # After the rows, as the counters are sums over them.
            await counters.once()
            core.on_freed()

    return (
        *_template_loops(watches),
        ("pod-changes", watches.pods.queue.run),
        ("pod-comparisons", watches.pods.run_comparisons),
        ("node-changes", watches.nodes.queue.run),
        ("annotated-nodes", watches.annotated.queue.run),
        rounds("annotated-questions", LOOK_INTERVAL_S, watches.annotated.ask_again),
        ("claim-holders", core.claim_holders.queue.run),
        ("quota-changes", watches.quotas.queue.run),
        rounds("quota-counts", every_s, watches.quotas.recount),
        rounds("ended-waits", ended_waits.COMPARE_INTERVAL_S, watches.ended_waits.once),
        rounds("reconcile", lambda: SYNC_RETRY_S if watches.missing() else every_s, reconcile),
    )


def _template_loops(watches: Watches) -> Loops:
    templates = watches.templates
    if templates is None:
        return ()

    async def revisit() -> None:
        listed = all(watches.informers[name].synced.is_set() for name in ("templates", "pods"))
        await templates.revisit(listed=listed)

    return (
        ("claim-templates", templates.queue.run),
        periodic("idle-claim-templates", claim_templates.LOOK_INTERVAL_S, revisit),
    )


def _ungranted_pods(core: Core) -> UngrantedPods:
    store = core.connections.store
    return UngrantedPods(
        store=store,
        restorer=GrantRestorer(
            store=store,
            apply=core.state.apply,
            read_signed=core.connections.read_signed,
            quota_of=partial(quota_amounts, vendors=core.vendors),
            witness=core.connections.witness,
            put_back=core.lying_rows.put_back,
        ),
        claimed=core.claim_holders,
        drift=core.drift,
        announcer=core.announcer,
        wants_devices=core.requests.wants_devices,
        scheduler_name=core.settings.scheduler_name,
    )


def bus_loops(core: Core, watches: Watches) -> Loops:
    """Return the loops that take the agents' reports and requests."""
    connections, bus = core.connections, core.connections.bus
    store, pods = connections.store, connections.pods
    reports = GrantReports(
        store=store,
        transitions=core.transitions,
        drift=core.drift,
        doubt_mirror=core.mirrors.doubt,
        pods=pods,
        ender=PodEnder(pods),
        announcer=core.announcer,
        instruments=core.instruments,
        known_pods=watches.pods.by_uid,
    )
    inventory_source = Subscription(
        stream=INVENTORY_STREAM,
        subject="hami.inventory.v1.*",
        consumer="scheduler-inventory",
        deliver=Deliver.LAST_PER_SUBJECT,
    )
    reports_source = Subscription(
        stream=REPORTS_STREAM, subject="hami.reports.v1.*", consumer="scheduler-reports"
    )
    inventories, claims = watches.inventories, core.claim_grants
    stats = ledger_stats.LedgerStatsPublisher(connections.ledger_stats, bus, bulkhead=core.bulkhead)
    return (
        ("inventory", lambda: bus.consume_all(inventory_source, inventories.handle_all)),
        ("reports", lambda: bus.consume_all(reports_source, reports.handle_all)),
        ("resource-claims", lambda: bus.serve(CLAIMS_SUBJECT, ledger_stats.QUEUE, claims.respond)),
        ("feeds", lambda: bus.serve_feeds(ledger_stats.QUEUE)),
        ("deliveries", lambda: bus.settle_deliveries(ledger_stats.QUEUE)),
        periodic("ledger-stats", ledger_stats.PUBLISH_INTERVAL_S, stats.once),
    )


def preemption_loops(
    core: Core, preemptor: preemption.Preemptor, simulations: Simulations
) -> Loops:
    """Return the loops that keep rooms and make new ones."""
    rounds, look_s = partial(periodic, bulkhead=core.bulkhead), preemption.LOOK_INTERVAL_S
    if not preemptor.limits.is_on:
        # There may be rooms of before the setting was changed.
        seldom_s = preemption.PLAN_AGAIN_S
        return (rounds("rooms", lambda: look_s if core.rooms else seldom_s, preemptor.keep_rooms),)
    return (
        rounds("rooms", look_s, preemptor.keep_rooms),
        rounds("preemption", look_s, preemptor.plan_next),
        rounds("planner", WARM_INTERVAL_S, simulations.warm_up),
    )


def kueue_loops(core: Core, watches: Watches, closed: ClosedNodes) -> Loops:
    """Return the loop that answers Kueue's admission checks."""
    if watches.kueue is None:
        return ()
    settings, kueue = core.settings, watches.kueue
    check = SliceCheck(
        api=core.connections.api,
        state=core.state,
        is_ready=lambda: core.state.loaded and not watches.missing(),
        bookings=core.bookings,
        rules=AdmissionRules(
            vendors=core.vendors,
            scheduler_name=settings.scheduler_name,
            tampering=TamperingPolicy.of(settings.admission),
        ),
        defaults=core.requests.defaults,
        nodes=watches.informers["nodes"].store.values,
        closed=closed,
        workloads=kueue.workloads.store.values,
        checks=kueue.checks.store.values,
        flavors=kueue.flavors.store.values,
        instruments=core.instruments,
        record=core.recorder.add,
        give_way_s=settings.kueue_give_way_s,
        booking_s=settings.kueue_booking_s,
    )
    kueue.on_change = check.wake
    core.freed_listeners.append(check.wake)
    return (("kueue", check.run),)


def scaling_loops(core: Core, scaler: scaling.Scaler) -> Loops:
    """Return the loops that keep wishes for nodes and plan new ones."""
    if core.settings.scale == "off":
        return ()
    rounds = partial(periodic, bulkhead=core.bulkhead)
    return (
        rounds("scale-wishes", scaling.LOOK_INTERVAL_S, scaler.keep),
        rounds("scale-plan", scaling.PLAN_INTERVAL_S, scaler.plan),
    )


def limit_loops(core: Core, watches: Watches) -> Loops:
    """Return the consumer of limit findings, and the loop that ends unreported ones."""
    settings, connections = core.settings, core.connections
    policy = EvictionPolicy(
        after_s=settings.evict_after_s, per_minute=settings.evictions_per_minute
    )
    store = watches.pod_informer.store
    checks = LimitChecks(
        history=connections.limits,
        pod_named=lambda namespace, name: store.get((namespace, name)),
        announcer=core.announcer,
        instruments=core.instruments,
        log_limit=LogLimit(),
        ender=PodEnder(connections.pods),
        policy=policy if settings.enforcement == "evict" else None,
    )
    source = Subscription(
        stream=LIMITS_STREAM, subject="hami.limits.v1.*", consumer="scheduler-limits"
    )
    return (
        ("limits", lambda: connections.bus.consume(source, checks.handle)),
        periodic("silent-limits", CLOSE_INTERVAL_S, checks.close_silent),
    )


@asynccontextmanager
async def running(loops: Loops) -> AsyncIterator[None]:
    """Run the loops during the block; one that dies cancels the block.

    Raises: what the loop died of.
    """
    block = asyncio.current_task()
    assert block is not None
    died: list[asyncio.Task[None]] = []
    stopping = False

    def on_done(task: asyncio.Task[None]) -> None:
        if not stopping and not task.cancelled() and not died:
            died.append(task)
            block.cancel()

    tasks = [asyncio.create_task(run(), name=name) for name, run in loops]
    for task in tasks:
        task.add_done_callback(on_done)
    try:
        yield
    except asyncio.CancelledError:
        if not died:
            raise
        block.uncancel()
        logger.error("Restarting a background loop that failed", extra={"loop": died[0].get_name()})
        raise died[0].exception() or RuntimeError(f"{died[0].get_name()} ended") from None
    finally:
        stopping = True
        await end(tasks)


def while_active(
    lease: SchedulerLease,
    activity: Activity,
    *,
    load: Callable[[], Awaitable[object]],
    informers: Sequence[Informer],
    loops: Loops,
    hold_s: float = 0.0,
) -> Loop:
    """Return the loop that runs `loops` once this replica becomes active.

    `load` reads the ledger; calls are accepted `hold_s` later. The handlers of `informers` get all
    known objects, as after a start. The loop ends with an error when the Lease is lost, and with it
    the process, as kube-scheduler does: its pending work belongs to another replica then.
    """

    async def run() -> None:
        logger.info(
            "Standing by until this replica holds the Lease", extra={"because": lease.explain()}
        )
        await lease.wait_until_held_here()
        await _load_with_retry(load)
        for informer in informers:
            informer.start_handlers()
        async with running(loops):
            with suppress(TimeoutError):
                async with asyncio.timeout(hold_s):
                    await lease.wait_until_lost()
            if lease.is_held_here:
                activity.begin()
                logger.info("Became active", extra={"lease": lease.name})
            try:
                await lease.wait_until_lost()
            finally:
                activity.end()
            logger.warning("Exiting: lost the Lease", extra={"because": lease.explain()})
            raise Unavailable(f"not active any more: {lease.explain()}")

    return run


async def _load_with_retry(load: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await load()
        except HamiError as exc:
            logger.warning("Failed to read the ledger, retrying", extra={"error": str(exc)})
            await asyncio.sleep(LOAD_RETRY_S)
        else:
            return
