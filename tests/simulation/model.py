"""The reference model: which pod may hold which slices, in plain loops, and checks of the promises.

`Model.on_commit` receives every change of the ledger, `Model.on_start` and `on_stop` every
container; `check` compares them with the ledger after each step. The model shares no code with the
service's decisions: it adds up slices itself, has its own table of legal steps (architecture 4),
and counts what runs on each card. Architecture 6 has the promises SAFE-1..6, LIVE-1 and LIVE-2.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hamicommon.domain.allocations import Allocation, ContainerGrant, DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.ledger.model import Change


def footprint(containers: Iterable[ContainerGrant]) -> dict[str, tuple[int, int, int]]:
    """(slots, MiB, percent) per card: init containers one after the other, the others together.

    No pod of the simulation has sidecars.
    """
    result: dict[str, tuple[int, int, int]] = {}
    apps: dict[str, list[int]] = {}
    for container in containers:
        for share in container.shares:
            if container.role == "app":
                together = apps.setdefault(share.uuid, [0, 0, 0])
                together[0] += share.slots
                together[1] += share.memory_mib
                together[2] += share.core_percent
            else:
                old = result.get(share.uuid, (0, 0, 0))
                result[share.uuid] = (
                    max(old[0], share.slots),
                    max(old[1], share.memory_mib),
                    max(old[2], share.core_percent),
                )
    for uuid, together in apps.items():
        first = result.get(uuid, (0, 0, 0))
        result[uuid] = (
            max(first[0], together[0]),
            max(first[1], together[1]),
            max(first[2], together[2]),
        )
    return result


def onto(container: ContainerGrant, cards: Sequence[Any] | None) -> ContainerGrant | None:
    """The container on these cards; None if their number differs from its slices."""
    if cards is None:
        return container
    if len(cards) != len(container.shares):
        return None
    left = list(cards)
    stays = [share.uuid in left and not left.remove(share.uuid) for share in container.shares]
    return replace(
        container,
        shares=tuple(
            share if stay else replace(share, uuid=left.pop(0))
            for share, stay in zip(container.shares, stays, strict=True)
        ),
    )


def slices_of(shares: Iterable[DeviceShare]) -> list[tuple[str, int, int]]:
    """(card, MiB, percent) of each, in order."""
    return sorted((share.uuid, share.memory_mib, share.core_percent) for share in shares)


LIVE = ("binding", "bound", "allocated", "releasing")
LEGAL = {
    "": ("binding", "bound", "allocated"),
    "binding": (
        *("binding", "bound", "allocated", "releasing", "released"),
        *("expired", "failed", "released_unconfirmed"),
    ),
    "bound": ("bound", "allocated", "releasing", "released", "failed", "released_unconfirmed"),
    "allocated": ("allocated", "releasing", "released", "failed", "released_unconfirmed"),
    "releasing": ("releasing", "released", "released_unconfirmed"),
}
LATE_S = 3.0
"""How long after its deadline a row may still be there: the reaper's period, and its calls."""


class Broken(AssertionError):
    """A promise that was not kept."""


@dataclass(frozen=True, slots=True)
class Running:
    """A container that runs."""

    pod_uid: str
    container: str
    node: str
    shares: tuple[DeviceShare, ...]
    """Devices in the container's limits file."""


class Model:
    """Promises that must hold at every step."""

    def __init__(self, cards: Sequence[tuple[str, GpuDevice]], quotas: Mapping[str, int]) -> None:
        self.cards = {device.uuid: (node, device) for node, device in cards}
        self.quotas = quotas
        """MiB of memory per namespace."""
        self.asked: set[str] = set()
        """Pods that kube-scheduler has shown us."""
        self.running: dict[tuple[str, str], Running] = {}
        self.excused: set[str] = set()
        """Pods whose node went, or stayed silent for so long that their slices were given away."""
        self.starts = 0
        self.commits = 0
        self._rows: dict[str, Allocation] = {}
        self._sequences: dict[str, int] = defaultdict(int)
        self._token = 0
        self._dirty = False

    def on_commit(self, change: Change, before: Allocation | None) -> None:
        """Record a transaction of the ledger; check SAFE-2, SAFE-3, SAFE-5 and SAFE-6."""
        # Who speaks for the node is the node's fact, not the allocation's.
        row = replace(change.allocation, has_agent=True)
        before = None if before is None else replace(before, has_agent=True)
        self.commits += 1
        self._dirty = True
        known = self._rows.get(row.id)
        if (known is None) != (before is None) or (known and known != before):
            raise Broken(f"SAFE-6: {_name_of(row)} was {before}, its history has {known}")
        state = "" if known is None else known.state.value
        if row.state.value not in LEGAL.get(state, ()):
            raise Broken(f"SAFE-6: {_name_of(row)} went from {state or 'nothing'} to {row.state}")
        self._sequences[row.pod_uid] += 1
        if change.sequence != self._sequences[row.pod_uid]:
            raise Broken(
                f"SAFE-6: event {change.sequence} of pod {row.pod_uid} is number "
                f"{self._sequences[row.pod_uid]}"
            )
        if row.pod_uid not in self.asked:
            raise Broken(f"SAFE-5: {_name_of(row)}, and kube-scheduler never asked for that pod")
        if row.token is not None and (known is None or known.token != row.token):
            if row.token <= self._token:
                raise Broken(f"SAFE-2: token {row.token} of {_name_of(row)} after {self._token}")
            self._token = row.token
        if row.state == "released_unconfirmed":
            self.excused.add(row.pod_uid)
        self._rows[row.id] = row

    def on_start(self, container: Running, needed: Sequence[tuple[int, int]]) -> None:
        """Record a start; `needed`: (MiB, percent) of each card, as its pod asks."""
        self.starts += 1
        self._dirty = True
        name = f"container {container.container} of pod {container.pod_uid} on {container.node}"
        row = self.live_of(container.pod_uid)
        if row is None:
            raise Broken(f"SAFE-3: {name} starts without a grant")
        if row.node != container.node:
            raise Broken(f"SAFE-3: {name} starts with a grant on {row.node}")
        if row.state not in ("binding", "bound", "allocated", "releasing"):
            raise Broken(f"SAFE-3: {name} starts with a grant that is {row.state}")
        limits = sorted((share.memory_mib, share.core_percent) for share in container.shares)
        if limits != sorted(needed):
            raise Broken(f"SAFE-2: {name} starts with {limits}, its pod asks for {sorted(needed)}")
        granted = next((c for c in row.containers if c.name == container.container), None)
        if granted is None or slices_of(granted.shares) != slices_of(container.shares):
            raise Broken(f"SAFE-2: {name} starts with {container.shares}, granted are {granted}")
        self.running[container.pod_uid, container.container] = container

    def on_stop(self, pod_uid: str, container: str) -> None:
        """Record an end."""
        self.running.pop((pod_uid, container), None)

    def live_of(self, pod_uid: str) -> Allocation | None:
        """The pod's live allocation, by its history."""
        return next((row for row in self.live() if row.pod_uid == pod_uid), None)

    def live(self) -> list[Allocation]:
        """All live allocations, by their histories."""
        return [row for row in self._rows.values() if row.state.value in LIVE]

    def check(self, ledger: Any) -> None:
        """Check SAFE-1, SAFE-2, SAFE-4, SAFE-6 after a step. Raises: Broken."""
        if not self._dirty:
            return
        self._dirty = False
        live = self.live()
        if {row.id: row for row in live} != {
            r.id: replace(r, has_agent=True) for r in ledger.everything() if r.live
        }:
            raise Broken("SAFE-6: the ledger's live rows are not those of the history")
        pods = [row.pod_uid for row in live]
        if len(pods) != len(set(pods)):
            raise Broken(f"SAFE-2: a pod has two live allocations: {sorted(pods)}")
        self._check_cards(live, ledger)
        self._check_quotas(live)
        self._check_reality(live)

    def _check_cards(self, live: Iterable[Allocation], ledger: Any) -> None:
        held: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        whole: set[str] = set()
        for row in live:
            for uuid, amounts in footprint(row.containers).items():
                held[uuid].append(amounts)
                if self.cards[uuid][0] != row.node:
                    raise Broken(f"SAFE-1: {_name_of(row)} holds card {uuid} of another node")
            whole |= {s.uuid for c in row.containers for s in c.shares if s.core_percent >= 100}
        for uuid, (_node, device) in self.cards.items():
            slots, memory, core = (
                sum(column) for column in zip((0, 0, 0), *held[uuid], strict=True)
            )
            usage = None if ledger is None else ledger.known_usage(uuid)
            if usage is not None and (slots, memory, core) != usage:
                raise Broken(
                    f"SAFE-1: card {uuid} counts {usage}, granted are {slots, memory, core}"
                )
            if slots > device.slots or memory > device.memory_mib or core > device.core_percent:
                raise Broken(f"SAFE-1: card {uuid} is over-committed: {slots, memory, core}")
            if uuid in whole and len(held[uuid]) > 1:
                raise Broken(f"SAFE-1: card {uuid} belongs to one pod and is held by {held[uuid]}")

    def _check_quotas(self, live: Iterable[Allocation]) -> None:
        used: dict[str, int] = defaultdict(int)
        for row in live:
            used[row.namespace] += sum(m for _s, m, _c in footprint(row.containers).values())
        for namespace, limit in self.quotas.items():
            if used[namespace] > limit:
                raise Broken(
                    f"SAFE-4: namespace {namespace} holds {used[namespace]} of {limit} MiB"
                )

    def _check_reality(self, live: Sequence[Allocation]) -> None:
        """Check SAFE-1, SAFE-3: running containers' slices are still granted to their pods."""
        holders: dict[str, Allocation] = {row.pod_uid: row for row in live}
        for running in self.running.values():
            if running.pod_uid in self.excused:
                continue
            row = holders.get(running.pod_uid)
            if row is None:
                raise Broken(
                    f"SAFE-3: {running.container} of {running.pod_uid} runs, its grant is gone"
                )
            granted = next(c for c in row.containers if c.name == running.container)
            if slices_of(granted.shares) != slices_of(running.shares):
                raise Broken(f"SAFE-3: {running} runs, granted are {granted.shares}")

    def check_deadlines(self, now: Any) -> None:
        """Check LIVE-1: no pod is being bound past its deadline. Raises: Broken."""
        for row in self.live():
            if row.state == "binding":
                if row.deadline is None:
                    raise Broken(f"LIVE-1: {_name_of(row)} is {row.state} without a deadline")
                if (now - row.deadline).total_seconds() > LATE_S:
                    raise Broken(f"LIVE-1: {_name_of(row)} is {row.state} past {row.deadline}")

    def check_settled(self, pods: Mapping[str, Mapping[str, Any]], busy: set[str]) -> None:
        """Check LIVE-2: ledger = pods = nodes. Raises: Broken.

        `busy`: pods that kube-scheduler is working on.
        """
        for row in self.live():
            pod = pods.get(row.pod_uid)
            runs = any(uid == row.pod_uid for uid, _name in self.running)
            if row.pod_uid in busy:
                continue
            if pod is None and not runs:
                raise Broken(f"LIVE-2: {_name_of(row)} is {row.state}, its pod is gone")
            if pod is None or row.state == "binding":
                if pod is not None and pod["spec"].get("nodeName"):
                    raise Broken(f"LIVE-2: {_name_of(row)} is {row.state}, its pod is bound")
                continue
            if (pod["status"].get("phase")) in ("Succeeded", "Failed"):
                raise Broken(f"LIVE-2: {_name_of(row)} is {row.state}, its pod is over")
            if pod["spec"].get("nodeName") != row.node:
                raise Broken(f"LIVE-2: {_name_of(row)} is {row.state}, its pod is elsewhere")
            if runs and row.state == "bound":
                raise Broken(f"LIVE-2: {_name_of(row)} is bound, its containers run")

    def check_started(self, waiting: Mapping[tuple[str, str], Sequence[Any]]) -> None:
        """Check LIVE-2: a node's containers wait only if their cards have no room for all.

        `waiting`: the cards that the kubelet gave them, which may be other than granted.
        Raises: Broken.
        """
        if not all(self._may_start(pod_uid) for pod_uid, _name in waiting):
            return
        moved = []
        for row in self.live():
            containers = [
                onto(container, waiting.get((row.pod_uid, container.name)))
                for container in row.containers
            ]
            if None in containers:
                return
            moved.append(replace(row, containers=tuple(c for c in containers if c is not None)))
        try:
            self._check_cards(moved, None)
        except Broken:
            return
        for pod_uid, name in waiting:
            raise Broken(
                f"LIVE-2: {name} of {pod_uid} does not start, its cards have room: {waiting}"
            )

    def _may_start(self, pod_uid: str) -> bool:
        row = self.live_of(pod_uid)
        return row is not None and row.state in ("bound", "allocated")

    def check_empty(self) -> None:
        """Check that nothing is held after the last pod. Raises: Broken."""
        for row in self.live():
            raise Broken(f"LIVE-2: {_name_of(row)} is {row.state}, and no pod is left")


def _name_of(row: Allocation) -> str:
    return f"attempt {row.attempt} of pod {row.pod_name} on {row.node} (token {row.token})"
