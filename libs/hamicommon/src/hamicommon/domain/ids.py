"""Id types, so that a type checker finds an id of the wrong kind."""

from typing import NewType

GpuUuid = NewType("GpuUuid", str)
"""Name of a card in the ledger, unique in the cluster.

Usually the driver's uuid, such as `GPU-03f69c50-207a-2038-9b45-23cac89cb67d`; `card_key` if the
driver's ids are unique on their node only.
"""

PodUid = NewType("PodUid", str)
"""`metadata.uid` of a pod."""

NodeName = NewType("NodeName", str)
"""`metadata.name` of a Node."""

AllocationId = NewType("AllocationId", str)
"""Id of an allocation in the ledger (a UUID as text)."""


def card_key(node: NodeName, card_id: str) -> GpuUuid:
    """Return the ledger's name of a card whose id is unique on its node only.

    >>> card_key(NodeName("worker-1"), "DCU-0")
    'DCU-0@worker-1'
    """
    return GpuUuid(f"{card_id}@{node}")


def card_id(uuid: GpuUuid) -> str:
    """Return the id that the card's node, its device plugin and users know; inverse of `card_key`.

    >>> card_id(GpuUuid("DCU-0@worker-1")), card_id(GpuUuid("GPU-03f69c50"))
    ('DCU-0', 'GPU-03f69c50')
    """
    return uuid.rpartition("@")[0] or uuid
