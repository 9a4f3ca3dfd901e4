"""The parts that several use cases share, wired from the settings and the open connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial

from hamicommon.domain.allocations import Allocation, Placement
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.pod_object import owner_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.vendors.pod_request import PodRequests
from hamicommon.vendors.registry import Vendors

from hami_scheduler.adoption.resource_claims import ClaimGrants, ClaimHolders
from hami_scheduler.bootstrap.connections import Connections
from hami_scheduler.bus.heartbeats import AgentLiveness
from hami_scheduler.drift import Drift, NodeProblems
from hami_scheduler.extender.bind import BINDING_EXTRA_S
from hami_scheduler.ledger.bookings import Bookings
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.node_locks import MirroredLocks, NodeLocks
from hami_scheduler.ledger.rooms import Rooms
from hami_scheduler.ledger.transitions import Transitions
from hami_scheduler.ledger.writer import LedgerWriter
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.decisions import DecisionQueue
from hami_scheduler.placement.expected_nodes import ExpectedNodes
from hami_scheduler.placement.fragmentation_tables import TableMaker, read_usual_pods
from hami_scheduler.placement.group_members import GroupMembers
from hami_scheduler.placement.groups import GroupPlans
from hami_scheduler.placement.placer import vendors_annotations
from hami_scheduler.placement.waiting_pods import ArrivalCounts, Demand, Requeuer, WaitingPods
from hami_scheduler.pod_events import Announcer, LogLimit, Outcomes, PodMarks
from hami_scheduler.reconcile.annotation_diff import misread
from hami_scheduler.reconcile.lying_rows import LyingRows
from hami_scheduler.reconcile.pod_annotations import Mirrors
from hami_scheduler.settings import Settings
from hami_scheduler.watch.pod_groups import PodGroupWatch

REFUSED_CLASS = "card-refused"
"""Cards that nodes report and the ledger does not take."""


class Core:
    """State, policies, and what changes grants."""

    def __init__(
        self,
        settings: Settings,
        vendors: Vendors,
        instruments: SchedulerInstruments,
        connections: Connections,
    ) -> None:
        self.settings, self.vendors = settings, vendors
        self.instruments, self.bulkhead = instruments, instruments.bulkhead
        self.connections = connections
        store, pods = connections.store, connections.pods
        self.drift = drift = Drift(connections.journal, instruments)
        self.requests = PodRequests(vendors=vendors, defaults=_policy(settings))
        self.announcer = announcer = Announcer(connections.events)
        self.state = ClusterState(
            connections.inventory,
            quota_store=connections.quotas,
            grants=store,
            rules=vendors.rules,
            ttl_s=settings.reservation_s,
            on_freed=self.on_freed,
            on_forgotten=lambda why: instruments.assumes_forgotten.labels(why.value).inc(),
        )
        if settings.usual_pods_file is not None:
            self.state.cluster.usual.give(read_usual_pods(settings.usual_pods_file))
        self.recorder = DecisionQueue(
            connections.decisions,
            announcer,
            until_idle=connections.background.until_idle,
            bulkhead=self.bulkhead,
        )
        self.tables = TableMaker(self.state.cluster)
        self.demand = Demand(
            waiting=WaitingPods(), arrivals=ArrivalCounts(self.state.cluster, connections.decisions)
        )
        self.rooms = Rooms()
        self.bookings = Bookings(
            self.state, lambda result: instruments.kueue_bookings.labels(result).inc()
        )
        self.freed_listeners: list[Callable[[], None]] = []
        """Called, as the requeuer is, when capacity has become free."""
        self.expected = ExpectedNodes()
        self.requeuer = Requeuer(
            view=self.state, waiting=self.demand.waiting, pods=pods, instruments=instruments
        )
        self.pod_groups = PodGroupWatch(
            connections.api, on_failed=lambda group: self.groups.forget(group)
        )
        self.groups = GroupPlans(
            members=self.new_members(),
            state=self.state,
            requests=self.requests,
            silent=self.silent,
            instruments=instruments,
            wake=self.requeuer.wake,
            binding_s=settings.bind_timeout_s + BINDING_EXTRA_S,
            bind_s=settings.group_wait_s,
            owner_of=partial(owner_of, label_keys=settings.kept_labels),
            note_visit=self.demand.waiting.note_visit,
            record=self.recorder.add,
        )
        if settings.groups != "off":
            self.requeuer.group_of = self.groups.members.quorum_group
            self.requeuer.group_fits = self.groups.would_fit
        self.writer = LedgerWriter(
            store, window_s=settings.commit_window_s, on_committed=self.state.on_committed
        )
        self.mirrored = MirroredLocks(
            nodes=connections.nodes, pods=pods, lock=connections.lock, store=store, vendors=vendors
        )
        self.locks = NodeLocks(connections.lock, self.mirrored)
        self.claim_grants = ClaimGrants(
            store=store,
            pods=pods,
            claims=connections.claims,
            request_of=self.requests.of,
            view=self.state,
            vendors=vendors,
            instruments=instruments,
            label_keys=settings.kept_labels,
            binding_s=settings.bind_timeout_s + BINDING_EXTRA_S,
        )
        self.claim_holders = ClaimHolders(
            grants=self.claim_grants,
            claims=connections.claims,
            store=store,
            announcer=connections.grants,
            bulkhead=self.bulkhead,
        )
        self.transitions = Transitions(
            writer=self.writer,
            locks=self.locks,
            announcer=announcer,
            grants=connections.grants,
            instruments=instruments,
            release_unconfirmed_s=settings.release_unconfirmed_s,
            bound_delay_s=settings.bound_delay_s,
            before_end=self.claim_holders.before_end,
            on_freed=self.on_freed,
        )
        self.liveness = AgentLiveness(
            reader=connections.inventory,
            bus_connected_for_s=lambda: connections.bus.connected_for_s,
            on_recovered=self.on_freed,
            silent_s=settings.agent_silent_s,
        )
        marks = PodMarks(all_events=settings.events == "all", all_labels=settings.label)
        self.outcomes = Outcomes(
            announcer=announcer, marks=marks, log_limit=LogLimit(), instruments=instruments
        )
        self.mirrors = Mirrors(
            store=store, pods=pods, vendors=vendors, drift=drift, log_limit=LogLimit(), marks=marks
        )
        self.refused = NodeProblems(
            kind=REFUSED_CLASS,
            drift=drift,
            names_item=True,
            on_count=partial(drift.show_standing, REFUSED_CLASS),
        )
        longest_s = max(
            *(settings.reservation_s, settings.bind_timeout_s),
            *(settings.lock_s, settings.release_unconfirmed_s),
        )
        self.lying_rows = LyingRows(
            store=connections.row_repairs,
            drift=drift,
            read_signed=connections.read_signed,
            misread=self._misread,
            annotate=store.annotate,
            longest_s=10 * longest_s,
        )

    def _misread(self, row: Allocation, pod: JsonMapping) -> Mapping[str, str]:
        """The row's annotations that are not what its vendors write for its slices."""
        cards = self.state.cluster.cards(row.node)
        devices = {card.usage.device.uuid: card.usage.device for card in cards}
        if any(s.uuid not in devices for each in row.containers for s in each.shares):
            return {}
        try:
            selections = self.requests.of(pod).selections
        except InvalidRequest:
            return {}
        placement = Placement(node=row.node, containers=row.containers)
        written = vendors_annotations(
            placement, devices, selections, self.vendors, now=datetime.now(UTC)
        )
        return misread(row, written, self.vendors)

    def new_members(self) -> GroupMembers:
        """Return an index of groups without pods."""
        return GroupMembers(self.requests.of, self.pod_groups.quorum, self.settings.scheduler_name)

    def on_freed(self) -> None:
        """Try waiting pods again: capacity has become free."""
        self.requeuer.capacity_freed()
        for listener in self.freed_listeners:
            listener()

    def silent(self) -> frozenset[NodeName]:
        """The nodes where no pod should go, because their agents have stopped talking."""
        return self.liveness.silent


def _policy(settings: Settings) -> Policy:
    """The policies of pods that name none."""
    usual = "fragmentation" if settings.node_scheduler_policy == "fragmentation" else "spread"
    gpu = tuple(part.strip() for part in (settings.gpu_scheduler_policy or usual).split(","))
    return Policy(node=settings.node_scheduler_policy, gpu=gpu)
