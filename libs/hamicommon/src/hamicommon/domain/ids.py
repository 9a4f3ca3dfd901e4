"""Ids as types, so that one can't be passed where another is meant."""

from typing import NewType

GpuUuid = NewType("GpuUuid", str)
"""The driver's name of a card, such as `GPU-03f69c50-207a-2038-9b45-23cac89cb67d`."""

PodUid = NewType("PodUid", str)
"""`metadata.uid` of a pod."""

NodeName = NewType("NodeName", str)
"""`metadata.name` of a Node."""

AllocationId = NewType("AllocationId", str)
"""The ledger's id of one allocation (a UUID in text form)."""
