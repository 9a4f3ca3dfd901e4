"""The node's ResourceSlice from its cards and grants."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from hami_node_agent.dra.slices import offered_devices, slice_name, wanted_slice
from hami_node_agent.grants.book import NodeGrant
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, PodUid

from tests.unit.devices import a_device


def card(index: int, *, mode: str = "hami-core") -> GpuDevice:
    return a_device(f"GPU-{index}", index=index, memory_mib=1000, mode=mode)


def grant(uid: str, memory_mib: int, *, claimed: bool = False) -> NodeGrant:
    share = DeviceShare(
        uuid=GpuUuid("GPU-0"), vendor="NVIDIA", memory_mib=memory_mib, core_percent=10
    )
    return NodeGrant(
        allocation_id=AllocationId(uid),
        pod_uid=PodUid(uid),
        namespace="ns",
        pod_name=uid,
        token=1,
        containers=(ContainerGrant(index=0, name="c", role="app", shares=(share,)),),
        claimed=claimed,
    )


def values(device: dict[str, object]) -> list[str]:
    capacity = device["capacity"]
    assert isinstance(capacity, dict)
    return [capacity[name]["value"] for name in ("memory", "cores", "slots")]


def test_what_pods_by_limits_hold_is_taken_off_and_what_claims_hold_is_not() -> None:
    found = offered_devices(
        [card(1), card(0)], [grant("a", 300), grant("b", 200), grant("c", 400, claimed=True)]
    )
    assert [values(device) for device in found] == [["500Mi", "80", "8"], ["1000Mi", "100", "10"]]


def test_cards_in_mig_mode_are_no_devices() -> None:
    assert [d["name"] for d in offered_devices([card(0, mode="mig"), card(1)], [])] == ["gpu-1"]


def test_a_slice_that_is_right_is_not_written_again() -> None:
    devices = offered_devices([card(0)], [])
    first = wanted_slice("n1", "node-uid", devices, None)
    assert first is not None
    assert first["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    stored = first | {"metadata": first["metadata"] | {"resourceVersion": "7"}}
    assert wanted_slice("n1", "node-uid", devices, stored) is None


def test_a_slice_is_right_in_the_form_in_which_the_api_server_keeps_it() -> None:
    large = replace(card(0), memory_mib=81920, healthy=False, health_reason="xid")
    devices = offered_devices([large], [])
    stored = wanted_slice("n1", "u", devices, None)
    assert stored is not None
    stored = deepcopy(stored)
    stored["metadata"]["resourceVersion"] = "7"
    [kept] = stored["spec"]["devices"]
    kept["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    memory = kept["capacity"]["memory"]
    memory["value"] = memory["requestPolicy"]["default"] = "80Gi"
    memory["requestPolicy"]["validRange"]["max"] = "80Gi"

    assert wanted_slice("n1", "u", devices, stored) is None
    memory["value"] = "79Gi"
    assert wanted_slice("n1", "u", devices, stored) is not None


def test_every_change_raises_the_pools_generation() -> None:
    stored = wanted_slice("n1", "u", offered_devices([card(0)], []), None)
    assert stored is not None
    stored["metadata"]["resourceVersion"] = "7"
    changed = wanted_slice("n1", "u", offered_devices([card(0)], [grant("a", 1)]), stored)
    assert changed is not None
    assert changed["spec"]["pool"]["generation"] == 2
    assert changed["metadata"]["resourceVersion"] == "7"
    assert changed["metadata"]["name"] == slice_name("n1")
