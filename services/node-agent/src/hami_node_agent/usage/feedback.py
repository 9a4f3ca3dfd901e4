"""Feedback loop: every five seconds read all regions, and lift or tighten limits.

The sampler reads them at the same interval, so both share one reading if it comes in time.

The switches are written into the region, for HAMi's library and other readers, and into the limits
directory, which the tenant can't write and which is the only source that libvgpu trusts.

`feedback_rules.py` has the decisions and their reasons. The region belongs to the tenant, so its
priority and its cards are not trusted: the priority is the pod's (`CUDA_TASK_PRIORITY` in its spec,
which HAMi's webhook sets), the cards are those granted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol, TypeVar

from hamicommon.errors import Unavailable
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.periodic import every

from hami_node_agent.grants.limits_file import CoreFeedback, HostPid
from hami_node_agent.usage.feedback_rules import (
    INTERVAL_S,
    SharingContainer,
    Switches,
    core_feedback,
    decide,
)
from hami_node_agent.usage.monitor import Container, ContainerUse, Monitor

logger = logging.getLogger(__name__)


T = TypeVar("T")


class LimitsFiles(Protocol):
    """Files in limits folders (blocking; each call may run twice)."""

    def write_feedback(self, nonce: str, feedback: CoreFeedback) -> None:
        """Change the feedback loop's lines of a limits file. Raises: Unavailable."""

    def write_pids(self, nonce: str, pids: Iterable[HostPid]) -> None:
        """Write the host pids of a container's processes. Raises: Unavailable."""


class LimitsWriter:
    """Write the files of containers whose content has changed."""

    def __init__(self, files: LimitsFiles, *, bulkhead: Bulkhead | None = None) -> None:
        self._bulkhead = bulkhead or Bulkhead()
        self._files = files

    async def feedback(self, decided: Mapping[str, CoreFeedback]) -> None:
        """Write results by nonce; failures are logged and retried in the next round."""
        await asyncio.to_thread(self._write, "feedback", self._files.write_feedback, decided)

    async def processes(self, seen: Iterable[ContainerUse]) -> None:
        """Write the host pids of a sample."""
        found = {nonce_of(one.container): one.host_pids for one in seen}
        await asyncio.to_thread(self._write, "pids", self._files.write_pids, found)

    def _write(self, loop: str, write: Callable[[str, T], None], values: Mapping[str, T]) -> None:
        for nonce, value in values.items():
            if not nonce:
                continue
            try:
                with self._bulkhead.item(loop, nonce):
                    write(nonce, value)
            except Unavailable as exc:
                logger.warning("Failed to write %s", loop, extra={"error": str(exc)})


def nonce_of(container: Container) -> str:
    """Return the nonce of the container's limits folder; empty if it has none of ours."""
    record = container.owner.record
    return "" if record is None or record.foreign else record.nonce


# As `hamicommon.vendors.nvidia.nvidia` has it, which would bring numpy along, 11 MB on every node.
PRIORITY_ENV = "CUDA_TASK_PRIORITY"
DEFAULT_PRIORITY = 1
# A pod's author may write thousands, which int() refuses by raising; HAMi's is a C int.
MAX_DIGITS = 9
# A round may be so much early or late, to go with a look of the sampler.
SLACK_S = 0.25


class PodSpecs(Protocol):
    """Source of containers' specs."""

    def literal_env(self, pod_uid: str, container: str) -> dict[str, str] | None:
        """Return a container's literal environment; None if the pod is unknown."""


@dataclass(eq=False)
class Feedback:
    """Feedback loop of the node."""

    monitor: Monitor
    pods: PodSpecs
    limits_writer: LimitsWriter
    _: KW_ONLY
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    clock: Callable[[], float] = time.time
    _waiting: dict[str, str] = field(default_factory=dict, init=False)
    """Nonces of containers that have been waiting since the last round, by folder."""

    async def run(self) -> None:
        """Run until cancelled; then release all waiting containers."""
        try:
            await every(INTERVAL_S - SLACK_S, self._round_soon, name="feedback")
        finally:
            await self._let_all_go()

    async def _round_soon(self) -> None:
        await self.round(await self.monitor.containers_soon(2 * SLACK_S))

    async def round(self, containers: Sequence[Container]) -> None:
        """Adjust the containers' limits once, from a sample."""
        shared: list[SharingContainer] = []
        nonces: list[str] = []
        for container in containers:
            with self.bulkhead.item("feedback", container.directory):
                shared.append(self._to_shared(container))
                nonces.append(nonce_of(container))
        changed = {switches.name: switches for switches in decide(shared)}
        now_s = self.clock()
        feedback = {
            one.name: core_feedback(one, changed.get(one.name), now_s=now_s) for one in shared
        }
        self._waiting = {
            one.name: nonce
            for nonce, one in zip(nonces, shared, strict=True)
            if feedback[one.name].waits_until_s
        }
        await self.limits_writer.feedback(
            {nonce: feedback[one.name] for nonce, one in zip(nonces, shared, strict=True) if nonce}
        )
        await self._write_regions(changed.values())

    async def _let_all_go(self) -> None:
        """Release all waiting containers, as no further round may come."""
        await self.limits_writer.feedback(
            {nonce: CoreFeedback() for nonce in self._waiting.values() if nonce}
        )
        await self._write_regions([Switches(name=name, recent_kernel=0) for name in self._waiting])

    async def _write_regions(self, changed: Iterable[Switches]) -> None:
        for switches in changed:
            with self.bulkhead.item("feedback", switches.name):
                await self.monitor.write(
                    switches.name,
                    recent_kernel=switches.recent_kernel,
                    utilization_switch=switches.utilization_switch,
                )

    def _to_shared(self, one: Container) -> SharingContainer:
        return SharingContainer(
            name=one.directory,
            cards=frozenset(card.uuid for card in one.region.cards if one.owns(card.uuid)),
            priority=self._priority(one.owner.pod.uid, one.owner.container),
            recent_kernel=one.region.recent_kernel,
            utilization_switch=one.region.utilization_switch,
        )

    def _priority(self, pod_uid: str, container: str) -> int:
        env = self.pods.literal_env(pod_uid, container)
        text = "" if env is None else env.get(PRIORITY_ENV, "")
        known = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
        return int(text) if known else DEFAULT_PRIORITY
