"""Samples of cards and containers, every few seconds, for the bus and for our /metrics.

In: NVML and the shared regions. Out: `hami.usage.v1.<node>` (consumed by the metrics service) and
`Sampler.latest`. A sample that can't be published is dropped: the next one comes soon. What is
unknown is absent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hamicommon import events
from hamicommon.errors import Unavailable
from hamicommon.events import ContainerSample, DeviceSample

from hami_node_agent.domain.records import Record
from hami_node_agent.node_state import NodeState
from hami_node_agent.ports import DeviceProbe, PodApi, PodRef, Publisher
from hami_node_agent.region_reader import Region, read_region, region_file

logger = logging.getLogger(__name__)

# The wire's integers are 64 bit in the usage tables; a tenant can write any word into its region.
MAX_BYTES = 2**62
MAX_PERCENT = 100 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything sampled in one round."""

    devices: tuple[DeviceSample, ...] = ()
    containers: tuple[ContainerSample, ...] = ()
    taken_at: float = 0.0
    """Monotonic seconds."""


class Sampler:
    """Takes and tells samples."""

    def __init__(
        self,
        probe: DeviceProbe,
        state: NodeState,
        pods: PodApi,
        bus: Publisher,
        *,
        containers_dir: Path,
        node: str,
        agent_id: str,
        interval_s: float,
    ) -> None:
        self._probe = probe
        self._state = state
        self._pods = pods
        self._bus = bus
        self._containers_dir = containers_dir
        self._node = node
        self._agent_id = agent_id
        self._interval_s = interval_s
        self._sequence = 0
        self._latest = Observation()

    @property
    def latest(self) -> Observation:
        """The last round; empty when it is too old to be true."""
        age_s = time.monotonic() - self._latest.taken_at
        return self._latest if age_s <= 3 * self._interval_s else Observation()

    async def run(self) -> None:
        """Samples until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(self._interval_s)

    async def sample(self) -> None:
        """One round."""
        try:
            devices = await self._probe.samples()
        except Unavailable as exc:
            logger.warning("cards not sampled", extra={"error": str(exc)})
            devices = ()
        records = {r.cache_dir: r for r in self._state.saved.records.values() if r.cache_dir}
        regions = await asyncio.to_thread(read_all, self._containers_dir)
        containers = tuple(
            sample
            for name, region in regions.items()
            for sample in _container_samples(region, self._whose(name, records), records.get(name))
        )
        self._latest = Observation(
            devices=devices, containers=containers, taken_at=time.monotonic()
        )
        await self._tell()

    def _whose(self, directory: str, records: Mapping[str, Record]) -> tuple[PodRef, str] | None:
        """Pod and container of a directory: the record's word, for its name may be outdated."""
        record = records.get(directory)
        if record is not None:
            pod = PodRef(uid=record.pod_uid, namespace=record.namespace, name=record.pod_name)
            return pod, record.container
        uid, _, container = directory.partition("_")
        found = self._pods.name_of(uid)
        return None if found is None or not container else (found, container)

    async def _tell(self) -> None:
        self._sequence += 1
        usage = events.Usage(
            node=self._node,
            agent_id=self._agent_id,
            sequence=self._sequence,
            sampled_at=datetime.now(UTC),
            devices=self._latest.devices,
            containers=self._latest.containers,
        )
        try:
            await self._bus.publish(
                events.usage_subject(self._node),
                usage,
                message_id=f"{self._agent_id}:usage:{self._sequence}",
            )
        except Unavailable as exc:
            logger.debug("usage not published", extra={"error": str(exc)})


def read_all(containers_dir: Path) -> dict[str, Region]:
    """The readable regions by directory name (blocking)."""
    regions: dict[str, Region] = {}
    try:
        directories = sorted(containers_dir.iterdir())
    except OSError:
        return regions
    for directory in directories:
        file = region_file(directory)
        region = None if file is None else read_region(file)
        if region is not None:
            regions[directory.name] = region
    return regions


def _container_samples(
    region: Region, whose: tuple[PodRef, str] | None, record: Record | None
) -> list[ContainerSample]:
    if whose is None:
        return []
    pod, container = whose
    own = None if record is None else set(record.cards)
    return [
        ContainerSample(
            pod_uid=pod.uid,
            namespace=pod.namespace,
            pod=pod.name,
            container=container,
            vdevice_index=device.index,
            uuid=device.uuid,
            memory_used_bytes=min(device.used_bytes, MAX_BYTES),
            memory_limit_bytes=min(device.limit_bytes, MAX_BYTES),
            context_bytes=min(device.context_bytes, MAX_BYTES),
            module_bytes=min(device.module_bytes, MAX_BYTES),
            buffer_bytes=min(device.buffer_bytes, MAX_BYTES),
            core_percent=float(min(device.core_percent, MAX_PERCENT)),
            core_limit_percent=min(device.core_limit_percent, MAX_PERCENT),
            last_kernel_at=region.last_kernel_at,
        )
        for device in region.devices
        # A tenant may name any card in its region; it is believed about its own.
        if own is None or device.uuid in own
    ]
