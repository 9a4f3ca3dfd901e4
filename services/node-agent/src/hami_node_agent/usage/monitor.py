"""Sample the containers of the node: regions with their owners, processes, and driver's data.

`sampler.py` requests samples, `feedback.py` the input of the feedback loop. Each request reads the
regions again, and gathers the evidence of which processes live and compute if the host's /proc is
available (`proc_root`). A directory's owner is the pod in its record. Only without a record the
directory's name (`<pod uid>_<container>`) counts: the kubelet may have given an answer to another
pod than the one it was made for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, Protocol

from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Unavailable
from hamicommon.process.bulkhead import Bulkhead

from hami_node_agent.devices.ports import DeviceProbe
from hami_node_agent.devices.processes import CardProcesses, HostProcess
from hami_node_agent.grants.limits_file import HostPid
from hami_node_agent.grants.ports import NodePodApi
from hami_node_agent.grants.records import Record, pods_sharing
from hami_node_agent.grants.state import NodeState, Signal
from hami_node_agent.usage.regions.accounting import (
    CardUse,
    Evidence,
    ProcessFacts,
    Region,
    card_uses,
    find,
    percent_of,
    proven,
)
from hami_node_agent.usage.regions.reader import Regions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Owner of a region: a container."""

    pod: PodRef
    container: str
    record: Record | None = None
    """Our answer for it; None for pods of earlier plugins that were not adopted."""
    cards: frozenset[str] | None = None
    """Cards that it may use; None: unknown. A region may name any card, as tenants write it."""
    shared_with: frozenset[str] = frozenset()
    """Uids of pods that share its slices by a claim."""

    @property
    def pod_uids(self) -> frozenset[str]:
        """Return the pods whose processes are in the region."""
        return self.shared_with | {self.pod.uid}


class Owners:
    """Find the owners of folders."""

    def __init__(self, state: NodeState, pods: NodePodApi) -> None:
        self._state = state
        self._pods = pods
        self._known: dict[str, Owner] = {}
        """By directory, from the last call: records usually do not change."""

    def of(self, directories: Iterable[str]) -> dict[str, Owner]:
        """Return the owners of those folders that have one."""
        records = {r.cache_dir: r for r in self._state.saved.records.values() if r.cache_dir}
        ended = self._pods.snapshot().ended
        shared = pods_sharing(self._state.saved.records, self._state.book)
        found = ((name, self._owner(name, records.get(name), shared)) for name in directories)
        self._known = {
            name: owner
            for name, owner in found
            if owner is not None and not self._is_over(PodUid(owner.pod.uid), ended)
        }
        return self._known

    def _is_over(self, pod_uid: PodUid, ended: frozenset[PodUid]) -> bool:
        """Return whether the pod has ended, which frees its slices although its object may stay.

        One whose object is gone may still have processes: it counts until the node has seen it go.
        """
        return pod_uid in ended and self._pods.name_of(pod_uid) is not None

    def _owner(
        self, directory: str, record: Record | None, shared: Mapping[str, frozenset[str]]
    ) -> Owner | None:
        if record is not None and record.pod_uid:
            before = self._known.get(directory)
            shared_with = shared.get(record.nonce, frozenset())
            if before is not None and before.record is record and before.shared_with == shared_with:
                return before
            pod = PodRef(uid=record.pod_uid, namespace=record.namespace, name=record.pod_name)
            # Of a pod that took another's answer before our watch knew it there is only its uid.
            known = pod if pod.name else self._pods.name_of(pod.uid)
            return None if known is None else _owner(known, record, shared_with)
        uid, _, container = directory.partition("_")
        named = self._pods.name_of(uid)
        return None if named is None or not container else Owner(pod=named, container=container)


def _owner(pod: PodRef, record: Record, shared_with: frozenset[str]) -> Owner:
    cards = frozenset[str](record.cards)
    return Owner(
        pod=pod, container=record.container, record=record, cards=cards, shared_with=shared_with
    )


_Key = tuple[str, int, int]
"""Folder, pid and start time of a region's process."""


class LivingProcesses(Protocol):
    """Source of facts about the host's processes."""

    def living(self, pids: Iterable[int]) -> Mapping[int, HostProcess]:
        """Return the pids that live (blocking)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Region of one container at one moment."""

    directory: str
    owner: Owner
    region: Region

    def owns(self, uuid: str) -> bool:
        """Return whether the container may use the card, whatever its region names."""
        return self.owner.cards is None or uuid in self.owner.cards


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUse:
    """Use of each card by one container."""

    container: Container
    uses: tuple[CardUse, ...]
    host_pids: tuple[HostPid, ...] = ()
    """Host pids of the processes that the host's /proc confirms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorLook:
    """Result of one sample."""

    seen: tuple[ContainerUse, ...] = ()
    evidence: Evidence | None = None
    """Facts about processes; None: the host's processes can't be seen."""
    unreadable: frozenset[str] = frozenset()
    """Folders whose region could not be read."""


class _Around(NamedTuple):
    """Facts about one process of a region that do not come from the region."""

    found: ProcessFacts
    proven: HostProcess | None
    percents: tuple[float | None, ...]
    """Percent of each of the region's cards, in order."""


class _Before(NamedTuple):
    """Results of the previous sample of a container."""

    around: tuple[_Around, ...]
    seen: ContainerUse


@dataclass(eq=False)
class Monitor:
    """Take samples of the node's containers.

    `processes`: None where the host's can't be seen.
    """

    probe: DeviceProbe
    regions: Regions
    owners: Owners
    _: KW_ONLY
    processes: LivingProcesses | None
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _looked: Signal = field(default_factory=Signal, init=False)
    _latest: list[Container] = field(default_factory=list, init=False)
    _containers: dict[str, Container] = field(default_factory=dict, init=False)
    """Containers by folder; an unchanged one stays the same object, so that results are reused."""
    _before: dict[str, _Before] = field(default_factory=dict, init=False)
    _host_pids: dict[_Key, int] = field(default_factory=dict, init=False)
    looks: Signal = field(default_factory=Signal, init=False)
    """Signal of a new `last_look`."""
    last_look: MonitorLook = field(default_factory=MonitorLook, init=False)

    async def containers(self) -> list[Container]:
        """Read every container that has a region and an owner."""
        async with self._turn:
            found = await asyncio.to_thread(self.regions.read, now_ns=time.time_ns())
        self._containers = {
            name: self._container(name, owner, found[name])
            for name, owner in self.owners.of(found).items()
        }
        return list(self._containers.values())

    def _container(self, name: str, owner: Owner, region: Region) -> Container:
        before = self._containers.get(name)
        if before is not None and before.region is region and before.owner is owner:
            return before
        return Container(directory=name, owner=owner, region=region)

    async def containers_soon(self, within_s: float) -> list[Container]:
        """Return the containers of the next sample, or read them if none comes in time.

        Two that look every few seconds then read the regions once.
        """
        seen = self._looked.version
        if await self._looked.wait(seen, within_s) != seen:
            return self._latest
        return await self.containers()

    async def look(self) -> list[ContainerUse]:
        """Take a sample of what each container uses."""
        cards = await self._cards()
        containers = self._latest = await self.containers()
        self._looked.notify()
        evidence = await self._evidence(containers, cards)
        known, self._host_pids = self._host_pids, {}
        before, self._before = self._before, {}
        seen: list[ContainerUse] = []
        for container in containers:
            with self.bulkhead.item("monitor", container.directory):
                seen.append(self._look_at(container, evidence, known, before))
        self.last_look = MonitorLook(
            seen=tuple(seen), evidence=evidence, unreadable=self.regions.problems
        )
        self.looks.notify()
        return seen

    async def write(
        self, directory: str, *, recent_kernel: int | None, utilization_switch: int | None
    ) -> None:
        """Write the feedback loop's switches into a container's region."""
        async with self._turn:
            await asyncio.to_thread(
                self.regions.write,
                directory,
                recent_kernel=recent_kernel,
                utilization_switch=utilization_switch,
            )

    async def _cards(self) -> Mapping[str, CardProcesses]:
        if self.processes is None:
            return {}
        try:
            return await self.probe.processes()
        except Unavailable as exc:
            logger.warning("Failed to read the processes of cards", extra={"error": str(exc)})
            return {}

    async def _evidence(
        self, containers: Iterable[Container], cards: Mapping[str, CardProcesses]
    ) -> Evidence | None:
        if self.processes is None:
            return None
        pids = {pid for card in cards.values() for pid in card.pids} | set(self._host_pids.values())
        for container in containers:
            pids |= {process.host_pid for process in container.region.processes}
        living = await asyncio.to_thread(self.processes.living, pids - {0})
        return Evidence(living=living, cards=cards)

    def _look_at(
        self,
        container: Container,
        evidence: Evidence | None,
        known: Mapping[_Key, int],
        before: Mapping[str, _Before],
    ) -> ContainerUse:
        around = tuple(self._around(container, evidence, known))
        last = before.get(container.directory)
        if last is None or last.seen.container is not container or last.around != around:
            last = _Before(around=around, seen=_seen_of(container, around))
        self._before[container.directory] = last
        return last.seen

    def _around(
        self, container: Container, evidence: Evidence | None, known: Mapping[_Key, int]
    ) -> Iterator[_Around]:
        """Return facts about each process of the region that do not come from the region."""
        region, pod_uids = container.region, container.owner.pod_uids
        if not region.processes:
            return
        own = [card.uuid for card in region.cards if container.owns(card.uuid)]
        for process in region.processes:
            key = (container.directory, process.pid, process.started_ticks)
            one = find(
                process,
                pod_uids=pod_uids,
                cards=own,
                evidence=evidence,
                known_host_pid=known.get(key, 0),
            )
            if one.host_pid:
                self._host_pids[key] = one.host_pid
            yield _Around(
                found=one,
                proven=proven(one, process, pod_uids=pod_uids, evidence=evidence),
                percents=tuple(percent_of(one, card.uuid, evidence) for card in region.cards),
            )


def _seen_of(container: Container, around: Sequence[_Around]) -> ContainerUse:
    region = container.region
    numbers = {card.uuid: number for number, card in enumerate(region.cards)}
    return ContainerUse(
        container=container,
        uses=card_uses(
            region,
            living=[number for number, one in enumerate(around) if not one.found.gone],
            measured_percent=lambda number, uuid: around[number].percents[numbers[uuid]],
        ),
        host_pids=tuple(
            HostPid(one.proven.inner_pid, one.proven.host_pid, one.proven.started_ticks)
            for one in around
            if one.proven is not None
        ),
    )
