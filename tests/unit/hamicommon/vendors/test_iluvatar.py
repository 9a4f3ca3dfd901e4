"""Iluvatar chips, by protocol 1.5."""

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
from hamicommon.device_config import DeviceConfig, IluvatarChip
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.placement.vendor_policy import STANDARD_ORDER, standard_need
from hamicommon.vendors.interface.vendor import PlacedPod
from hamicommon.vendors.registry import Vendors
from hamicommon.vendors.shares import Iluvatar

from tests.unit.hamicommon.vendors.asking import amounts_of, container

CHIPS = {chip.common_word: Iluvatar(chip) for chip in DeviceConfig().iluvatars}
MR = CHIPS["MR-V100"]
GPU = "iluvatar.ai/MR-V100-vgpu"
MEM = "iluvatar.ai/MR-V100.vMem"
CORES = "iluvatar.ai/MR-V100.vCore"
ENV = {"name": "SOL_CONTINER_NAME", "value": "c"}


def test_every_chip_of_the_configuration_is_a_vendor_when_enabled() -> None:
    expected = ["MR-V100", "MR-V50", "BI-V150", "BI-V100"]
    config = DeviceConfig()

    assert [v.name for v in Vendors.from_config(config, enable_iluvatar=True)][-4:] == expected
    assert not set(expected) & {vendor.name for vendor in Vendors.from_config(config)}


@pytest.mark.parametrize("name", CHIPS)
def test_names_are_made_of_the_vendors_name(name) -> None:
    vendor = CHIPS[name]

    assert vendor.resources.all() == (
        f"iluvatar.ai/{name}-vgpu",
        f"iluvatar.ai/{name}.vMem",
        f"iluvatar.ai/{name}.vCore",
    )
    assert vendor.resources.memory_factor == 256
    assert vendor.keys.register == f"hami.io/node-{name}-register"
    assert vendor.keys.handshake == f"hami.io/node-handshake-{name}"
    assert vendor.keys.to_allocate == f"hami.io/{name}-devices-to-allocate"
    assert vendor.keys.allocated == f"hami.io/{name}-devices-allocated"
    assert vendor.rules.order == STANDARD_ORDER
    assert vendor.rules.need is standard_need
    assert vendor.rules.chooser is None


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: 1}, (1, 0, 100, 0)),
        ({GPU: 1, MEM: 64, CORES: 50}, (1, 16384, None, 50)),
        ({GPU: "2", CORES: "200"}, (2, 0, 100, 200)),
        ({GPU: 1, MEM: 0}, (1, 0, 100, 0)),
        ({GPU: 0}, None),
        ({MEM: 64}, None),
    ],
)
def test_memory_is_in_units_of_256_mib(limits, expected) -> None:
    request = MR.parse_request(container(limits))
    found = amounts_of(request)

    assert found == expected
    assert MR.parse_request(container(None, limits)) == request


@pytest.mark.parametrize(
    ("resource", "value", "right"),
    [
        (GPU, "0.5", "a whole number of cards"),
        (MEM, "16Gi", "a whole number of units of 256 MiB up to 8388607"),
        (MEM, "8388608", "a whole number of units of 256 MiB up to 8388607"),
        (MEM, "-1", "a whole number of units"),
        (CORES, "-1", "a whole number from 0 to 100"),
        (CORES, "12.5", "a whole number from 0 to 100"),
    ],
)
def test_a_malformed_amount_is_refused(resource, value, right) -> None:
    with pytest.raises(InvalidRequest, match=right) as refused:
        MR.mutate(container({GPU: 1} | {resource: value}), {})
    assert f"container 'c': {resource} is {value}" in str(refused.value)


@pytest.mark.parametrize(
    ("limits", "after"),
    [
        ({GPU: 1}, {GPU: 1}),
        ({GPU: 1, CORES: 30}, {GPU: 1, CORES: 30}),
        ({GPU: 2}, {GPU: 2, CORES: "200"}),
        ({GPU: "3", CORES: "300"}, {GPU: "3", CORES: "300"}),
    ],
)
def test_admission_takes_several_cards_whole_and_names_the_container(limits, after) -> None:
    asked: dict[str, Any] = container(limits)
    admitted = MR.mutate(asked, {})

    assert (admitted.wants, admitted.warnings) == (True, ())
    assert asked["resources"]["limits"] == after
    assert asked["env"] == [ENV]
    again = deepcopy(asked)
    assert MR.mutate(again, {}) == admitted
    assert again == asked


def test_other_cores_for_several_cards_are_overruled_with_a_warning() -> None:
    asked = container({GPU: 2, CORES: 50})

    assert MR.mutate(asked, {}).warnings == (
        f"container 'c': {CORES} 50 is taken as 200, because several cards are given whole",
    )
    assert MR.mutate(asked, {}).warnings == ()


def test_an_env_entry_of_the_user_stays_and_a_nameless_container_gets_none() -> None:
    own = container({GPU: 1}) | {"env": [{"name": "SOL_CONTINER_NAME", "value": "mine"}]}
    nameless = container({GPU: 1}) | {"name": ""}
    MR.mutate(own, {})
    MR.mutate(nameless, {})

    assert own["env"] == [{"name": "SOL_CONTINER_NAME", "value": "mine"}]
    assert "env" not in nameless


def test_a_container_without_the_count_in_limits_is_left_alone() -> None:
    for asked in (container({MEM: 5}), container(None, {GPU: 1}), container()):
        before = deepcopy(asked)

        assert not MR.mutate(asked, {}).wants
        assert asked == before


def test_a_chip_without_a_core_resource_gets_none_written() -> None:
    chip = Iluvatar(IluvatarChip(chip_name="X", common_word="X", resource_count_name="x/gpu"))
    asked = container({"x/gpu": 2})

    assert chip.mutate(asked, {}).wants
    assert asked["resources"]["limits"] == {"x/gpu": 2}


def test_cards_are_registered_as_csv() -> None:
    text = "IL-0,100,32768,100,MR-V100,0,true:IL-1,100,32768,100,MR-V100,1,false:"
    node = {"metadata": {"annotations": {"hami.io/node-MR-V100-register": text}}}
    first, second = MR.node_devices(node)

    assert (first.uuid, first.vendor, first.slots, first.memory_mib) == (
        "IL-0",
        "MR-V100",
        100,
        32768,
    )
    assert (second.numa, second.healthy) == (1, False)
    assert CHIPS["MR-V50"].node_devices(node) == ()
    assert MR.node_pair_scores(node) == {}


def test_an_open_handshake_without_capacity_is_a_dead_plugin() -> None:
    asked = {"hami.io/node-handshake-MR-V100": "Requesting_2026-01-02 03:04:05"}

    assert not MR.plugin_alive({"metadata": {"annotations": asked}})
    assert CHIPS["MR-V50"].plugin_alive({"metadata": {"annotations": asked}})


def test_uuids_are_selected_by_annotations_with_the_vendors_name() -> None:
    chosen = MR.select(
        {
            "hami.io/use-MR-V100-uuid": "a, b",
            "hami.io/no-use-MR-V100-uuid": "c",
            "hami.io/use-MR-V50-uuid": "d",
        }
    )

    assert (chosen.use_uuids, chosen.avoid_uuids) == (("a", "b"), ("c",))


def test_slices_are_written_twice() -> None:
    share = DeviceShare(uuid=GpuUuid("IL-1"), vendor="MR-V100", memory_mib=16384, core_percent=50)
    written = MR.pod_annotations(
        PlacedPod(
            node=NodeName("n"),
            containers=[ContainerGrant(index=0, name="c", role="app", shares=(share,))],
            cards={},
            selections={},
            now=datetime.now(UTC),
        )
    )

    assert written == {
        "hami.io/MR-V100-devices-to-allocate": "IL-1,MR-V100,16384,50:;",
        "hami.io/MR-V100-devices-allocated": "IL-1,MR-V100,16384,50:;",
    }
