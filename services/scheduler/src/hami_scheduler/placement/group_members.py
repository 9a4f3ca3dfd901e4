"""Groups of pods that start together: their members in the watch, and their quorums.

Fed by the pod watch and by /bind. `groups.py` decides by this state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.pod_annotations import GROUP_MIN
from hamicommon.k8s.pod_groups import PodGroup, group_of, own_quorum
from hamicommon.k8s.types import JsonMapping

ENDED = frozenset({"Succeeded", "Failed"})

Place = tuple[int, str, str]
"""Sort key of groups: negative priority, creation time, key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Pod of a group that waits for a node."""

    pod: JsonMapping
    request: PodRequest
    priority: int
    created_at: str

    @property
    def place(self) -> tuple[int, str, PodUid]:
        """Return the pod's place in kube-scheduler's queue."""
        return -self.priority, self.created_at, self.request.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """State of a group at one moment."""

    group: PodGroup
    quorum: int
    present: int
    """Number of members that have a node or request no cards: no other member waits for them."""
    waiting: tuple[Member, ...]
    """Members that request cards and have no node, in kube-scheduler's order."""

    @property
    def needed(self) -> int:
        """Number of members that must still start together."""
        return max(0, self.quorum - self.present)

    @property
    def place(self) -> Place:
        """Return the group's sort key: that of its first member."""
        first = min(self.waiting, key=lambda each: each.place)
        return -first.priority, first.created_at, self.group.key


@dataclass(slots=True)
class _KnownMembers:
    pods: dict[PodUid, JsonMapping] = field(default_factory=dict)
    waiting: dict[PodUid, Member | None] = field(default_factory=dict)
    """Waiting members by uid; None: the pod requests no cards."""
    generation: int = 0
    """Number that grows with every change that matters to a decision."""


class GroupMembers:
    """Members of all groups."""

    def __init__(
        self,
        request_of: Callable[[JsonMapping], PodRequest],
        quorum_of: Callable[[PodGroup], int | None],
        scheduler_name: str,
    ) -> None:
        """Create the index; `quorum_of` returns the quorum of groups with a PodGroup object."""
        self._scheduler_name = scheduler_name
        self._request_of = request_of
        self._quorum_of = quorum_of
        self._groups: defaultdict[PodGroup, _KnownMembers] = defaultdict(_KnownMembers)
        self._group_of: dict[PodUid, PodGroup] = {}
        self._started: set[PodUid] = set()
        """Members with a written grant, whose node the watch may not show yet."""

    def pod_seen(self, pod: JsonMapping) -> None:
        """Add or update a pod from the watch."""
        uid = PodUid(pod["metadata"]["uid"])
        group = group_of(pod)
        if group is None:
            return
        known = self._groups[group]
        before = known.pods.get(uid)
        known.pods[uid] = pod
        self._group_of[uid] = group
        if before is None or _matters(before) != _matters(pod):
            known.waiting.pop(uid, None)
            known.generation += 1

    def pod_gone(self, pod: JsonMapping) -> None:
        """Remove a pod that the watch reports as deleted."""
        uid = PodUid(pod["metadata"]["uid"])
        self._started.discard(uid)
        group = self._group_of.pop(uid, None)
        if group is None:
            return
        known = self._groups[group]
        known.pods.pop(uid, None)
        known.waiting.pop(uid, None)
        known.generation += 1
        if not known.pods:
            del self._groups[group]

    def start(self, uids: Collection[PodUid]) -> None:
        """Count these members as started: their grants are written."""
        for uid in uids:
            if uid in self._group_of:
                self._started.add(uid)
                self._groups[self._group_of[uid]].generation += 1

    def stop(self, uid: PodUid) -> None:
        """Count a member as waiting again: its binding failed after its grant was written."""
        if uid in self._started:
            self._started.discard(uid)
            self._groups[self._group_of[uid]].generation += 1

    def has_started(self, uid: PodUid) -> bool:
        """Return whether the member's grant was written."""
        return uid in self._started

    def of(self, uid: PodUid) -> PodGroup | None:
        """Return the group of a pod in the watch."""
        return self._group_of.get(uid)

    def may_be_complete(self, group: PodGroup) -> bool:
        """Return whether the group has at least as many pods, in any state, as its quorum."""
        known, quorum = self._groups.get(group), self.quorum(group)
        return known is not None and quorum is not None and len(known.pods) >= quorum

    def quorum_group(self, uid: PodUid) -> PodGroup | None:
        """Return the group of a pod that starts together with other pods; otherwise None."""
        group = self._group_of.get(uid)
        return None if group is None or self.quorum(group) is None else group

    def is_grouped(self, uid: PodUid) -> bool:
        """Return whether the pod starts together with other pods."""
        return self.quorum_group(uid) is not None

    def __contains__(self, group: PodGroup) -> bool:
        return group in self._groups

    def generation(self, group: PodGroup) -> int:
        """Return a number that changes when the group's members change."""
        known = self._groups.get(group)
        return -1 if known is None else known.generation

    def is_held_elsewhere(self, group: PodGroup) -> bool:
        """Return whether kube-scheduler or a plugin holds the members back until all fit."""
        return group.is_native or self._quorum_of(group) is not None

    def quorum(self, group: PodGroup) -> int | None:
        """Return the group's quorum: from the PodGroup, or the largest number among the members."""
        found = self._quorum_of(group)
        if found is not None or group.is_native:
            return found
        known = self._groups.get(group)
        pods = () if known is None else known.pods.values()
        return max((each for pod in pods if (each := own_quorum(pod)) is not None), default=None)

    def assembly(self, group: PodGroup) -> Assembly | None:
        """Return the group's state; None if it has no quorum or no pods."""
        quorum, known = self.quorum(group), self._groups.get(group)
        if quorum is None or known is None:
            return None
        present, waiting = 0, list[Member]()
        for uid, pod in known.pods.items():
            status, spec = pod.get("status") or {}, pod.get("spec") or {}
            if status.get("phase") == "Failed" or pod["metadata"].get("deletionTimestamp"):
                continue
            if uid in self._started or spec.get("nodeName"):
                present += 1
                continue
            if status.get("phase") in ENDED or spec.get("schedulingGates"):
                continue
            if uid not in known.waiting:
                known.waiting[uid] = self._member(pod)
            member = known.waiting[uid]
            if member is None:
                present += 1
            else:
                waiting.append(member)
        return Assembly(
            group=group,
            quorum=quorum,
            present=present,
            waiting=tuple(sorted(waiting, key=lambda each: each.place)),
        )

    def _member(self, pod: JsonMapping) -> Member | None:
        if (pod.get("spec") or {}).get("schedulerName") != self._scheduler_name:
            return None
        try:
            request = self._request_of(pod)
        except InvalidRequest:  # it is refused at its own /filter
            return None
        if not request.wants_devices:
            return None
        return Member(
            pod=pod,
            request=request,
            priority=int((pod.get("spec") or {}).get("priority") or 0),
            created_at=str(pod["metadata"].get("creationTimestamp", "")),
        )


def _matters(pod: JsonMapping) -> tuple[object, ...]:
    """Return the fields of a pod that affect its group's state."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    return (
        status.get("phase") in ENDED,
        spec.get("nodeName"),
        spec.get("schedulingGates"),
        pod["metadata"].get("deletionTimestamp"),
        annotations_of(pod).get(GROUP_MIN.name),
    )
