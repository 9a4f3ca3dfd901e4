"""Publish the inventory on the bus, and HAMi's annotation on the Node.

The bus gets it on every change and as a heartbeat. The annotation `hami.io/node-nvidia-register` is
written only when its text differs from the Node's, and retried after a failure.

An event on the Node names cards whose NVLinks contradict each other: such a pair counts nothing for
placement (`devices/topology.py`), which would go unnoticed otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from hamicommon import events
from hamicommon.domain.devices import GpuDevice
from hamicommon.errors import HamiError, Unavailable
from hamicommon.k8s.annotations import AGENT, NVIDIA_PAIR_SCORES
from hamicommon.k8s.node_register import encode_pair_scores, encode_register
from hamicommon.process.backoff import Backoff
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.outages import Outage

from hami_node_agent.grants.ports import Publisher
from hami_node_agent.inventory.tracker import CardTracker

logger = logging.getLogger(__name__)

REGISTER_ANNOTATION = "hami.io/node-nvidia-register"
AGENT_NAME = "hami-node-agent"
RETRY_S = 2.0
# A Node that another program changed is corrected within this time.
RECHECK_S = 30.0


class NodeAnnotator(Protocol):
    """Access to the annotations of our Node."""

    async def annotations(self) -> Mapping[str, str]:
        """Read the Node's annotations. Raises: HamiError."""

    async def annotate(self, annotations: Mapping[str, str]) -> None:
        """Merge annotations into the Node. Raises: HamiError."""


@dataclass(eq=False)
class InventoryPublisher:
    """Publish one node's inventory."""

    cards: CardTracker
    bus: Publisher
    _: KW_ONLY
    node: str
    agent_id: str
    heartbeat_s: float
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    _sequence: int = field(default=0, init=False)
    _outage: Outage = field(
        default_factory=lambda: Outage(
            logger,
            failed="Retrying to publish the inventory",
            again="Published the inventory again",
        ),
        init=False,
    )
    published: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Publish until cancelled; failures are retried."""
        backoff = Backoff(RETRY_S, self.heartbeat_s)
        while True:
            seen = self.cards.changed.version
            self.published = await self._publish()
            if self.published:
                backoff.reset()
            await self.cards.changed.wait(
                seen, self.heartbeat_s if self.published else backoff.next_s()
            )

    async def _publish(self) -> bool:
        self._sequence += 1
        inventory = events.Inventory(
            node=self.node,
            agent_id=self.agent_id,
            sequence=self._sequence,
            observed_at=datetime.now(UTC),
            devices=tuple(self._describe_cards()),
            pair_scores={
                str(uuid): {str(peer): score for peer, score in row.items()}
                for uuid, row in self.cards.pair_scores.items()
            },
        )
        try:
            await self.bus.publish(
                events.inventory_subject(self.node),
                inventory,
                message_id=f"{self.agent_id}:{self._sequence}",
            )
        except Unavailable as exc:
            self._outage.on_failure(exc)
            return False
        self._outage.on_success()
        return True

    def _describe_cards(self) -> list[events.InventoryDevice]:
        """Return the cards as payload; a card that can't be described is left out."""
        found: list[events.InventoryDevice] = []
        for device in self.cards.devices():
            with self.bulkhead.item("inventory", device.uuid):
                found.append(inventory_device(device))
        return found


def inventory_device(device: GpuDevice) -> events.InventoryDevice:
    """Convert a card to its form on the bus."""
    return events.InventoryDevice.model_validate(device, from_attributes=True)


async def keep_annotation(
    cards: CardTracker,
    node: NodeAnnotator,
    *,
    more: Mapping[str, str] | None = None,
    bulkhead: Bulkhead | None = None,
) -> None:
    """Keep the Node's register annotation and pair scores equal to the cards until cancelled.

    Beside it stands that an agent reports them, so that the scheduler waits for the bus, and
    `more`, which does not change.
    """
    bulkhead = bulkhead or Bulkhead()

    async def write() -> None:
        text = encode_register(_encodable(cards.devices(), bulkhead))
        wanted = {AGENT: AGENT_NAME, REGISTER_ANNOTATION: text, **(more or {})}
        if len(cards.pair_scores) > 1:
            wanted[NVIDIA_PAIR_SCORES] = encode_pair_scores(cards.pair_scores)
        if not wanted.items() <= (await node.annotations()).items():
            await node.annotate(wanted)
            logger.info("Wrote a node annotation", extra={"key": REGISTER_ANNOTATION})

    await keep_written(cards, write, "node annotation")


async def keep_written(cards: CardTracker, write: Callable[[], Awaitable[None]], name: str) -> None:
    """Call `write` whenever the cards change, and every 30 s, until cancelled; retry failures.

    `name`: of the written object, for the log.
    """
    backoff = Backoff(RETRY_S, RECHECK_S)
    outage = Outage(logger, failed=f"Retrying to write a {name}", again=f"Wrote the {name} again")
    while True:
        seen, wait_s = cards.changed.version, RECHECK_S
        try:
            await write()
            backoff.reset()
            outage.on_success()
        except HamiError as exc:
            outage.on_failure(exc)
            wait_s = backoff.next_s()
        await cards.changed.wait(seen, wait_s)


def _encodable(devices: Iterable[GpuDevice], bulkhead: Bulkhead) -> list[GpuDevice]:
    found: list[GpuDevice] = []
    for device in devices:
        with bulkhead.item("annotation", device.uuid):
            encode_register([device])
            found.append(device)
    return found


REASON = "NvlinksContradict"
RETRY_FIRST_S = 30.0
RETRY_LAST_S = 600.0


class NodeEvents(Protocol):
    """Access to events on our Node."""

    async def warn(self, reason: str, message: str) -> None:
        """Create a Warning event. Raises: HamiError."""


async def warn_of_links(
    cards: CardTracker, node: NodeEvents, *, bulkhead: Bulkhead | None = None
) -> None:
    """Create an event for each pair with contradictory links until cancelled; retry failures."""
    reported: set[tuple[str, str]] = set()
    bulkhead = bulkhead or Bulkhead()
    backoff = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
    while True:
        seen, failed = cards.changed.version, False
        for pair in cards.contradictions:
            if pair in reported:
                continue
            message = (
                f"cards {pair[0]} and {pair[1]} report different numbers of NVLinks to each "
                "other; placement treats them as not linked: check nvidia-smi nvlink --status"
            )
            logger.warning("Found contradictory NVLinks", extra={"cards": list(pair)})
            try:
                with bulkhead.item("links", "/".join(pair)):
                    await node.warn(REASON, message)
            except HamiError as exc:
                logger.warning("Retrying to write an event", extra={"error": str(exc)})
                failed = True
                continue
            reported.add(pair)
        await cards.changed.wait(seen, backoff.next_s() if failed else None)
