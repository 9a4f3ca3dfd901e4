"""The composition root: opens the connections, wires the use cases and the loops over them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from hamicommon import telemetry
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.admission.tampering.guard import Guard
from hamicommon.errors import Conflict, InvalidRequest, Unavailable
from hamicommon.k8s.annotations import split_list
from hamicommon.k8s.pod_object import owner_of
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.scaling.node_types import TypeEntry, node_types, read_types
from hamicommon.vendors.registry import Vendors

from hami_scheduler.activity import Activity, DeadKubeScheduler, SchedulerLease
from hami_scheduler.adoption.adopt import Adopter
from hami_scheduler.api.app import Service, VainSettings
from hami_scheduler.api.explain import Explainer, UndecidedPods
from hami_scheduler.api.groups import GroupExplainer
from hami_scheduler.api.preempt import PreemptionPreviews
from hami_scheduler.bootstrap import loops
from hami_scheduler.bootstrap.connections import Connections, open_connections
from hami_scheduler.bootstrap.core import Core
from hami_scheduler.bootstrap.informers import Watches, lease_informer
from hami_scheduler.bootstrap.loops import Loops
from hami_scheduler.bootstrap.simulating import Simulations, vendors_of
from hami_scheduler.extender.app import ExtenderVerbs
from hami_scheduler.extender.bind import BINDING_EXTRA_S, Bind
from hami_scheduler.extender.bind_steps import AgentOffers, PlaceAtBind, PodBinding
from hami_scheduler.extender.filter import Filter, HostScoring
from hami_scheduler.extender.group_barrier import GroupBarrier
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.closed_nodes import ClosedNodes
from hami_scheduler.placement.placer import Placer
from hami_scheduler.preemption.loop import PreemptionLimits, Preemptor
from hami_scheduler.preemption.planning import PreemptionPlans
from hami_scheduler.preemption.verb import PreemptVerb
from hami_scheduler.reconcile.fitting_pods import WaitingFigures
from hami_scheduler.scaling.loop import Scaler
from hami_scheduler.scaling.planning import ScaleQuestions
from hami_scheduler.settings import Settings


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """Connect to everything and wires the use cases; closes in reverse.

    Raises: InvalidRequest when a file that the settings name is not usable.
    """
    vendors = vendors_of(settings)
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
    core = Core(settings, vendors, instruments, connections)
    watches = Watches(core)
    filtering, binding = _deciding(core)
    fitting = WaitingFigures(
        view=core.state,
        waiting=core.demand.waiting,
        refusals=connections.queries,
        vendors=vendors,
        silent=core.silent,
        bulkhead=core.bulkhead,
        is_grouped=core.groups.members.is_grouped,
    )
    closed = ClosedNodes(
        registered=lambda: core.state.cluster.nodes,
        objects=watches.informers["nodes"].store.values,
        silent=lambda: core.liveness.mute,
    )
    simulations = Simulations(settings, core.requests.defaults, closed)
    plans = PreemptionPlans(
        api=connections.api,
        pods=watches.pods.by_uid,
        closed=closed,
        protected=split_list(settings.preemption_protected_namespaces),
        min_runtime_s=settings.preemption_min_runtime_s,
        search=simulations.plan,
    )
    scaler = _scaler(core, watches, simulations)
    activity, active_loops = _activity(
        core,
        watches,
        (
            *loops.writing_loops(core),
            *loops.watching_loops(core, watches),
            *loops.bus_loops(core, watches),
            *loops.limit_loops(core, watches),
            *loops.preemption_loops(core, _preemptor(core, watches, plans), simulations),
            *loops.kueue_loops(core, watches, closed),
            *loops.scaling_loops(core, scaler),
        ),
    )
    return Service(
        verbs=ExtenderVerbs(
            filtering=filtering,
            hosts=HostScoring(
                cluster=core.state.cluster, requests=core.requests, instruments=instruments
            ),
            binding=binding,
            preempting=PreemptVerb(
                plans=plans,
                queries=connections.queries,
                state=core.state,
                requests=core.requests,
                may_add=settings.preemption_mode == "on",
                is_placeholder=scaler.is_placeholder,
            ).answer,
            simulating=simulations.filter,
            background=connections.background,
        ),
        activity=activity,
        queries=connections.queries,
        letters=connections.bus.letters,
        explainer=Explainer(
            queries=connections.queries,
            pods=connections.pods,
            known_pods=watches.pods.by_uid,
            vendors=vendors,
            scheduler_name=settings.scheduler_name,
            recorder=core.recorder,
            new_view=lambda: ClusterView(vendors.rules),
            silent=closed.silent,
            cordoned=closed.cordoned_nodes,
            hints_preemption=settings.preemption_mode != "off",
        ),
        groups=GroupExplainer(
            pods=watches.pod_informer.store.values,
            new_members=core.new_members,
            plans=core.groups,
            decisions=connections.queries.decisions,
        ),
        undecided=UndecidedPods(
            pods=watches.pod_informer.store.values,
            claims=connections.claims,
            vendors=vendors,
            scheduler_name=settings.scheduler_name,
            came=core.demand.waiting.has_visited,
            workloads=watches.kueue.workloads.store.values if watches.kueue else tuple,
        ),
        vain_settings=VainSettings(
            quotas=watches.quotas.mistakes, cordons=watches.unmatched_cordons.by_node
        ),
        simulated=simulations.answer,
        preemption=PreemptionPreviews(
            plans=plans,
            pod_api=connections.pods,
            answered=simulations.preempt,
            is_on=settings.preemption_mode != "off",
        ),
        adopter=Adopter(
            ledger=connections.store,
            pods=connections.pods,
            grants=connections.grants,
            announcer=core.announcer,
            instruments=instruments,
            label_keys=settings.kept_labels,
            witness=connections.witness,
            view=core.state,
            vendors=vendors,
            known_pods=watches.pods.by_uid,
            synced=lambda: not watches.missing(),
            request_of=core.requests.of,
        ),
        access=connections.access,
        journal=connections.calls,
        instruments=instruments,
        readiness=partial(_readiness, core, watches),
        measure=partial(_measure, core, fitting, activity),
        loops=(
            *loops.standby_loops(core, watches),
            ("simulations", simulations.run),
            *active_loops,
        ),
    )


def _preemptor(core: Core, watches: Watches, plans: PreemptionPlans) -> Preemptor:
    settings, connections = core.settings, core.connections
    return Preemptor(
        store=connections.rooms,
        rooms=core.rooms,
        plans=plans,
        waiting=core.demand.waiting,
        state=core.state,
        writer=core.writer,
        pods=watches.pods.by_uid,
        pod_api=connections.pods,
        requests=core.requests,
        announcer=core.announcer,
        instruments=core.instruments,
        is_grouped=core.groups.members.is_grouped,
        limits=PreemptionLimits(
            is_on=settings.preemption_mode == "on",
            after_s=settings.preemption_after_s,
            room_s=settings.preemption_room_s,
            per_minute=settings.preemptions_per_minute,
            max_victims=settings.preemption_max_victims,
        ),
    )


def _scaler(core: Core, watches: Watches, simulations: Simulations) -> Scaler:
    settings, connections = core.settings, core.connections
    entries: list[TypeEntry] = []
    if (path := settings.scale_types_file) is not None:
        try:
            entries = read_types(path.read_text(), str(path))
        except OSError as exc:
            raise InvalidRequest(f"the file of node types can't be read: {exc}") from exc
        described = [entry for entry in entries if entry.cards]
        node_types((), (), described, vendors=[each.name for each in core.vendors])
    nodes = watches.informers["nodes"].store.values
    return Scaler(
        store=connections.scaling,
        placeholders=connections.placeholders,
        questions=ScaleQuestions(
            state=core.state,
            waiting=core.demand.waiting,
            rooms=core.rooms,
            members=core.groups.members if settings.groups != "off" else None,
            our_pods=watches.pods.by_uid,
            all_pods=watches.pod_informer.store.values,
            all_nodes=nodes,
            vendors=core.vendors,
            entries=entries,
            group_labels=split_list(settings.scale_group_labels),
            after_s=settings.scale_after_s,
        ),
        search=simulations.scale,
        state=core.state,
        pods=watches.pods.by_uid,
        nodes=nodes,
        expected=core.expected,
        announcer=core.announcer,
        drift=core.drift,
        instruments=core.instruments,
        on_freed=core.on_freed,
        asks=settings.scale == "on",
        timeout_s=settings.scale_timeout_s,
    )


async def _readiness(core: Core, watches: Watches) -> Mapping[str, str]:
    missing = watches.missing()
    try:
        await core.connections.ping()
    except Unavailable as exc:
        missing["postgres"] = str(exc)
    if not core.state.loaded:
        missing["view"] = "the ledger has not been read yet"
    return missing


def _activity(core: Core, watches: Watches, work: Loops) -> tuple[Activity, Loops]:
    """When this replica is active, and the loops of `work` so that they run then."""
    settings = core.settings
    if not settings.lease_name:
        return Activity(), work
    lease = SchedulerLease(f"{settings.lease_namespace}/{settings.lease_name}", settings.pod_name)
    activity = Activity(lease)
    informers = tuple(watches.informers.values())
    for each in informers:
        each.hold_handlers()
    watching = lease_informer(settings, core.connections.api, lease)
    run = loops.while_active(
        lease,
        activity,
        load=core.state.load,
        informers=informers,
        loops=work,
        hold_s=settings.hold_s,
    )
    mine: Loops = (("lease", watching.run), ("active", run))
    if settings.kube_scheduler:
        dead = DeadKubeScheduler(settings.kube_scheduler, core.connections.api, lease, watching)
        mine = (*mine, ("kube-scheduler", dead.run))
    return activity, mine


def _deciding(core: Core) -> tuple[Filter, Bind]:
    settings, connections = core.settings, core.connections
    binding_s = settings.bind_timeout_s + BINDING_EXTRA_S
    placer = Placer(
        state=core.state,
        requests=core.requests,
        recorder=core.recorder,
        binding_s=binding_s,
        owner_of=partial(owner_of, label_keys=settings.kept_labels),
    )
    filtering = Filter(
        state=core.state,
        rooms=core.rooms,
        bookings=core.bookings,
        placer=placer,
        groups=core.groups if settings.groups != "off" else None,
        requests=core.requests,
        guard=Guard.of(core.vendors, TamperingPolicy.of(settings.admission)),
        demand=core.demand,
        recorder=core.recorder,
        outcomes=core.outcomes,
        silent=core.silent,
        expected=core.expected,
    )
    barrier = GroupBarrier(
        plans=core.groups, writer=core.writer, is_on=settings.groups == "barrier"
    )
    binding = Bind(
        state=core.state,
        store=connections.store,
        writer=core.writer,
        begin_grant=barrier.enter,
        on_ended=core.groups.members.stop,
        place_on_node=PlaceAtBind(
            state=core.state,
            placer=placer,
            claims_on_node=core.claim_grants.grant_at_bind,
            pods=connections.pods,
            requests=core.requests,
            recorder=core.recorder,
        ),
        locks=core.locks,
        pod=PodBinding(connections.pods, sign=connections.sign),
        offers=AgentOffers(
            connections.grants,
            on_unanswered=core.liveness.on_unanswered,
            instruments=core.instruments,
        ),
        transitions=core.transitions,
        background=connections.background,
        outcomes=core.outcomes,
        timeout_s=settings.bind_timeout_s,
    )
    return filtering, binding


async def _measure(core: Core, fitting: WaitingFigures, activity: Activity) -> None:
    """Set the gauges and totals that are read on request; the unknown is NaN, never 0."""
    found, connections = core.instruments, core.connections
    found.active.set(activity.is_active)
    found.group_held_cards.set(core.groups.held_cards())
    found.view_age.set(core.state.age_s)
    found.decisions_dropped.set(core.recorder.dropped)
    found.decisions_without_cards.set(core.recorder.dropped_moments)
    found.decisions_waiting.set(core.recorder.waiting)
    found.events_dropped.set(connections.events.dropped)
    found.background_dropped.set(connections.background.dropped)
    found.outbox_published.set(connections.relay.published)
    found.outbox_parked.set(connections.relay.parked)
    found.dead_letters.set(connections.bus.dead_letters)
    found.stream_problems.set(len(connections.bus.streams.problems))
    found.silent_agents.set(len(core.liveness.silent))
    try:
        found.dead_letters_kept.set(await connections.bus.letters.count())
    except Unavailable:
        found.dead_letters_kept.set(float("nan"))
    try:
        rows, oldest_at = await connections.queries.outbox_lag()
    except Unavailable:
        rows, oldest_at = float("nan"), None
    found.outbox_rows.set(rows)
    found.outbox_oldest.set(oldest_at)
    found.pending_oldest.clear()
    if not activity.is_active:
        return  # the active replica knows which pods wait
    try:
        oldest = await fitting.oldest()
    except (Conflict, Unavailable):
        oldest = {}
    for (reason, fits), at in oldest.items():
        found.pending_oldest.labels(reason, fits.value).set(at)
