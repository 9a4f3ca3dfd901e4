"""Queues of kube-scheduler: active, back-off, unschedulable. Pure; times are arguments.

A pod that failed waits in `unschedulable` until an event that could help. Then it waits in
`backoff` if its pause is not over, otherwise in `active`. Events during an attempt count for its
pod too: it is moved to `backoff` immediately when the attempt fails.

The events that could help depend on the refusing filter. For kube-scheduler's own filters they are
a new or changed node, a pod that leaves one, or a change of the pod beyond its status. An extender
cannot name its events. From 1.32 on every event therefore counts for a pod that an extender
refused, including another pod's binding or status, and the pod's own condition, so a second attempt
follows each first refusal (kubernetes/kubernetes issue 122019; `schedule_one.go`, `ExtenderName`).
"""

from dataclasses import dataclass, field

from hamicommon.k8s.types import Json

# kube-scheduler's podMaxInUnschedulablePodsDuration, for events that were not sent.
MAX_UNSCHEDULABLE_S = 300.0


@dataclass(slots=True, kw_only=True)
class QueuedPod:
    """Pod that waits for its next attempt; `since_s` is the time of queueing."""

    uid: str
    pod: Json
    since_s: float
    number: int
    attempts: int = 0
    cycle: int = 0
    by_extender: bool = False  # the last attempt failed because an extender refused nodes
    touched: bool = False  # any change of the pod itself since the attempt began


@dataclass(slots=True, kw_only=True)
class SchedulingQueue:
    """All our pods without a node."""

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0
    _active: dict[str, QueuedPod] = field(default_factory=dict)
    _backoff: dict[str, QueuedPod] = field(default_factory=dict)
    _unschedulable: dict[str, QueuedPod] = field(default_factory=dict)
    _in_flight: dict[str, QueuedPod] = field(default_factory=dict)
    _cycle: int = 0
    _moved_in_cycle: int = -1
    _event_in_cycle: int = -1
    _number: int = 0

    def add(self, pod: Json, now_s: float) -> None:
        """Add a new pod."""
        uid = pod["metadata"]["uid"]
        self._number += 1
        self._active[uid] = QueuedPod(uid=uid, pod=pod, since_s=now_s, number=self._number)

    def update(self, old: Json, new: Json, now_s: float) -> None:
        """Update a changed pod, which the change may have made schedulable (see above)."""
        uid = new["metadata"]["uid"]
        helps = _substance(old) != _substance(new)
        for pool in (self._active, self._backoff, self._in_flight):
            if uid in pool:
                pool[uid].pod = new
                if pool is self._in_flight:
                    pool[uid].touched = True
                    if helps:
                        pool[uid].cycle = -1
                return
        waiting = self._unschedulable.get(uid)
        if waiting is None:
            self.add(new, now_s)
            return
        waiting.pod = new
        if helps or waiting.by_extender:
            self._move(waiting, now_s)

    def remove(self, uid: str) -> None:
        """Remove a pod that is gone or bound."""
        for pool in (self._active, self._backoff, self._unschedulable, self._in_flight):
            pool.pop(uid, None)

    def pop(self, now_s: float) -> QueuedPod | None:
        """Return the next pod: highest priority, then longest queued; None if none is due."""
        for waiting in [one for one in self._backoff.values() if self._due_s(one) <= now_s]:
            self._active[waiting.uid] = self._backoff.pop(waiting.uid)
        if not self._active:
            return None
        uid = min(self._active.values(), key=_order).uid
        waiting = self._active.pop(uid)
        self._cycle += 1
        waiting.cycle = self._cycle
        waiting.attempts += 1
        waiting.touched = False
        self._in_flight[uid] = waiting
        return waiting

    def is_in_flight(self, uid: str) -> bool:
        """Return whether the pod is being scheduled or bound."""
        return uid in self._in_flight

    def record_failure(
        self, uid: str, now_s: float, *, unschedulable: bool, by_extender: bool = False
    ) -> bool:
        """Record a failure: wait for an event if nothing fits, or retry soon after an error.

        `by_extender`: nothing fits, and an extender refused at least one node.
        Returns False if the pod is gone or already bound, so that the failure has no effect.
        """
        waiting = self._in_flight.pop(uid, None)
        if waiting is None:
            return False
        waiting.since_s = now_s
        waiting.by_extender = by_extender
        moved = waiting.cycle <= self._moved_in_cycle or waiting.cycle < 0
        if by_extender:
            moved = moved or waiting.touched or waiting.cycle <= self._event_in_cycle
        pool = self._unschedulable if unschedulable and not moved else self._backoff
        pool[uid] = waiting
        return True

    def done(self, uid: str) -> None:
        """Remove a bound pod."""
        self._in_flight.pop(uid, None)

    def move_all(self, now_s: float) -> None:
        """Queue all waiting pods, because the cluster changed in a way that may help any."""
        for waiting in list(self._unschedulable.values()):
            self._move(waiting, now_s)
        self._moved_in_cycle = self._cycle

    def move_refused_by_extenders(self, now_s: float) -> None:
        """Queue pods that extenders refused, because a change may help these only."""
        for waiting in list(self._unschedulable.values()):
            if waiting.by_extender:
                self._move(waiting, now_s)
        self._event_in_cycle = self._cycle

    def flush(self, now_s: float) -> None:
        """Queue pods that have waited for long."""
        for waiting in list(self._unschedulable.values()):
            if now_s - waiting.since_s > MAX_UNSCHEDULABLE_S:
                self._move(waiting, now_s)

    def wake_at_s(self) -> float | None:
        """Return when the next pause ends."""
        return min((self._due_s(one) for one in self._backoff.values()), default=None)

    def counts(self) -> dict[str, int]:
        """Return the number of pods in each queue."""
        return {
            "active": len(self._active),
            "backoff": len(self._backoff),
            "unschedulable": len(self._unschedulable),
            "in_flight": len(self._in_flight),
        }

    def _move(self, waiting: QueuedPod, now_s: float) -> None:
        del self._unschedulable[waiting.uid]
        pool = self._backoff if self._due_s(waiting) > now_s else self._active
        pool[waiting.uid] = waiting

    def _due_s(self, waiting: QueuedPod) -> float:
        pause_s = self.initial_backoff_s * 2.0 ** min(max(waiting.attempts - 1, 0), 30)
        return waiting.since_s + min(pause_s, self.max_backoff_s)


def _order(waiting: QueuedPod) -> tuple[int, float, int]:
    priority = waiting.pod["spec"].get("priority") or 0
    return -priority, waiting.since_s, waiting.number


def _substance(pod: Json) -> Json:
    """Return the pod without fields that change by themselves."""
    metadata = {
        key: value
        for key, value in pod["metadata"].items()
        if key not in ("resourceVersion", "generation", "managedFields")
    }
    return {"metadata": metadata, "spec": pod["spec"]}
