"""The last span of a pod's trace: from the start of a container's program to its first kernel.

In: regions as the sampler reads them; libvgpu writes the moment there. Out: one span a container,
child of the binding that its grant names. What was launched before this agent began is not
published again; a region is the tenant's, so a moment outside of the agent's own life is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from hamicommon import telemetry
from opentelemetry import trace

from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.usage.monitor import Container

SPAN = "first-kernel"
TICKS_PER_S = 100
"""USER_HZ, which is 100 wherever Linux runs CUDA."""
MS_PER_S = 1000
NS_PER_MS = 1_000_000
CLOCK_ERROR_MS = 1000
LONGEST_START_MS = 24 * 3600 * MS_PER_S
"""A program that computes for the first time a day after its start has waited for work."""


class FirstKernels:
    """Publishes a span for each container whose first kernel is new."""

    def __init__(
        self,
        grant_of: Callable[[str], NodeGrant | None],
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // NS_PER_MS,
        boot_ms: Callable[[], int] = lambda: (
            (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // NS_PER_MS
        ),
    ) -> None:
        """`grant_of`: of a pod's uid."""
        self._grant_of = grant_of
        self._now_ms = now_ms
        self._boot_ms = boot_ms
        self._since_ms = now_ms() - CLOCK_ERROR_MS
        self._published: set[str] = set()
        self._tracer = trace.get_tracer(__name__)

    def look(self, containers: Iterable[Container]) -> None:
        """One look at the containers of the node."""
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
        """Of the container's earliest process; the kernel's own moment where that is not known."""
        boot_ms = self._boot_ms()
        starts = (
            boot_ms + process.started_ticks * MS_PER_S // TICKS_PER_S
            for process in container.region.processes
            if process.started_ticks
        )
        return min(
            (start for start in starts if at_ms - LONGEST_START_MS <= start <= at_ms), default=at_ms
        )
