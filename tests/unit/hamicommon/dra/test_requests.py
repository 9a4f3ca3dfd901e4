"""Amounts that a pod requests by claims; objects are cut from a real 1.36's."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon.dra.devices import DRIVER
from hamicommon.dra.requests import ClaimedAmounts, amounts_of, is_ours
from hamicommon.k8s.types import Json

GPU = "gpu.hami.io"


def request(name: str = "r", *, device_class: str = GPU, **more: Any) -> Json:
    """A request; `capacity`: amounts, `more`: other fields."""
    capacity = {"capacity": {"requests": more.pop("capacity")}} if "capacity" in more else {}
    return {"name": name, "exactly": {"deviceClassName": device_class, **capacity, **more}}


def claim(*requests: Json) -> Json:
    return {
        "metadata": {"namespace": "ns", "name": "c", "uid": "uid-c"},
        "spec": {"devices": {"requests": list(requests)}},
    }


def amounts(count: int = 1, *, mib: int = 0, whole: bool = False, cores: int = 0) -> ClaimedAmounts:
    return ClaimedAmounts(card_count=count, memory_mib=mib, whole_memory=whole, core_percent=cores)


SIZE = {"memory": "4096Mi", "cores": "30"}
ONE_OF = {"name": "r", "firstAvailable": [{"deviceClassName": GPU, "name": "a"}]}


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        pytest.param([claim(request(capacity=SIZE))], amounts(mib=4096, cores=30), id="amounts"),
        pytest.param([claim(request(count=2))], amounts(2, whole=True), id="whole memory"),
        pytest.param(
            [claim(request(capacity={f"{DRIVER}/memory": "1500001"}))], amounts(mib=2), id="bytes"
        ),
        pytest.param(
            [claim(request(capacity=SIZE)), claim(request(capacity={"memory": "1Gi"}))],
            amounts(2, mib=4096, cores=30),
            id="the largest of two claims",
        ),
        pytest.param(
            [claim(request(capacity=SIZE, selectors=[{"cel": {"expression": "true"}}]))],
            amounts(mib=4096, cores=30),
            id="whichever card",
        ),
        pytest.param(
            [claim(request(), request("o", device_class="other", count=4))],
            amounts(whole=True),
            id="cards of ours alone",
        ),
    ],
)
def test_the_amounts_of_claims_are_those_that_their_requests_state(
    claims: list[Json], expected: ClaimedAmounts
) -> None:
    assert amounts_of(claims) == expected


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param([], id="no claim"),
        pytest.param([claim(request(device_class="other"))], id="of another driver"),
        pytest.param([claim(ONE_OF)], id="alternatives"),
        pytest.param([claim(request(), ONE_OF)], id="alternatives beside an amount"),
        pytest.param([claim(request(allocationMode="All"))], id="all cards"),
        pytest.param([claim(request(capacity={"memory": "much"}))], id="no quantity"),
    ],
)
def test_what_a_request_does_not_state_is_unknown(claims: list[Json]) -> None:
    assert amounts_of(claims) is None


def test_a_claim_is_ours_by_its_class() -> None:
    assert is_ours(claim(request()))
    assert is_ours(claim(request("o", device_class="other"), request()))
    assert is_ours(claim(ONE_OF))
    assert not is_ours(claim(request(device_class="other")))
    assert not is_ours({"metadata": {}, "spec": {}})
