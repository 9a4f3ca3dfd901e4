"""The tables of protocol 1.0.1, 1.0.2 and 1.0.6: names and rules that all vendors share."""

from __future__ import annotations

import pytest
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.ids import GpuUuid
from hamicommon.vendors.registry import Vendors

from tests.unit.hamicommon.vendors.standing import container, make_placed_pod, node, pod

VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
ASCEND = [
    f"Ascend{chip}" for chip in ("910A", "910B2", "910B3", "910B4-1", "910B4", "310P", "910C")
]
ILUVATAR = ["MR-V100", "MR-V50", "BI-V150", "BI-V100"]
NODE_LOCK = "hami.io/mutex.lock"

RESOURCES: dict[str, tuple[str, str, str, int]] = {
    "NVIDIA": ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores", 1),
    "MLU": (
        "cambricon.com/vmlu",
        "cambricon.com/mlu.smlu.vmemory",
        "cambricon.com/mlu.smlu.vcore",
        256,
    ),
    "DCU": ("hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores", 1),
    "GCU": ("enflame.com/gcu", "", "", 1),
    "Mthreads": (
        "mthreads.com/vgpu",
        "mthreads.com/sgpu-memory",
        "mthreads.com/sgpu-core",
        512,
    ),
    "Metax-GPU": ("metax-tech.com/gpu", "", "", 1),
    "kunlun": ("kunlunxin.com/xpu", "", "", 1),
    "XPU": ("kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory", "", 1),
    "AWSNeuron": ("aws.amazon.com/neuron", "", "aws.amazon.com/neuroncore", 1),
    "AMD": ("amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores", 1),
    "Vastai": ("vastaitech.com/va", "", "", 1),
    "Biren": ("birentech.com/gpu", "", "", 1),
    **{w: (f"huawei.com/{w}", f"huawei.com/{w}-memory", f"huawei.com/{w}-core", 1) for w in ASCEND},
    **{
        w: (f"iluvatar.ai/{w}-vgpu", f"iluvatar.ai/{w}.vMem", f"iluvatar.ai/{w}.vCore", 256)
        for w in ILUVATAR
    },
}
"""Count, memory, cores, and how many MiB a unit of memory is; Enflame's and MetaX' slices are
tested with their modules, because a unit of theirs depends on the amount."""

KEYS: dict[str, tuple[str, str, str, str, str]] = {
    "NVIDIA": (
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-devices-allocated",
        "hami.io/node-handshake",
        "hami.io/node-nvidia-register",
        NODE_LOCK,
    ),
    "MLU": (
        "hami.io/cambricon-mlu-devices-to-allocate",
        "hami.io/cambricon-mlu-devices-allocated",
        "",
        "",
        "cambricon.com/dsmlu.lock",
    ),
    "DCU": (
        "hami.io/dcu-devices-to-allocate",
        "hami.io/dcu-devices-allocated",
        "hami.io/node-handshake-dcu",
        "hami.io/node-dcu-register",
        NODE_LOCK,
    ),
    "GCU": (
        "hami.io/enflame-gcu-devices-to-allocate",
        "hami.io/enflame-gcu-devices-allocated",
        "",
        "",
        "",
    ),
    "Enflame": (
        "",
        "hami.io/enflame-vgpu-devices-allocated",
        "",
        "enflame.com/gcu-drs-capacity",
        "",
    ),
    "Mthreads": ("", "hami.io/mthreads-vgpu-devices-allocated", "", "", ""),
    "Metax-GPU": (
        "hami.io/metax-gpu-devices-to-allocate",
        "hami.io/metax-gpu-devices-allocated",
        "",
        "",
        "",
    ),
    "Metax-SGPU": (
        "hami.io/metax-sgpu-devices-to-allocate",
        "hami.io/metax-sgpu-devices-allocated",
        "",
        "metax-tech.com/node-gpu-devices",
        NODE_LOCK,
    ),
    "kunlun": ("", "hami.io/kunlun-allocated", "", "", ""),
    "XPU": (
        "hami.io/xpu-devices-to-allocate",
        "hami.io/xpu-devices-allocated",
        "hami.io/node-handshake-xpu",
        "hami.io/node-register-xpu",
        NODE_LOCK,
    ),
    "AWSNeuron": ("", "hami.io/aws-neuron-devices-allocated", "", "", ""),
    "AMD": (
        "hami.io/amd-devices-to-allocate",
        "hami.io/amd-devices-allocated",
        "",
        "hami.io/node-amd-register",
        NODE_LOCK,
    ),
    "Vastai": (
        "hami.io/Vastai-devices-to-allocate",
        "hami.io/Vastai-devices-allocated",
        "hami.io/node-handshake-va",
        "hami.io/node-va-register",
        NODE_LOCK,
    ),
    "Biren": (
        "hami.io/Biren-devices-to-allocate",
        "hami.io/Biren-devices-allocated",
        "hami.io/node-handshake-biren",
        "hami.io/node-biren-register",
        NODE_LOCK,
    ),
    **{
        name: (
            f"hami.io/{name}-devices-to-allocate",
            f"hami.io/{name}-devices-allocated",
            f"hami.io/node-handshake-{name}",
            f"hami.io/node-register-{name}",
            NODE_LOCK,
        )
        for name in ASCEND
    },
    **{
        name: (
            f"hami.io/{name}-devices-to-allocate",
            f"hami.io/{name}-devices-allocated",
            f"hami.io/node-handshake-{name}",
            f"hami.io/node-{name}-register",
            NODE_LOCK,
        )
        for name in ILUVATAR
    },
}
"""To-allocate, allocated, handshake, register and lock."""

UUIDS: dict[str, list[tuple[str, str]]] = {
    "NVIDIA": [("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid")],
    "AMD": [("amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid")],
    "MLU": [("cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid")],
    "DCU": [("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid")],
    "Mthreads": [("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid")],
    "Metax-SGPU": [("metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid")],
    "kunlun": [
        ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
        ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"),
    ],
    "XPU": [
        ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
        ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"),
    ],
    "Enflame": [("enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid")],
    "AWSNeuron": [("aws.amazon.com/use-neuron-uuid", "aws.amazon.com/nouse-neuron-uuid")],
    "Vastai": [("vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid")],
    "Biren": [("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid")],
    **{
        name: [(f"hami.io/use-{name}-uuid", f"hami.io/no-use-{name}-uuid")]
        for name in (*ASCEND, *ILUVATAR)
    },
}
"""Vendors of which a pod may name cards; where there are two pairs, both must pass."""

TYPES = {
    "NVIDIA": ("nvidia.com/use-gputype", "nvidia.com/nouse-gputype"),
    "AMD": ("amd.com/use-gputype", "amd.com/nouse-gputype"),
    "DCU": ("hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
}
NEVER_READ = (
    "cambricon.com/use-mlutype",
    "cambricon.com/nouse-mlutype",
    "vastaitech.com/use-va",
    "vastaitech.com/nouse-va",
    "birentech.com/use-biren",
    "birentech.com/nouse-biren",
)
"""Names that HAMi declares and does not evaluate."""


@pytest.mark.parametrize("name", RESOURCES)
def test_a_vendors_resources_have_hamis_names_and_units(name: str) -> None:
    names = VENDORS[name].resources

    assert (names.count, names.memory, names.core, names.memory_factor) == RESOURCES[name]


def test_every_vendor_is_in_the_tables() -> None:
    names = {vendor.name for vendor in VENDORS}

    assert names == KEYS.keys()
    assert names - RESOURCES.keys() == {"Enflame", "Metax-SGPU"}


@pytest.mark.parametrize("name", KEYS)
def test_a_vendors_annotations_have_hamis_keys(name: str) -> None:
    keys = VENDORS[name].keys

    assert (keys.to_allocate, keys.allocated, keys.handshake, keys.register, keys.lock) == (
        KEYS[name]
    )


@pytest.mark.parametrize("name", KEYS)
def test_cards_are_named_by_the_vendors_own_annotations_alone(name: str) -> None:
    mine = {key for pair in UUIDS.get(name, []) for key in pair} | {*TYPES.get(name, ())}
    others = {key for pairs in UUIDS.values() for pair in pairs for key in pair}
    others |= {key for pair in TYPES.values() for key in pair} | {*NEVER_READ}
    select = VENDORS[name].select

    for key in mine:
        assert select({key: "a"}) != select({})
    assert select(dict.fromkeys(others - mine, "a")) == select({})


@pytest.mark.parametrize("name", UUIDS)
def test_lists_of_cards_are_trimmed_and_a_blank_one_is_none(name: str) -> None:
    use, avoid = UUIDS[name][0]
    select = VENDORS[name].select

    chosen = select({use: " a, b ,", avoid: "c"})
    assert [uuid for uuid in chosen.use_uuids if uuid] == ["a", "b"]
    assert [uuid for uuid in chosen.avoid_uuids if uuid] == ["c"]
    assert select({use: "  ", avoid: ""}) == select({})


@pytest.mark.parametrize("name", TYPES)
def test_types_of_cards_are_wanted_and_unwanted(name: str) -> None:
    use, avoid = TYPES[name]
    chosen = VENDORS[name].select({use: "A, B", avoid: "C"})
    assert (chosen.use_types, chosen.avoid_types) == (("A", "B"), ("C",))


@pytest.mark.parametrize("name", [name for name, keys in KEYS.items() if keys[2]])
def test_a_plugin_that_leaves_the_handshake_open_is_dead_without_capacity(name: str) -> None:
    vendor = VENDORS[name]
    for asked in KEYS.values():
        handshake = {asked[2]: "Requesting_2026-01-02 03:04:05"}
        is_other = asked[2] != vendor.keys.handshake
        assert vendor.plugin_alive(node(annotations=handshake)) is is_other
        assert vendor.plugin_alive(node({vendor.resources.count: "1"}, handshake))


PLAIN = ("NVIDIA", "DCU", "GCU", "Metax-GPU", "XPU", "Vastai", "Biren", *ILUVATAR)


@pytest.mark.parametrize("name", PLAIN)
def test_slices_are_written_twice(name: str) -> None:
    slices = [
        DeviceShare(uuid=GpuUuid(uuid), vendor=name, memory_mib=4000, core_percent=30)
        for uuid in ("x", "y")
    ]
    to_allocate, allocated, *_ = KEYS[name]
    written = VENDORS[name].pod_annotations(make_placed_pod([], (), slices))
    assert {to_allocate, allocated} == written.keys()
    assert set(written.values()) == {f";x,{name},4000,30:y,{name},4000,30:;"}


@pytest.mark.parametrize("name", ["MLU", "DCU", "GCU", "Metax-GPU", "kunlun", "Vastai", "Biren"])
def test_admission_takes_containers_whose_limits_name_the_count_and_changes_them_not(
    name: str,
) -> None:
    vendor = VENDORS[name]
    named = {vendor.resources.count: 1}
    asking = container(dict(named))
    assert vendor.mutate(asking, pod(asking)).wants
    assert asking == container(named)
    assert not vendor.mutate(container(None, named), pod({})).wants
    assert not vendor.mutate(container({"cpu": 1}), pod({})).wants


@pytest.mark.parametrize("name", ["GCU", "Metax-GPU", "AMD"])
def test_a_plugin_without_a_handshake_lives_while_the_kubelet_lists_cards(name: str) -> None:
    vendor = VENDORS[name]
    assert vendor.plugin_alive(node({vendor.resources.count: "2"}))
    for amount in ("0", "1.5", "x"):
        assert not vendor.plugin_alive(node({vendor.resources.count: amount}))
    assert not vendor.plugin_alive(node())


@pytest.mark.parametrize("name", ["MLU", "Mthreads", "kunlun", "AWSNeuron"])
def test_a_plugin_of_which_nothing_is_known_counts_as_alive(name: str) -> None:
    assert VENDORS[name].plugin_alive(node())
