"""NVIDIA requests, selections and nodes, by protocol 1.1."""

import json
from typing import Any

import pytest
from hamicommon.device_config import NvidiaConfig
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.nvidia.nvidia import Nvidia

GPU = "nvidia.com/gpu"
MEM = "nvidia.com/gpumem"
PCT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"


def parse(limits: dict[str, Any] | None, requests: Any = None, **config: Any):
    resources = {"limits": limits, "requests": requests}
    container = {"name": "c", "resources": resources}
    return Nvidia(NvidiaConfig(**config)).parse_request(container)


def amounts(request) -> tuple[int, int, int | None, int]:
    return (request.count, request.memory_mib, request.memory_percent, request.core_percent)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: 1}, (1, 0, 100, 0)),
        ({GPU: "2", MEM: "4096"}, (2, 4096, None, 0)),
        ({GPU: 1, PCT: 50}, (1, 0, 50, 0)),
        ({GPU: 1, PCT: 0}, (1, 0, 100, 0)),
        ({GPU: 1, MEM: 2000, PCT: 0}, (1, 2000, None, 0)),
        ({GPU: 1, MEM: 2000, PCT: 30}, (1, 2000, 30, 0)),
        ({GPU: 1, MEM: 0}, (1, 0, 100, 0)),
        ({GPU: 1, MEM: "4k", CORES: "30"}, (1, 4000, None, 30)),
        ({GPU: 1, PCT: 101}, (1, 0, 100, 0)),
        ({GPU: 1, PCT: "150"}, (1, 0, 100, 0)),
        ({GPU: 1, PCT: "4294967346"}, (1, 0, 100, 0)),
        ({GPU: 1, PCT: -1}, (1, 0, 100, 0)),
        ({GPU: 1, MEM: 2000, PCT: -1}, (1, 2000, None, 0)),
        ({GPU: 1, CORES: 150}, (1, 0, 100, 150)),
    ],
)
def test_a_request_is_count_memory_percentage_and_cores(limits, expected) -> None:
    assert amounts(parse(limits)) == expected


@pytest.mark.parametrize("limits", [None, {}, {MEM: 100}, {GPU: "0"}, {GPU: 0, MEM: "junk"}])
def test_no_count_is_no_request(limits) -> None:
    assert parse(limits) is None


def test_limits_go_before_requests() -> None:
    assert amounts(parse({GPU: 1}, {GPU: 2, MEM: 7})) == (1, 7, None, 0)
    assert amounts(parse(None, {GPU: 2})) == (2, 0, 100, 0)
    assert parse({GPU: 0}, {GPU: 2}) is None


@pytest.mark.parametrize(
    ("resource", "value", "right"),
    [
        (GPU, "-1", "expected a whole number of cards, for example 1"),
        (GPU, "0.5", "a whole number of cards"),
        (GPU, "1000m", "a whole number of cards"),
        (GPU, "many", "which is not a quantity: expected a whole number of cards"),
        (MEM, "-1", "a whole number of MiB"),
        (MEM, "16Gi", r"\(the unit is MiB: write 16384\)"),
        (MEM, "16.0Gi", r"\(the unit is MiB: write 16384\)"),
        (MEM, "1.5", "a whole number of MiB"),
        (MEM, "2147483648", "up to 2147483647"),
        (PCT, "0.5", "a whole number from 1 to 100"),
        (CORES, "-5", "a whole number from 0 to 100"),
        (CORES, "1.5", "a whole number from 0 to 100"),
    ],
)
def test_a_malformed_amount_is_refused_and_never_dropped(resource, value, right) -> None:
    with pytest.raises(InvalidRequest, match=right) as refused:
        parse({GPU: 1} | {resource: value})
    assert f"container 'c': {resource} is {value}" in str(refused.value)


def test_the_factor_multiplies_memory_and_bounds_it() -> None:
    assert amounts(parse({GPU: 1, MEM: 4}, memory_factor=1024)) == (1, 4096, None, 0)
    with pytest.raises(InvalidRequest, match="units of 1024 MiB up to 2097151"):
        parse({GPU: 1, MEM: 2097152}, memory_factor=1024)
    assert amounts(parse({GPU: 1, MEM: 4}, memory_factor=0)) == (1, 4, None, 0)


def test_defaults_fill_in_memory_and_cores() -> None:
    config = {"default_memory": 5000, "default_cores": 20}
    assert amounts(parse({GPU: 1}, **config)) == (1, 5000, None, 20)
    assert amounts(parse({GPU: 1, PCT: 10, CORES: 0}, **config)) == (1, 0, 10, 0)


def test_a_selection_is_read_from_the_pods_annotations() -> None:
    chosen = Nvidia(NvidiaConfig()).select(
        {
            "nvidia.com/use-gputype": " A100, ,V100",
            "nvidia.com/nouse-gputype": "  ",
            "nvidia.com/use-gpuuuid": "GPU-a",
            "nvidia.com/vgpu-mode": "mig",
            "nvidia.com/numa-bind": "True",
        }
    )

    assert chosen.use_types == ("A100", "", "V100")
    assert chosen.avoid_types == ()
    assert chosen.use_uuids == ("GPU-a",)
    assert (chosen.mode, chosen.numa_bind) == ("mig", True)


@pytest.mark.parametrize("value", ["", "yes", "0", "false"])
def test_only_gos_texts_for_true_bind_numa(value) -> None:
    assert not Nvidia(NvidiaConfig()).select({"nvidia.com/numa-bind": value}).numa_bind


def test_a_nodes_cards_and_scores_come_from_its_annotations() -> None:
    register = json.dumps([{"id": "GPU-a", "count": 10, "type": "NVIDIA A30"}])
    scores = json.dumps([{"uuid": "GPU-a", "score": {"GPU-b": 5}}])
    annotations = {"hami.io/node-nvidia-register": register, "hami.io/node-nvidia-score": scores}
    node = {"metadata": {"annotations": annotations}}
    vendor = Nvidia(NvidiaConfig())

    assert [(d.uuid, d.vendor) for d in vendor.node_devices(node)] == [("GPU-a", "NVIDIA")]
    assert vendor.node_pair_scores(node) == {"GPU-a": {"GPU-b": 5}}
    assert vendor.node_devices({"metadata": {}}) == ()
    assert vendor.node_pair_scores({}) == {}
