"""Keys and values of a ResourceQuota that would hold nothing."""

from __future__ import annotations

import pytest
from hamicommon.admission.mistakes.quotas import quota_mistakes
from hamicommon.device_config import DeviceConfig
from hamicommon.k8s.types import Json
from hamicommon.vendors.registry import Vendors

VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
MEMORY = "limits.nvidia.com/gpumem"


def quota(**hard: str) -> Json:
    return {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}


@pytest.mark.parametrize(
    ("key", "amount"),
    [
        (MEMORY, "20480"),
        (MEMORY, "0"),
        (MEMORY, "20Ki"),
        (MEMORY, "20M"),
        ("limits.nvidia.com/gpucores", "200"),
        ("limits.iluvatar.ai/BI-V150.vMem", "64"),
        ("requests.nvidia.com/gpu", "4"),
        ("limits.memory", "20Gi"),
        ("requests.nvidia.com/mig-1g.5gb", "2"),
        ("requests.nvidia.com/gpu.shared", "2"),
        ("requests.intel.com/gpu", "2"),
        ("limits.example.com/thing", "2"),
        ("count/deployments.apps", "2"),
        ("gold.storageclass.storage.k8s.io/requests.storage", "5Gi"),
    ],
)
def test_a_limit_that_counts_is_no_mistake(key: str, amount: str) -> None:
    assert quota_mistakes(quota(**{key: amount}), VENDORS) == {}


@pytest.mark.parametrize(
    ("key", "amount", "right"),
    [
        ("nvidia.com/gpumem", "4000", "write limits.nvidia.com/gpumem: 4000"),
        ("requests.nvidia.com/gpumem", "4000", "write limits.nvidia.com/gpumem: 4000"),
        # The API server stores 4000 so before it asks.
        ("nvidia.com/gpumem", "4k", "write limits.nvidia.com/gpumem: 4000"),
        ("requests.nvidia.com/gpucores", "30", "write limits.nvidia.com/gpucores: 30"),
        ("nvidia.com/gpu", "4", "write requests.nvidia.com/gpu"),
        ("limits.nvidia.com/gpu", "4", "write requests.nvidia.com/gpu"),
        ("limits.nvidia.com/gpumem-percentage", "50", "write limits.nvidia.com/gpumem, in MiB"),
        ("nvidia.com/gpumem", "20Gi", "write limits.nvidia.com/gpumem: 20480"),
        ("limits.nvidia.com/gpu-mem", "4000", "was limits.nvidia.com/gpumem meant?"),
        ("limits.nvidia.com/gpumemory", "4000", "was limits.nvidia.com/gpumem meant?"),
        ("limits.nvidia.com/memory", "4000", "was limits.nvidia.com/gpumem meant?"),
        ("limits.nvidia.com/GPUMEM", "4000", "was limits.nvidia.com/gpumem meant?"),
        ("limits.nvdia.com/gpumem", "4000", "was limits.nvidia.com/gpumem meant?"),
        ("limit.nvidia.com/gpumem", "4000", "was limits.nvidia.com/gpumem meant?"),
        ("request.nvidia.com/gpu", "4", "was requests.nvidia.com/gpu meant?"),
        ("requests.nvidia.com/gpus", "4", "was requests.nvidia.com/gpu meant?"),
        ("limits.nvidia.com/priority", "4", "no quota can limit it"),
        ("limits.nvidia.com/zebra", "4", "limits.nvidia.com/gpumem and limits.nvidia.com/gpucores"),
        (MEMORY, "20Gi", "the unit is MiB: write 20480"),
        (MEMORY, "512Mi", "the unit is MiB: write 512"),
        (MEMORY, "20G", "the unit is MiB: write 19073"),
        (MEMORY, "0.5", "a whole number of MiB"),
        ("limits.nvidia.com/gpucores", "500m", "100 for one whole card"),
        ("limits.cambricon.com/mlu.smlu.vmemory", "20Gi", "the unit is 256 MiB: write 80"),
    ],
)
def test_what_would_hold_nothing_is_named_with_what_would_be_right(
    key: str, amount: str, right: str
) -> None:
    found = quota_mistakes(quota(**{key: amount}), VENDORS)

    assert list(found) == [key]
    assert f"{key}: {amount}" in found[key]
    assert right in found[key]


def test_a_quota_that_can_not_be_read_has_no_mistakes_of_ours() -> None:
    assert quota_mistakes({"spec": None}, VENDORS) == {}
    assert quota_mistakes({"spec": {"hard": {MEMORY: {}}}}, VENDORS) == {
        MEMORY: "limits.nvidia.com/gpumem: {} limits nothing: expected a whole number of MiB, "
        "for example 20480"
    }
