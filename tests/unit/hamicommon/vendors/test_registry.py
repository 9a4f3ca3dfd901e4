"""The vendors of an installation."""

import pytest
from hamicommon.device_config import DeviceConfig, IluvatarChip, MetaxConfig, parse
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.registry import Vendors

ALWAYS = [
    *("NVIDIA", "MLU", "DCU", "GCU", "Enflame", "Mthreads", "Metax-GPU", "Metax-SGPU"),
    *("kunlun", "XPU", "AWSNeuron", "AMD", "Vastai", "Biren"),
]
ASCEND = [
    f"Ascend{chip}" for chip in ("910A", "910B2", "910B3", "910B4-1", "910B4", "310P", "910C")
]
ILUVATAR = ["MR-V100", "MR-V50", "BI-V150", "BI-V100"]


def names(vendors: Vendors) -> list[str]:
    return [vendor.name for vendor in vendors]


def test_vendors_come_in_hamis_order_and_two_families_only_when_enabled() -> None:
    config = DeviceConfig()

    assert names(Vendors.from_config(config)) == ALWAYS
    assert names(Vendors.from_config(config, enable_ascend=True, enable_iluvatar=True)) == [
        *ALWAYS,
        *ASCEND,
        *ILUVATAR,
    ]


def test_a_vendor_without_a_block_or_a_count_resource_is_not_served() -> None:
    assert names(Vendors.from_config(parse({"hygon": {}, "kunlun": {}}))) == [
        "DCU",
        "kunlun",
        "XPU",
    ]
    slices_only = DeviceConfig(metax=MetaxConfig(resource_count_name=""))
    assert "Metax-GPU" not in names(Vendors.from_config(slices_only))
    assert "Metax-SGPU" in names(Vendors.from_config(slices_only))


def test_two_vendors_of_one_name_are_refused() -> None:
    chip = IluvatarChip(chip_name="x", common_word="DCU", resource_count_name="iluvatar.ai/x")

    with pytest.raises(InvalidRequest, match="commonWord 'DCU' names another vendor"):
        Vendors.from_config(DeviceConfig(iluvatars=(chip,)), enable_iluvatar=True)


def test_no_two_vendors_write_the_same_annotation() -> None:
    vendors = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
    written = [
        key for vendor in vendors for key in (vendor.keys.to_allocate, vendor.keys.allocated) if key
    ]

    assert len(written) == len(set(written))
    assert all(key.startswith("hami.io/") for key in written)


def test_a_vendor_is_found_by_its_name() -> None:
    vendors = Vendors.from_config(DeviceConfig())

    assert vendors["DCU"].name == "DCU"
    with pytest.raises(InvalidRequest, match="there is no vendor 'TPU'; known are NVIDIA, MLU"):
        vendors["TPU"]


def test_the_resources_of_all_vendors_are_named_once_each() -> None:
    names = Vendors.from_config(DeviceConfig()).resource_names

    assert names[:2] == ("nvidia.com/gpu", "nvidia.com/gpumem")
    assert {"amd.com/gpu", "hygon.com/dcumem", "aws.amazon.com/neuroncore"} <= set(names)
    assert len(names) == len(set(names))
    assert not [name for name in names if name.startswith(("huawei.com/", "iluvatar.ai/"))]
