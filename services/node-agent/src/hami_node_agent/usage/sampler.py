"""Sample cards and containers every few seconds, for the bus and for metrics.

Input: NVML, the shared regions (`monitor.py`) and the grants. Output: `hami.usage.v1.<node>`
(consumed by the metrics service; only changes, see `changes.py`), `Sampler.latest`, and the host
pids that libvgpu reads. A round that can't be published is dropped: the next one follows soon.
Unknown values are absent.

The last span of a pod's trace is also published here: from the start of a container's program to
its first kernel, the time of which libvgpu writes into the region. It is a child of the binding
that the grant names. A first kernel from before this agent's start is not published again. The
region is the tenant's, so a time outside of the agent's own life is ignored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime

from hamicommon import events, telemetry
from hamicommon.errors import Unavailable
from hamicommon.events import ContainerSample, DeviceSample
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.periodic import every
from opentelemetry import trace

from hami_node_agent.devices.ports import DeviceProbe
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.ports import Publisher
from hami_node_agent.usage.changes import PublishedState, Round, changes
from hami_node_agent.usage.feedback import LimitsWriter
from hami_node_agent.usage.monitor import Container, ContainerUse, Monitor, Owner
from hami_node_agent.usage.regions.accounting import MAX_BYTES, MAX_PERCENT, CardUse

logger = logging.getLogger(__name__)

SPAN = "first-kernel"
TICKS_PER_S = 100
"""Clock ticks per second (USER_HZ), 100 on all systems with CUDA."""
MS_PER_S = 1000
NS_PER_MS = 1_000_000
CLOCK_ERROR_MS = 1000
LONGEST_START_MS = 24 * 3600 * MS_PER_S
"""Time after a program's start above which its first kernel is not part of starting."""


class FirstKernels:
    """Publish a span for each container's first kernel."""

    def __init__(
        self,
        grant_of: Callable[[str], NodeGrant | None],
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // NS_PER_MS,
        boot_ms: Callable[[], int] = lambda: (
            (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // NS_PER_MS
        ),
    ) -> None:
        """`grant_of`: returns the grant of a pod's uid."""
        self._grant_of = grant_of
        self._now_ms = now_ms
        self._boot_ms = boot_ms
        self._since_ms = now_ms() - CLOCK_ERROR_MS
        self._published: set[str] = set()
        self._tracer = trace.get_tracer(__name__)

    def look(self, containers: Iterable[Container]) -> None:
        """Process a sample of the node's containers."""
        seen: set[str] = set()
        for container in containers:
            seen.add(container.directory)
            if container.directory in self._published:
                continue
            at_ms = container.region.first_kernel_epoch_ms
            if self._since_ms <= at_ms <= self._now_ms() + CLOCK_ERROR_MS:
                self._published.add(container.directory)
                self._publish(container, at_ms)
        self._published &= seen

    def _publish(self, container: Container, at_ms: int) -> None:
        pod = container.owner.pod
        grant = self._grant_of(pod.uid)
        if grant is None:
            return
        span = self._tracer.start_span(
            SPAN,
            context=telemetry.extract({"traceparent": grant.traceparent}),
            start_time=self._program_start_ms(container, at_ms) * NS_PER_MS,
            attributes={
                **telemetry.pod_attributes(uid=pod.uid, namespace=pod.namespace, name=pod.name),
                "k8s.container.name": container.owner.container,
            },
        )
        span.end(at_ms * NS_PER_MS)

    def _program_start_ms(self, container: Container, at_ms: int) -> int:
        """Return the start of the container's earliest process, or of its first kernel."""
        boot_ms = self._boot_ms()
        starts = (
            boot_ms + process.started_ticks * MS_PER_S // TICKS_PER_S
            for process in container.region.processes
            if process.started_ticks
        )
        return min(
            (start for start in starts if at_ms - LONGEST_START_MS <= start <= at_ms), default=at_ms
        )


MIB = 1024 * 1024
# A clock may be wrong by some seconds; a tenant may write any time.
CLOCK_ERROR_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Samples of one round."""

    devices: tuple[DeviceSample, ...] = ()
    containers: tuple[ContainerSample, ...] = ()
    taken_at: float = 0.0
    """Monotonic time."""


@dataclass(eq=False)
class UsagePublisher:
    """Publish what changed from round to round."""

    bus: Publisher
    _: KW_ONLY
    node: str
    agent_id: str
    _sequence: int = field(default=0, init=False)
    _published: PublishedState = field(default_factory=PublishedState, init=False)

    async def flush(self) -> None:
        """Publish pending samples before the agent ends."""
        await self.publish(Round(sampled_at=datetime.now(UTC), devices=(), containers=()))

    async def publish(self, now: Round) -> None:
        """Publish the changes of a round; a round that can't be published is dropped."""
        new = changes(self.node, self._published, now)
        if not new:
            self._published = new.published
            return
        self._sequence += 1
        usage = events.Usage(
            node=self.node,
            agent_id=self.agent_id,
            sequence=self._sequence,
            sampled_at=now.sampled_at,
            devices=new.devices,
            containers=new.containers,
            unchanged=new.unchanged,
            earlier_rounds=new.earlier_rounds,
        )
        try:
            await self.bus.publish(
                events.usage_subject(self.node),
                usage,
                message_id=f"{self.agent_id}:usage:{self._sequence}",
            )
        except Unavailable as exc:
            # If it has arrived anyway, the same samples are published again, and stored once.
            logger.debug("Failed to publish usage", extra={"error": str(exc)})
        else:
            self._published = new.published


@dataclass(eq=False)
class Sampler:
    """Take samples repeatedly.

    `without_region`: the use of containers that run without the library.
    """

    probe: DeviceProbe
    monitor: Monitor
    publisher: UsagePublisher
    _: KW_ONLY
    limits_writer: LimitsWriter
    interval_s: float
    first_kernels: FirstKernels | None = None
    without_region: Callable[[], Iterable[ContainerSample]] = tuple
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    _latest: Observation = field(default_factory=Observation, init=False)
    _sampled: dict[str, tuple[ContainerUse, list[ContainerSample]]] = field(
        default_factory=dict, init=False
    )
    """Samples of the last round, by folder."""

    @property
    def latest(self) -> Observation:
        """Return the last round; empty if it is too old."""
        age_s = time.monotonic() - self._latest.taken_at
        return self._latest if age_s <= 3 * self.interval_s else Observation()

    async def run(self) -> None:
        """Sample until cancelled."""
        await every(self.interval_s, self.sample, name="usage")

    async def sample(self) -> None:
        """Read the use of all cards once."""
        try:
            devices = await self.probe.samples()
        except Unavailable as exc:
            logger.warning("Failed to sample cards", extra={"error": str(exc)})
            devices = ()
        seen = await self.monitor.look()
        await self.limits_writer.processes(seen)
        if self.first_kernels is not None:
            with self.bulkhead.item("first-kernels", "spans"):
                self.first_kernels.look(one.container for one in seen)
        now = datetime.now(UTC)
        before, self._sampled = self._sampled, {}
        containers = tuple(sample for one in seen for sample in self._samples(one, now, before))
        containers += tuple(self.without_region())
        self._latest = Observation(
            devices=devices, containers=containers, taken_at=time.monotonic()
        )
        await self.publisher.publish(Round(sampled_at=now, devices=devices, containers=containers))

    def _samples(
        self,
        seen: ContainerUse,
        now: datetime,
        before: Mapping[str, tuple[ContainerUse, list[ContainerSample]]],
    ) -> list[ContainerSample]:
        directory = seen.container.directory
        with self.bulkhead.item("usage", directory):
            last = before.get(directory)
            # A time that was in the future may be in the past now.
            if last is None or last[0] is not seen or not _past(seen, now):
                last = seen, container_samples(seen, now=now)
            self._sampled[directory] = last
            return last[1]
        return []


def container_samples(seen: ContainerUse, *, now: datetime) -> list[ContainerSample]:
    """Return one container's use of each of its cards."""
    container = seen.container
    epoch_s = container.region.last_kernel_epoch_s
    known = epoch_s > 0 and _past(seen, now)
    last_kernel_at = datetime.fromtimestamp(epoch_s, UTC) if known else None
    return [
        _sample(use, container.owner, last_kernel_at)
        for use in seen.uses
        if container.owns(use.card.uuid)
    ]


def _past(seen: ContainerUse, now: datetime) -> bool:
    """Return whether the time of its last kernel can be in the past, as clocks may differ."""
    return seen.container.region.last_kernel_epoch_s <= now.timestamp() + CLOCK_ERROR_S


def _sample(use: CardUse, owner: Owner, last_kernel_at: datetime | None) -> ContainerSample:
    memory_limit, core_limit = _limits(use, owner)
    return ContainerSample(
        pod_uid=owner.pod.uid,
        namespace=owner.pod.namespace,
        pod=owner.pod.name,
        container=owner.container,
        vdevice_index=use.card.index,
        uuid=use.card.uuid,
        memory_used_bytes=use.total_bytes,
        memory_limit_bytes=memory_limit,
        context_bytes=use.context_bytes,
        module_bytes=use.module_bytes,
        buffer_bytes=use.buffer_bytes,
        core_percent=use.core_percent,
        core_limit_percent=core_limit,
        processes=use.processes,
        last_kernel_at=last_kernel_at,
    )


def _limits(use: CardUse, owner: Owner) -> tuple[int | None, int | None]:
    """Return memory in bytes and cores in percent as granted, or as in HAMi's regions."""
    record = owner.record
    if record is not None and not record.foreign:
        shares = [share for share in record.shares if share.uuid == use.card.uuid]
        return sum(s.memory_mib for s in shares) * MIB, sum(s.core_percent for s in shares)
    memory, core = use.card.limit_bytes, use.card.core_limit_percent
    return (
        memory if memory <= MAX_BYTES else None,
        core if core <= MAX_PERCENT else None,
    )
