"""Values of node locks in annotations (protocol 2.5, 1.3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hami_scheduler.ledger.node_lock_annotation import held, lock_keys, owned, value_of
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ContainerGrant,
    DeviceShare,
)
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import Role
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.registry import Vendors

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
HAMI, MLU = "hami.io/mutex.lock", "cambricon.com/dsmlu.lock"
VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True)


def allocation(*vendors: str, role: Role = "app") -> Allocation:
    shares = tuple(
        DeviceShare(uuid=GpuUuid(f"c-{v}"), vendor=v, memory_mib=1, core_percent=1) for v in vendors
    )
    return Allocation(
        id=AllocationId("id"),
        pod_uid=PodUid("uid"),
        namespace="ns",
        pod_name="p",
        attempt=1,
        node=NodeName("n"),
        state=AllocationState.BINDING,
        containers=(ContainerGrant(index=0, name="c", role=role, shares=shares),),
        reserved_at=NOW,
    )


@pytest.mark.parametrize(
    ("vendors", "role", "keys"),
    [
        pytest.param(("Ascend910B3",), "app", (HAMI,), id="one"),
        pytest.param(("Ascend910B3", "NVIDIA"), "app", (HAMI,), id="two-on-one-lock"),
        pytest.param(("AWSNeuron",), "app", (), id="never-locks"),
        pytest.param(("NVIDIA",), "init", (HAMI,), id="init-container-alone"),
    ],
)
def test_the_locks_are_those_of_the_vendors_used(
    vendors: tuple[str, ...], role: Role, keys: tuple[str, ...]
) -> None:
    assert lock_keys(allocation(*vendors, role=role), VENDORS) == keys


def test_a_lock_is_written_as_hami_writes_it() -> None:
    assert value_of(HAMI, allocation(), NOW) == "2026-05-01T12:00:00Z,ns,p"
    assert value_of(MLU, allocation(), NOW) == "2026-05-01T12:00:00Z"


@pytest.mark.parametrize(
    ("key", "value", "age_s", "is_held"),
    [
        pytest.param(HAMI, "{at},ns,q", 299, True, id="held"),
        pytest.param(HAMI, "{at},ns,q", 301, False, id="past-five-minutes"),
        pytest.param(HAMI, "{at}", 299, True, id="legacy-held"),
        pytest.param(MLU, "{at}", 119, True, id="mlu-held"),
        pytest.param(MLU, "{at}", 121, False, id="mlu-past-two-minutes"),
        pytest.param(MLU, "", 0, False, id="absent"),
    ],
)
def test_a_lock_is_held_for_its_lifetime(key: str, value: str, age_s: float, is_held: bool) -> None:
    at = NOW - timedelta(seconds=age_s)

    assert (held(key, value.format(at=at.isoformat()), NOW) is not None) is is_held


def test_what_is_no_lock_is_an_error() -> None:
    with pytest.raises(InvalidRequest):
        held(HAMI, "yesterday,ns,p", NOW)


@pytest.mark.parametrize(
    ("key", "value", "mine"),
    [
        pytest.param(HAMI, "2026-05-01T12:00:00Z,ns,p", True, id="ours"),
        pytest.param(HAMI, "2026-05-01T12:00:00Z,ns,pp", False, id="another-pod"),
        pytest.param(HAMI, "2026-05-01T12:00:00Z", None, id="legacy"),
        pytest.param(MLU, "2026-05-01T12:00:00Z", None, id="mlu"),
        pytest.param(HAMI, "junk", False, id="junk"),
    ],
)
def test_a_lock_belongs_to_the_pod_it_names(key: str, value: str, mine: bool | None) -> None:
    assert owned(key, value, allocation()) is mine
