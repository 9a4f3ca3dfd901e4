"""Runs the feedback loop every five seconds: reads all regions, decides, writes what changed.

The sampler looks as often, so the two share one reading where that comes in time.

Two switches go into the region, for HAMi's library and other readers; libvgpu follows the limits
file.

What is decided, and why, is in `feedback_rules.py`. The region belongs to the tenant, so neither
its priority nor its cards are believed: the priority is the pod's (`CUDA_TASK_PRIORITY` in its
spec, which HAMi's webhook sets), the cards are those granted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.periodic import every

from hami_node_agent.grants.limits_file import CoreFeedback
from hami_node_agent.usage.feedback_rules import INTERVAL_S, Shared, Switches, decide, decided
from hami_node_agent.usage.limits_writer import LimitsWriter, nonce_of
from hami_node_agent.usage.monitor import Container, Monitor

# As `hamicommon.vendors.nvidia.nvidia` has it, which would bring numpy along, 11 MB on every node.
PRIORITY_ENV = "CUDA_TASK_PRIORITY"
DEFAULT_PRIORITY = 1
# A pod's author may write thousands, which int() refuses by raising; HAMi's is a C int.
MOST_DIGITS = 9
# A round may be so much early or late, to go with a look of the sampler.
SLACK_S = 0.25


class PodSpecs(Protocol):
    """What pods specify for their containers."""

    def literal_env(self, pod_uid: str, container: str) -> dict[str, str] | None:
        """Literal env entries of a container; None when the pod is not known."""


@dataclass(eq=False)
class Feedback:
    """The loop."""

    monitor: Monitor
    pods: PodSpecs
    limits_writer: LimitsWriter
    _: KW_ONLY
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    clock: Callable[[], float] = time.time
    _waiting: dict[str, str] = field(default_factory=dict, init=False)
    """By directory, the nonces of the containers that wait since the last round."""

    async def run(self) -> None:
        """Runs until cancelled; then nobody waits any more."""
        try:
            await every(INTERVAL_S - SLACK_S, self._round_soon, name="feedback")
        finally:
            await self._let_all_go()

    async def _round_soon(self) -> None:
        await self.round(await self.monitor.containers_soon(2 * SLACK_S))

    async def round(self, containers: Sequence[Container]) -> None:
        """One round, on what was just read."""
        shared: list[Shared] = []
        nonces: list[str] = []
        for container in containers:
            with self.bulkhead.item("feedback", container.directory):
                shared.append(self._shared(container))
                nonces.append(nonce_of(container))
        changed = {switches.name: switches for switches in decide(shared)}
        now_s = self.clock()
        feedback = {one.name: decided(one, changed.get(one.name), now_s=now_s) for one in shared}
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
        """Lifts what the last round left in force: the next one may be long in coming."""
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

    def _shared(self, one: Container) -> Shared:
        return Shared(
            name=one.directory,
            cards=frozenset(card.uuid for card in one.region.cards if one.owns(card.uuid)),
            priority=self._priority(one.owner.pod.uid, one.owner.container),
            recent_kernel=one.region.recent_kernel,
            utilization_switch=one.region.utilization_switch,
        )

    def _priority(self, pod_uid: str, container: str) -> int:
        env = self.pods.literal_env(pod_uid, container)
        text = "" if env is None else env.get(PRIORITY_ENV, "")
        known = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
        return int(text) if known else DEFAULT_PRIORITY
