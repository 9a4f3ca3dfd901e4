"""An unexpected error of one container stops no other's feedback."""

from __future__ import annotations

from typing import Any

import pytest
from hami_node_agent.usage.feedback import Feedback
from hami_node_agent.usage.monitor import Container, Owner
from hami_node_agent.usage.regions.accounting import Region, RegionCard
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.process.bulkhead import Bulkhead


class Node:
    """Node with a pod's environment, which records writes."""

    def __init__(self, priority: str) -> None:
        self.priority = priority
        self.written: list[str] = []

    def literal_env(self, pod_uid: str, container: str) -> dict[str, str] | None:
        del container
        if self.priority == "poison":
            if pod_uid == "b":
                raise RuntimeError("poison")
            return {}
        return {"CUDA_TASK_PRIORITY": self.priority}

    async def write(self, directory: str, **_switches: object) -> None:
        self.written.append(directory)

    async def feedback(self, decided: object) -> None:
        """Do nothing."""


def running(uid: str) -> Container:
    card = RegionCard(index=0, uuid=f"GPU-{uid}", limit_bytes=1, core_limit_percent=1)
    region = Region(cards=(card,), processes=(), recent_kernel=2)
    pod = PodRef(uid=PodUid(uid), namespace="default", name=uid)
    return Container(directory=f"{uid}_main", owner=Owner(pod=pod, container="main"), region=region)


@pytest.mark.parametrize("priority", ["9" * 5000, "0" * 5000, "-1", "x", ""])
async def test_a_priority_that_is_no_number_for_us_ends_nothing(priority: str) -> None:
    node: Any = Node(priority)

    await Feedback(node, node, node).round([running("a")])

    assert node.written == ["a_main"]


async def test_the_containers_around_a_poisonous_one_get_their_feedback() -> None:
    node: Any = Node("poison")
    bulkhead = Bulkhead()

    await Feedback(node, node, node, bulkhead=bulkhead).round([running(u) for u in "abc"])

    assert node.written == ["a_main", "c_main"]
    assert bulkhead.failures == {"feedback": 1}
