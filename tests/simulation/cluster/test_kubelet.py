"""The simulated kubelet in cases where only its fault once made a history fail."""

import asyncio
from typing import Any

import pytest

from tests.simulation.cluster.agent import Cards, Disk
from tests.simulation.cluster.api_server import ApiServer, now_text
from tests.simulation.cluster.kubelet import Kubelet
from tests.simulation.fake_time import fake_time
from tests.simulation.model import Model

pytestmark = pytest.mark.faults

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "default", "uid": "uid-p"},
    "spec": {"nodeName": "n0", "containers": [{"name": "c", "resources": {"limits": {}}}]},
    "status": {"phase": "Pending"},
}


@pytest.mark.parametrize("luck", [str(number) for number in range(10)])
def test_changes_of_one_moment_are_seen_in_their_order(luck: str) -> None:
    with fake_time(luck) as loop:
        api = ApiServer()
        broken = loop.run_until_complete(_deleted_after_changes(luck, api))

    assert broken == []
    assert api.pod("uid-p") is None, "the kubelet has forgotten that the pod was deleted"


async def _deleted_after_changes(luck: str, api: ApiServer) -> list[BaseException]:
    """Change a running pod, and delete it before the kubelet knows of the changes."""
    broken: list[BaseException] = []
    kubelet = Kubelet(
        "n0",
        seed=luck,
        api=api,
        model=Model([], {}),
        cards=Cards([]),
        disk=Disk(),
        note=lambda what: None,
        failed=broken.append,
        orderly=True,
    )
    api.put("pods", POD)
    await asyncio.sleep(2.0)
    for number in range(8):
        api.change("uid-p", message=str(number))
    pod = api.pod("uid-p")
    assert pod is not None, "the pod does not run"
    api.put("pods", {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": now_text()}})
    await asyncio.sleep(5.0)
    await kubelet.power_off()
    return broken
