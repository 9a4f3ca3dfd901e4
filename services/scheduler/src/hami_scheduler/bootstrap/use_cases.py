"""The composition root: opens the connections, wires the use cases and the loops over them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from hamicommon import telemetry
from hamicommon.admission.tampering.guard import Guard
from hamicommon.admission.tampering.policy import TamperingPolicy
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Unavailable
from hamicommon.k8s.pod_object import owner_of
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.vendors.registry import Vendors

from hami_scheduler.activity import Activity, SchedulerLease
from hami_scheduler.adoption.adopt import Adopter
from hami_scheduler.adoption.entries import AdoptionEntries
from hami_scheduler.api.claim_waits import PodsByClaims
from hami_scheduler.api.explain import Explainer
from hami_scheduler.api.service import Loop, Service
from hami_scheduler.api.v1 import VainSettings
from hami_scheduler.bootstrap.connections import Connections, open_connections
from hami_scheduler.bootstrap.gauges import measure
from hami_scheduler.bootstrap.holders import claims_at_bind
from hami_scheduler.bootstrap.informers import Watches, lease_informer, watches_of
from hami_scheduler.bootstrap.limits import limit_loops
from hami_scheduler.bootstrap.loops import (
    bus_loops,
    lying_rows,
    standby_loops,
    watching_loops,
    writing_loops,
)
from hami_scheduler.bootstrap.running import while_active
from hami_scheduler.bootstrap.shared import Core, core_of
from hami_scheduler.bootstrap.simulating import Simulations, vendors_of
from hami_scheduler.bus.inventories import InventoryReports
from hami_scheduler.extender.agent_offers import AgentOffers
from hami_scheduler.extender.bind import BINDING_EXTRA_S, Bind
from hami_scheduler.extender.filter import Filter
from hami_scheduler.extender.host_scoring import HostScoring
from hami_scheduler.extender.place_at_bind import PlaceAtBind
from hami_scheduler.extender.pod_binding import PodBinding
from hami_scheduler.extender.verbs import ExtenderVerbs
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.placer import Placer
from hami_scheduler.reconcile.fitting_pods import WaitingFigures
from hami_scheduler.settings import Settings
from hami_scheduler.watch.dead_kube_scheduler import DeadKubeScheduler


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """Connects to everything and wires the use cases; closes in reverse.

    Raises: InvalidRequest when a file that the settings name is not usable.
    """
    vendors = vendors_of(
        settings.device_config_file,
        enable_ascend=settings.enable_ascend,
        enable_iluvatar=settings.enable_iluvatar,
    )
    async with AsyncExitStack() as stack:
        instruments = SchedulerInstruments()
        instruments.registry.set_target_info(
            telemetry.target_info("hami-scheduler", settings.telemetry)
        )
        connections = await open_connections(settings, vendors, instruments.bulkhead, stack)
        yield build(settings, vendors, instruments, connections)


def build(
    settings: Settings,
    vendors: Vendors,
    instruments: SchedulerInstruments,
    connections: Connections,
) -> Service:
    """The whole service."""
    core = core_of(settings, vendors, instruments, connections)

    def cards_written(nodes: Collection[NodeName]) -> None:
        for node in nodes:
            watches.node_sync.again(node)
        core.requeuer.capacity_freed()

    inventories = InventoryReports(
        store=connections.inventory,
        view=core.state,
        refused=core.refused,
        journal=connections.journal,
        instruments=core.instruments,
        on_heard=core.liveness.heard,
        on_written=cards_written,
    )
    watches = watches_of(core, connections, inventories)
    filtering, binding = _deciding(core, connections)
    fitting = WaitingFigures(
        view=core.state,
        waiting=core.demand.waiting,
        refusals=connections.queries,
        vendors=vendors,
        silent=lambda: core.liveness.silent,
        bulkhead=core.instruments.bulkhead,
    )

    async def readiness() -> Mapping[str, str]:
        missing = watches.missing()
        try:
            await connections.ping()
        except Unavailable as exc:
            missing["postgres"] = str(exc)
        if not core.state.loaded:
            missing["view"] = "the ledger has not been read yet"
        return missing

    verbs = ExtenderVerbs(
        filtering=filtering,
        hosts=HostScoring(
            cluster=core.state.cluster, requests=core.requests, instruments=core.instruments
        ),
        binding=binding,
        background=connections.background,
    )
    rows = lying_rows(core, connections)
    active_loops = (
        *writing_loops(core, connections, rows),
        *watching_loops(core, connections, watches, rows),
        *bus_loops(core, connections, inventories, watches),
        *limit_loops(core, connections, watches),
    )
    simulations = Simulations(settings, core.requests.defaults)
    activity, active_loops = _activity(core, connections, watches, active_loops)
    return Service(
        verbs=verbs,
        activity=activity,
        queries=connections.queries,
        letters=connections.bus.letters,
        explainer=Explainer(
            queries=connections.queries,
            pods=connections.pods,
            vendors=vendors,
            scheduler_name=settings.scheduler_name,
            recorder=core.recorder,
            new_view=lambda: ClusterView(vendors.rules),
            silent=lambda: core.liveness.mute,
        ),
        by_claims=PodsByClaims(watches.pod_informer.store.values, connections.claims),
        vain_settings=VainSettings(
            quotas=watches.quotas.mistakes, cordons=watches.unmatched_cordons.by_node
        ),
        simulated=simulations.answer,
        adopter=Adopter(
            ledger=connections.store,
            entries=AdoptionEntries(
                ledger=connections.store,
                pods=connections.pods,
                grants=connections.grants,
                view=core.state,
                announcer=core.announcer,
                instruments=core.instruments,
                vendors=vendors,
                label_keys=settings.kept_labels,
            ),
            witness=connections.witness,
            view=core.state,
            vendors=vendors,
            known_pods=watches.pods.by_uid,
            synced=lambda: not watches.missing(),
            request_of=core.requests.of,
        ),
        access=connections.access,
        journal=connections.calls,
        instruments=core.instruments,
        readiness=readiness,
        measure=lambda: measure(core, connections, fitting, activity),
        loops=(
            *standby_loops(core, connections, watches),
            ("simulations", simulations.run),
            *active_loops,
        ),
    )


def _activity(
    core: Core,
    connections: Connections,
    watches: Watches,
    loops: tuple[tuple[str, Loop], ...],
) -> tuple[Activity, tuple[tuple[str, Loop], ...]]:
    """When this replica is active, and `loops` so that they run then."""
    settings = core.settings
    if not settings.lease_name:
        return Activity(), loops
    lease = SchedulerLease(f"{settings.lease_namespace}/{settings.lease_name}", settings.pod_name)
    activity = Activity(lease)
    informers = tuple(watches.informers().values())
    for each in informers:
        each.hold_handlers()
    watching = lease_informer(settings, connections.api, lease)
    run = while_active(
        lease,
        activity,
        load=core.state.load,
        informers=informers,
        loops=loops,
        hold_s=settings.hold_s,
    )
    mine: tuple[tuple[str, Loop], ...] = (("lease", watching.run), ("active", run))
    if settings.kube_scheduler:
        dead = DeadKubeScheduler(settings.kube_scheduler, connections.api, lease, watching)
        mine = (*mine, ("kube-scheduler", dead.run))
    return activity, mine


def _deciding(core: Core, connections: Connections) -> tuple[Filter, Bind]:
    placer = Placer(
        state=core.state,
        requests=core.requests,
        recorder=core.recorder,
        binding_s=core.settings.bind_timeout_s + BINDING_EXTRA_S,
        owner_of=partial(owner_of, label_keys=core.settings.kept_labels),
    )
    filtering = Filter(
        state=core.state,
        placer=placer if core.settings.allocate_at == "filter" else None,
        requests=core.requests,
        guard=Guard.of(core.vendors, TamperingPolicy.of(core.settings.admission)),
        demand=core.demand,
        recorder=core.recorder,
        outcomes=core.outcomes,
        silent=lambda: core.liveness.silent,
    )
    binding = Bind(
        state=core.state,
        store=connections.store,
        writer=core.writer,
        place_on_node=PlaceAtBind(
            state=core.state,
            placer=placer,
            claims_on_node=claims_at_bind(core, connections).on_node,
            pods=connections.pods,
            requests=core.requests,
            recorder=core.recorder,
        ),
        locks=core.locks,
        pod=PodBinding(connections.pods, sign=connections.sign),
        offers=AgentOffers(
            connections.grants,
            on_unanswered=core.liveness.unanswered,
            instruments=core.instruments,
        ),
        transitions=core.transitions,
        background=connections.background,
        outcomes=core.outcomes,
        timeout_s=core.settings.bind_timeout_s,
    )
    return filtering, binding
