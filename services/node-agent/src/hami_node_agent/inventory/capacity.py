"""Memory and cores of all cards in the Node's capacity (`HAMI_NODE_AGENT_REPORT_CAPACITY`).

For people, and for Kueue's check of nodes: placement does not read them. Sums of a node are not
sums of a card, so an autoscaler that counts with them makes too few nodes; pods with the marker
`hami.io/slice` are left to our placeholders.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from hamicommon.device_config import NvidiaConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.errors import InvalidRequest

from hami_node_agent.inventory.publisher import keep_written
from hami_node_agent.inventory.tracker import CardTracker

logger = logging.getLogger(__name__)

SCALES, MARKS = "HAMI_SCHEDULER_SCALE", "HAMI_WEBHOOK_MARK_SLICES"


class NodeAmounts(Protocol):
    """Amounts of resources in our Node's status."""

    async def has_amounts(self, amounts: Mapping[str, int | None]) -> bool:
        """Return whether these are there. Raises: HamiError."""

    async def set_amounts(self, amounts: Mapping[str, int | None]) -> None:
        """Set these resources in the Node's capacity; None removes one. Raises: HamiError."""


def require_marker(report: str, variables: Mapping[str, str]) -> None:
    """Raises: InvalidRequest when an autoscaler would count slices by the reported sums.

    `variables`: with those of scheduler and webhook.
    """
    marks = variables.get(MARKS, "off")
    if report == "on" and variables.get(SCALES) == "on" and marks != "on":
        raise InvalidRequest(
            f"HAMI_NODE_AGENT_REPORT_CAPACITY=on with {SCALES}=on and {MARKS}={marks}: an "
            "autoscaler would count slices by the sums of a node, and make too few nodes: set "
            f"{MARKS}=on, here and at hami-webhook, or HAMI_NODE_AGENT_REPORT_CAPACITY=remove"
        )


def sums_of(cards: Iterable[GpuDevice], config: NvidiaConfig) -> dict[str, int]:
    """Return the amounts that containers may ask for on the cards, by resource.

    Unhealthy cards count as well: pods are on them, and the kubelet admits no more than the sums.
    """
    unit_mib = max(config.memory_factor, 1)
    each = [(card.memory_mib // unit_mib, card.core_percent) for card in cards]
    return {
        config.resource_memory_name: sum(memory for memory, _ in each),
        config.resource_core_name: sum(percent for _, percent in each),
    }


async def keep_capacity(
    cards: CardTracker, node: NodeAmounts, config: NvidiaConfig, *, removes: bool = False
) -> None:
    """Keep the sums in the Node's capacity, or out of it, until cancelled."""

    async def write() -> None:
        sums = sums_of(cards.devices(), config)
        wanted: dict[str, int | None] = dict.fromkeys(sums) if removes else {**sums}
        if not await node.has_amounts(wanted):
            await node.set_amounts(wanted)
            logger.info("Wrote the node's capacity", extra={"amounts": wanted})

    await keep_written(cards, write, "node's capacity")
