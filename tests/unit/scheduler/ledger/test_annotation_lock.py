"""Locks on a Node object that somebody else keeps changing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hami_scheduler.ledger.annotation_lock import MirroredLocks
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Conflict
from hamicommon.vendors.registry import Vendors

from tests.unit.scheduler.allocations import an_allocation

WAIT_S = 0.5


class ChangingNode:
    """A Node object that changes between each look and patch."""

    def __init__(self) -> None:
        self.patches = 0

    async def get(self, name: str) -> dict[str, Any]:
        """Return a new version at each look."""
        return {"metadata": {"name": name, "resourceVersion": str(self.patches)}}

    async def annotate(self, *_args: Any, **_kwargs: Any) -> None:
        """Refuse the patch, as the API server does."""
        self.patches += 1
        raise Conflict("the object has been modified")


async def test_a_node_that_changes_at_each_try_is_given_up_at_the_deadline() -> None:
    node = ChangingNode()
    locks = MirroredLocks(
        nodes=cast(Any, node),
        pods=cast(Any, None),
        lock=cast(Any, None),
        store=cast(Any, None),
        vendors=Vendors.from_config(DeviceConfig(), enable_ascend=True),
    )
    chip = DeviceShare(uuid=GpuUuid("npu-0"), vendor="Ascend910B3", memory_mib=1, core_percent=1)
    container = ContainerGrant(index=0, name="c", role="app", shares=(chip,))

    async with asyncio.timeout(10 * WAIT_S):
        with pytest.raises(Conflict, match="changed whenever it was to be locked"):
            await locks.acquire(an_allocation(containers=(container,)), wait_s=WAIT_S)

    assert 1 < node.patches < 10
