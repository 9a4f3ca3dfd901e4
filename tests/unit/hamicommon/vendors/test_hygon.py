"""Hygon DCU, by protocol 1.4."""

import pytest
from hamicommon.device_config import HygonConfig
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.shares import Hygon

from tests.unit.hamicommon.vendors.standing import container, node, pod

DCU = Hygon(HygonConfig())
COUNT, MEM, CORE = "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"
REGISTER = "DCU-0,4,16384,100,DCU-Z100L,0,true:DCU-1,4,16384,100,DCU-K100,1,false:"


@pytest.mark.parametrize(
    ("limits", "factor", "expected"),
    [
        ({COUNT: 1, CORE: 60, MEM: 2000}, 1, (1, 2000, None, 60)),
        ({COUNT: 2}, 1, (2, 0, 100, 100)),
        ({COUNT: 1, MEM: 4}, 1024, (1, 4096, None, 100)),
        ({COUNT: 1, MEM: 4}, 0, (1, 4, None, 100)),
        ({COUNT: 0, MEM: 4}, 1, None),
        ({MEM: 4}, 1, None),
    ],
    ids=["all given", "whole cards", "factor", "factor 0 is 1", "count 0", "no count"],
)
def test_a_request_is_count_memory_and_cores(limits, factor, expected) -> None:
    found = Hygon(HygonConfig(memory_factor=factor)).parse_request(container(limits))

    assert expected == (
        found and (found.count, found.memory_mib, found.memory_percent, found.core_percent)
    )


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ({COUNT: "1.5"}, f"container 'c': {COUNT} is 1.5: expected a whole number of cards"),
        ({COUNT: 1, MEM: "500m"}, f"{MEM} is 500m: expected a whole number of MiB"),
        ({COUNT: 1, MEM: "16Gi"}, "the unit is MiB: write 16384"),
        ({COUNT: 1, CORE: -1}, f"{CORE} is -1: expected a whole number from 0 to 100"),
        ({COUNT: 1, CORE: 2**31}, f"{CORE} is 2147483648: expected a whole number"),
    ],
    ids=["count", "memory", "bytes", "negative cores", "cores too large"],
)
def test_malformed_amounts_are_refused_and_not_dropped(limits, wrong) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        DCU.parse_request(container(limits))


def test_a_node_registers_its_cards_as_csv() -> None:
    first, second = DCU.node_devices(node(annotations={"hami.io/node-dcu-register": REGISTER}))

    assert (first.uuid, first.slots, first.memory_mib, first.core_percent, first.type) == (
        ("DCU-0", 4, 16384, 100, "DCU-Z100L")
    )
    assert (first.healthy, second.healthy, second.numa) == (True, False, 1)
    assert {card.vendor for card in (first, second)} == {"DCU"}
    assert DCU.node_devices(node()) == ()
    with pytest.raises(InvalidRequest, match="neither a JSON list nor CSV"):
        DCU.node_devices(node(annotations={"hami.io/node-dcu-register": "junk"}))


def test_admission_refuses_a_malformed_amount() -> None:
    with pytest.raises(InvalidRequest, match=MEM):
        DCU.mutate(container({COUNT: 1, MEM: "1Ti"}), pod({}))
