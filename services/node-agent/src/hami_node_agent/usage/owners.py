"""Whose a region's directory is: joins the directories of containers with grants and pods.

The record counts before the directory's name (`<pod uid>_<container>`): the kubelet may have
given an answer to another pod than it was made for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef

from hami_node_agent.grants.ports import NodePodApi
from hami_node_agent.grants.records import Record, pods_beside
from hami_node_agent.grants.state import NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A container."""

    pod: PodRef
    container: str
    record: Record | None = None
    """Our answer for it; None for pods of before our time that nobody adopted."""
    cards: frozenset[str] | None = None
    """The cards that it may use; None: unknown. A tenant may name any card in its region."""
    beside: frozenset[str] = frozenset()
    """Uids of the pods that have its slices together with it, by a claim."""

    @property
    def pod_uids(self) -> frozenset[str]:
        """Whose processes are in its region."""
        return self.beside | {self.pod.uid}


class Owners:
    """Finds owners of directories."""

    def __init__(self, state: NodeState, pods: NodePodApi) -> None:
        self._state = state
        self._pods = pods
        self._known: dict[str, Owner] = {}
        """By directory, of the last time: records mostly stay what they are."""

    def of(self, directories: Iterable[str]) -> dict[str, Owner]:
        """The owners of those that have one."""
        records = {r.cache_dir: r for r in self._state.saved.records.values() if r.cache_dir}
        ended = self._pods.seen().ended
        shared = pods_beside(self._state.saved.records, self._state.book)
        found = ((name, self._owner(name, records.get(name), shared)) for name in directories)
        self._known = {
            name: owner
            for name, owner in found
            if owner is not None and not self._is_over(PodUid(owner.pod.uid), ended)
        }
        return self._known

    def _is_over(self, pod_uid: PodUid, ended: frozenset[PodUid]) -> bool:
        """A pod that succeeded or failed gave its slices back, though its object may stay for days.

        One whose object is gone may still have processes: it counts until the node has seen it go.
        """
        return pod_uid in ended and self._pods.name_of(pod_uid) is not None

    def _owner(
        self, directory: str, record: Record | None, shared: Mapping[str, frozenset[str]]
    ) -> Owner | None:
        if record is not None and record.pod_uid:
            before = self._known.get(directory)
            beside = shared.get(record.nonce, frozenset())
            if before is not None and before.record is record and before.beside == beside:
                return before
            pod = PodRef(uid=record.pod_uid, namespace=record.namespace, name=record.pod_name)
            # Of a pod that took another's answer before our watch knew it there is only its uid.
            known = pod if pod.name else self._pods.name_of(pod.uid)
            return None if known is None else _owner(known, record, beside)
        uid, _, container = directory.partition("_")
        named = self._pods.name_of(uid)
        return None if named is None or not container else Owner(pod=named, container=container)


def _owner(pod: PodRef, record: Record, beside: frozenset[str]) -> Owner:
    cards = frozenset[str](record.cards)
    return Owner(pod=pod, container=record.container, record=record, cards=cards, beside=beside)
