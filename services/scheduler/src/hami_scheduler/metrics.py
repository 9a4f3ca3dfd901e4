"""Prometheus metrics of the scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from hamicommon.process.bulkhead import Bulkhead
from hamicommon.telemetry.moments import CertificateExpiry, Moment
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

# Decisions take milliseconds; binds wait for locks, up to kube-scheduler's time-out.
_FAST_S = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
DRIFT_CLASSES = ("annotations-refused", "card-refused", "pod-without-grant")
"""Classes of differences that can stay; others are repaired when found."""
PHASES = ("parse", "place", "answer", "total")
"""Phases of a decision; `total` is the sum."""
# Pods that wait for capacity are retried immediately; more than a second is a fault.
_RETRY_S = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SLOW_S = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Total(Collector):
    """Counter whose value is computed elsewhere in this process."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text, self._total = name, text, 0.0

    def set(self, total: float) -> None:
        """Set the value, which never decreases."""
        self._total = max(self._total, float(total))

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return the counter for the registry."""
        yield CounterMetricFamily(self._name, self._text, value=self._total)


class SchedulerInstruments:
    """All metrics, in a registry of their own, so that tests can have several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge = partial(Gauge, registry=self.registry)
        self.decision_seconds = self._histogram(
            "hami_scheduler_decision_duration_seconds",
            "Time of one decision by phase; total is from the call to the answer of /filter",
            _FAST_S,
            ["phase"],
        )
        for phase in PHASES:
            self.decision_seconds.labels(phase)
        self.decisions = self._counter(
            "decisions",
            "Decisions by outcome (placed, refused, error, unmanaged) and, for "
            "refusals, the reason "
            "that most nodes had",
            ["outcome", "reason"],
        )
        for outcome in ("placed", "error", "unmanaged"):
            self.decisions.labels(outcome, "")
        self.bind_seconds = self._histogram(
            "hami_scheduler_bind_seconds", "Time to answer /bind", _SLOW_S, ["outcome"]
        )
        self.host_score_seconds = self._histogram(
            "hami_scheduler_host_score_seconds",
            "Time to answer /prioritize-without-cards: scored, or neutral for pods that get cards",
            _FAST_S,
            ["outcome"],
        )
        self.lock_wait_seconds = self._histogram(
            "hami_node_lock_wait_seconds", "Time a bind waited for its node's lock", _SLOW_S
        )
        self.freed_to_retry_seconds = self._histogram(
            "hami_capacity_freed_to_retry_seconds",
            "Time from freed capacity until a waiting pod was requeued",
            _RETRY_S,
        )
        self.pending_oldest = gauge(
            "hami_pending_oldest_timestamp_seconds",
            "When the longest waiting pod began to wait (Unix time), by the reason of its last "
            "refusal and whether it fits now (true, false, unknown); with fits=true: since when it "
            "has fitted. Absent if no pod waits",
            ["reason", "fits"],
        )
        self.drift_items = gauge(
            "hami_ledger_drift_items",
            "Differences between ledger, pods and nodes that are not repaired, by class",
            ["class"],
        )
        for kind in DRIFT_CLASSES:
            self.drift_items.labels(kind).set(0)
        self.active = self._gauge("active", "1 if this replica is active, 0 if it is on standby")
        self.transitions = self._counter("transitions", "State changes of allocations", ["state"])
        self.drift = self._counter("drift", "Differences found by the reconciler", ["class"])
        self.requeues = self._counter("requeues", "Waiting pods that were requeued")
        self.assumes_forgotten = self._counter(
            "assumes_forgotten", "Placements of /filter that ended without a grant", ["reason"]
        )
        self.groups = self._counter(
            "groups",
            "Groups of pods that start together: bound, refused (new reasons of groups that "
            "wait), timed_out (not all came to be bound in time), gone",
            ["result"],
        )
        self.group_wait_seconds = self._histogram(
            "hami_scheduler_group_wait_seconds",
            "Time from a group's first /filter until the grants of all that it needs were written",
            _SLOW_S,
        )
        self.group_held_cards = self._gauge(
            "group_held_cards", "Slices that pods hold while they wait for others of their group"
        )
        self.kueue_checks = self._counter(
            "kueue_checks", "Answers to Kueue's admission checks", ["state"]
        )
        self.kueue_check_seconds = self._histogram(
            "hami_scheduler_kueue_check_duration_seconds",
            "Time of one judgement of a workload's pods",
            _FAST_S,
        )
        self.kueue_bookings = self._counter(
            "kueue_bookings", "Cards kept for pods to come, by how it ended", ["result"]
        )
        self.kueue_booked = gauge(
            "hami_scheduler_kueue_booked_pods", "Pods to come for which cards are kept"
        )
        self.grants_unannounced = self._counter(
            "grants_unannounced", "Binds that continued without the bus"
        )
        self.decisions_dropped = self._total(
            "decisions_dropped", "Decision records dropped because the queue was full"
        )
        self.decisions_without_cards = self._total(
            "decisions_without_cards",
            "Decision records stored without their cards for lack of space",
        )
        self.decisions_waiting = self._gauge(
            "decisions_waiting", "Decision records not yet written"
        )
        self.events_dropped = self._total("events_dropped", "Pod events that could not be written")
        self.background_dropped = self._total(
            "background_dropped",
            "Labels and Normal events dropped because the background queue was full",
        )
        self.view_age = self._gauge(
            "view_age_seconds", "Time since the state in memory last matched the ledger"
        )
        self.certificates = CertificateExpiry("hami-scheduler")
        self.registry.register(self.certificates)
        self.certificate_reloads = self._counter(
            "certificate_reloads", "Changes of certificate files, by result", ["result"]
        )
        self.outbox_published = self._total("outbox_published", "Events published by this replica")
        self.outbox_parked = self._total(
            "outbox_parked", "Events that this replica gave up because the bus refused them"
        )
        self.outbox_rows = self._gauge("outbox_waiting_rows", "Events not published yet")
        self.outbox_oldest = Moment(
            "hami_outbox_oldest_timestamp_seconds",
            "When the oldest unpublished event was written (Unix time); absent if all "
            "are published",
        )
        self.registry.register(self.outbox_oldest)
        self.malformed_inventories = self._gauge(
            "malformed_inventories", "Vendors of nodes without agent whose cards can't be read"
        )
        self.dead_letters = self._total("dead_letters", "Messages that could not be handled")
        self.inventories_ignored = self._counter(
            "inventories_ignored", "Reports of nodes ignored because a newer one is known"
        )
        self.clock_skew = gauge(
            "hami_scheduler_node_clock_skew_seconds",
            "Time by which a node's clock is ahead of the bus; nodes within 5 s are omitted",
            ["node"],
        )
        self.dead_letters_kept = self._gauge(
            "dead_letters_kept", "Messages that no service could handle, on the bus (hamictl)"
        )
        self.stream_problems = self._gauge(
            "stream_problems", "Streams and consumers of the bus with a wrong configuration"
        )
        self.bound_late = self._gauge(
            "bound_late", "Pods bound for long whose containers have not received their cards"
        )
        self.limit_evictions = self._counter(
            "limit_evictions", "Evictions of pods beyond their grants", ["result"]
        )
        self.preemption_plans = self._counter(
            "preemption_plans",
            "Plans of preemption: made, none (no pod may be preempted), failed (given up)",
            ["result"],
        )
        self.preemption_victims = self._counter(
            "preemption_victims", "Pods chosen to be preempted", ["result"]
        )
        self.preemption_plan_seconds = self._histogram(
            "hami_scheduler_preemption_plan_seconds",
            "Time to search a plan",
            (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self.preemption_blocked = self._counter(
            "preemption_blocked",
            "Pods without preemption, by cause: no-plan, limit, eviction (refused), quota, error",
            ["cause"],
        )
        self.preemption_room_seconds = self._histogram(
            "hami_scheduler_preemption_room_seconds",
            "Time from a plan until its pod has taken the room",
            (1, 2.5, 5, 10, 30, 60, 120, 300, 600),
        )
        self.preemption_held_memory = self._gauge(
            "preemption_held_memory_bytes", "Memory of cards that rooms hold", ["node"]
        )
        self.rooms_held = self._gauge("rooms_held", "Rooms that wait for pods to end")
        self.scale_wanted_nodes = self._gauge(
            "scale_wanted_nodes", "Nodes that are wanted for waiting pods", ["type"]
        )
        self.scale_given_up = self._counter(
            "scale_given_up", "Wanted nodes that did not come in time", ["type"]
        )
        self.scale_wrong_types = self._counter(
            "scale_wrong_types", "Nodes that came with other cards than their type has"
        )
        self.scale_wait_seconds = self._histogram(
            "hami_scheduler_scale_wait_seconds",
            "Time until a wanted node is there with its cards",
            (5, 15, 30, 60, 120, 300, 600, 900, 1800),
        )
        self.scale_plan_seconds = self._histogram(
            "hami_scheduler_scale_plan_seconds",
            "Time to plan the nodes that waiting pods need",
            (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self.wrong_devices = self._counter(
            "wrong_devices",
            "Evictions of pods that received the devices of another pod at Allocate",
            ["result"],
        )
        self.silent_agents = self._gauge(
            "silent_agents", "Nodes that get no pods because their agents are silent"
        )
        self.loop_errors = self._counter(
            "loop_errors", "Unexpected errors of one item in a background loop", ["loop"]
        )
        self.bulkhead = Bulkhead(lambda loop: self.loop_errors.labels(loop).inc())

    def _counter(self, name: str, text: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"hami_scheduler_{name}", text, labels or [], registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"hami_scheduler_{name}", text, labels, registry=self.registry)

    def _total(self, name: str, text: str) -> Total:
        total = Total(f"hami_scheduler_{name}", text)
        self.registry.register(total)
        return total
