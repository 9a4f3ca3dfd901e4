"""Ids as types, so that one can't be passed where another is meant."""

from typing import NewType

GpuUuid = NewType("GpuUuid", str)
"""The ledger's name of a card, unique in the cluster: the driver's uuid, such as
`GPU-03f69c50-207a-2038-9b45-23cac89cb67d`, or `card_key` where the driver's ids are unique on
their node only."""

PodUid = NewType("PodUid", str)
"""`metadata.uid` of a pod."""

NodeName = NewType("NodeName", str)
"""`metadata.name` of a Node."""

AllocationId = NewType("AllocationId", str)
"""The ledger's id of one allocation (a UUID in text form)."""


def card_key(node: NodeName, card_id: str) -> GpuUuid:
    """The ledger's name of a card whose id is unique on its node only.

    >>> card_key(NodeName("worker-1"), "DCU-0")
    'DCU-0@worker-1'
    """
    return GpuUuid(f"{card_id}@{node}")


def card_id(uuid: GpuUuid) -> str:
    """The id that the card's node, its device plugin and the users know; undoes `card_key`.

    >>> card_id(GpuUuid("DCU-0@worker-1")), card_id(GpuUuid("GPU-03f69c50"))
    ('DCU-0', 'GPU-03f69c50')
    """
    return uuid.rpartition("@")[0] or uuid
