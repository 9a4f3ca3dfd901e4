"""What the use cases share: policies, the view, the waiting pods, what gives cards back."""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.domain.requests import Policy
from hamicommon.vendors.registry import Vendors

from hami_scheduler.bootstrap.connections import Connections
from hami_scheduler.bootstrap.usual_pods import read_usual_pods
from hami_scheduler.bus.heartbeats import AgentLiveness
from hami_scheduler.bus.refused_cards import RefusedCards
from hami_scheduler.extender.outcomes import Outcomes
from hami_scheduler.ledger.annotation_lock import MirroredLocks
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.node_locks import NodeLocks
from hami_scheduler.ledger.transitions import Transitions
from hami_scheduler.ledger.writer import LedgerWriter
from hami_scheduler.line_budget import LineBudget
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.decisions.decision_log import DecisionQueue
from hami_scheduler.placement.demand import ArrivalCounts, Demand
from hami_scheduler.placement.fragmentation_tables import TableMaker
from hami_scheduler.placement.pod_requests import PodRequests
from hami_scheduler.placement.requeue import Requeuer
from hami_scheduler.placement.waiting_pods import WaitingPods
from hami_scheduler.pod_events import Announcer
from hami_scheduler.pod_marks import PodMarks
from hami_scheduler.reconcile.pod_annotations import Mirrors
from hami_scheduler.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What the use cases share."""

    settings: Settings
    vendors: Vendors
    requests: PodRequests
    instruments: SchedulerInstruments
    demand: Demand
    tables: TableMaker
    state: ClusterState
    writer: LedgerWriter
    announcer: Announcer
    recorder: DecisionQueue
    requeuer: Requeuer
    mirrored: MirroredLocks
    locks: NodeLocks
    transitions: Transitions
    liveness: AgentLiveness
    mirrors: Mirrors
    refused: RefusedCards
    outcomes: Outcomes


def core_of(
    settings: Settings,
    vendors: Vendors,
    instruments: SchedulerInstruments,
    connections: Connections,
) -> Core:
    """From the settings, and the outside world that was opened."""
    waiting = WaitingPods()
    announcer = Announcer(connections.events)
    marks = PodMarks(all_events=settings.events == "all", all_labels=settings.label)
    state = ClusterState(
        connections.inventory,
        quotas=connections.quotas,
        grants=connections.store,
        rules=vendors.rules,
        ttl_s=settings.reservation_s,
        on_freed=lambda: requeuer.capacity_freed(),
    )
    writer = LedgerWriter(
        connections.store, window_s=settings.commit_window_s, on_committed=state.on_committed
    )
    if settings.usual_pods_file is not None:
        state.cluster.usual.give(read_usual_pods(settings.usual_pods_file))
    mirrored = MirroredLocks(
        nodes=connections.nodes,
        pods=connections.pods,
        lock=connections.lock,
        store=connections.store,
        vendors=vendors,
    )
    locks = NodeLocks(connections.lock, mirrored)
    requeuer = Requeuer(view=state, waiting=waiting, pods=connections.pods, instruments=instruments)
    usual = "fragmentation" if settings.node_scheduler_policy == "fragmentation" else "spread"
    gpu = tuple(part.strip() for part in (settings.gpu_scheduler_policy or usual).split(","))
    return Core(
        settings=settings,
        vendors=vendors,
        requests=PodRequests(
            vendors=vendors, defaults=Policy(node=settings.node_scheduler_policy, gpu=gpu)
        ),
        instruments=instruments,
        demand=Demand(
            waiting=waiting, arrivals=ArrivalCounts(state.cluster, connections.decisions)
        ),
        tables=TableMaker(state.cluster),
        state=state,
        writer=writer,
        announcer=announcer,
        recorder=DecisionQueue(
            connections.decisions,
            announcer,
            until_idle=connections.background.until_idle,
            bulkhead=instruments.bulkhead,
        ),
        requeuer=requeuer,
        mirrored=mirrored,
        locks=locks,
        transitions=Transitions(
            writer=writer,
            locks=locks,
            announcer=announcer,
            grants=connections.grants,
            instruments=instruments,
            release_unconfirmed_s=settings.release_unconfirmed_s,
            bound_delay_s=settings.bound_delay_s,
            on_freed=requeuer.capacity_freed,
        ),
        liveness=AgentLiveness(
            reader=connections.inventory,
            bus_connected_for_s=lambda: connections.bus.connected_for_s,
            on_heard_again=requeuer.capacity_freed,
            silent_s=settings.agent_silent_s,
        ),
        mirrors=Mirrors(
            store=connections.store,
            pods=connections.pods,
            vendors=vendors,
            journal=connections.journal,
            instruments=instruments,
            lines=LineBudget(),
            marks=marks,
        ),
        refused=RefusedCards(journal=connections.journal, instruments=instruments),
        outcomes=Outcomes(
            announcer=announcer,
            marks=marks,
            lines=LineBudget(),
            instruments=instruments,
        ),
    )
