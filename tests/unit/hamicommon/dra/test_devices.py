"""Cards as devices of a ResourceSlice."""

from __future__ import annotations

import re

from hamicommon.dra.devices import device_name, device_of, named_devices
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.devices import a_device

CARD = a_device("GPU-5F2C", index=3, type="NVIDIA A100-SXM4-80GB", numa=1)


@given(st.text(min_size=1))
def test_a_name_is_a_dns_label_whatever_the_uuid(uuid: str) -> None:
    name = device_name(f"GPU-{uuid}")
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)


def test_cards_are_found_by_their_names() -> None:
    assert named_devices([CARD.uuid]) == {"gpu-5f2c": CARD.uuid}


def test_a_request_that_names_nothing_gets_the_memory_no_core_limit_and_one_slot() -> None:
    device = device_of(CARD, memory_mib=81920, core_percent=100, slots=10)
    defaults = {name: c["requestPolicy"]["default"] for name, c in device["capacity"].items()}
    assert defaults == {"memory": "81920Mi", "cores": "0", "slots": "1"}
    assert device["attributes"]["uuid"] == {"string": "GPU-5F2C"}
    assert "taints" not in device


def test_what_limits_left_is_what_claims_can_take() -> None:
    capacity = device_of(CARD, memory_mib=1000, core_percent=40, slots=2)["capacity"]
    assert {name: one["value"] for name, one in capacity.items()} == {
        "memory": "1000Mi",
        "cores": "40",
        "slots": "2",
    }
    assert capacity["memory"]["requestPolicy"]["validRange"]["max"] == "1000Mi"


def test_a_card_with_nothing_left_or_a_sick_one_is_tainted_and_stays() -> None:
    full = device_of(CARD, memory_mib=0, core_percent=0, slots=3)
    assert [taint["key"] for taint in full["taints"]] == ["gpu.hami.io/full"]
    # A range without room for one step is refused by the API server.
    assert full["capacity"]["memory"] == {
        "value": "1Mi",
        "requestPolicy": {"default": "1Mi", "validValues": ["1Mi"]},
    }
    sick = device_of(
        a_device(
            CARD.uuid, memory_mib=100, healthy=False, health_reason="XID 79 (fell off the bus)"
        ),
        memory_mib=100,
        core_percent=100,
        slots=10,
    )
    [taint] = sick["taints"]
    assert taint["effect"] == "NoSchedule"
    assert re.fullmatch(r"[a-z0-9-]+", taint["value"])
