"""What a pod asks for by its claims; objects are cut from a real 1.36's."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon.domain.requests import DeviceRequest
from hamicommon.dra.devices import DRIVER
from hamicommon.dra.requests import ClaimedSlices, claimed_slices, is_ours
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json

GPU = "gpu.hami.io"


def request(name: str = "r", *, device_class: str = GPU, **more: Any) -> Json:
    """`capacity`: what is asked for; the rest is the request's."""
    capacity = {"capacity": {"requests": more.pop("capacity")}} if "capacity" in more else {}
    return {"name": name, "exactly": {"deviceClassName": device_class, **capacity, **more}}


def claim(*requests: Json, name: str = "c", **devices: Any) -> Json:
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def percent(value: object, *names: str) -> list[Json]:
    parameters = {"memoryPercent": value}
    requests = {"requests": list(names)} if names else {}
    return [{**requests, "opaque": {"driver": DRIVER, "parameters": parameters}}]


def container(name: str, *named: str) -> Json:
    """`claim` or `claim/request`."""
    claims = []
    for each in named:
        one, _, part = each.partition("/")
        claims.append({"name": one} | ({"request": part} if part else {}))
    return {"name": name, "resources": {"claims": claims}}


def pod(*containers: Json, init: tuple[Json, ...] = ()) -> Json:
    return {
        "metadata": {"uid": "p"},
        "spec": {"initContainers": list(init), "containers": list(containers)},
    }


def asked(a_pod: Json, **claims: Json) -> list[tuple[DeviceRequest, ...]]:
    return [each.requests for each in slices(a_pod, **claims).requests]


def slices(a_pod: Json, **claims: Json) -> ClaimedSlices:
    return claimed_slices(a_pod, claims)


def wanted(count: int = 1, *, mib: int = 0, percent: int | None = None, cores: int = 0) -> Any:
    return (
        DeviceRequest(
            vendor="NVIDIA",
            count=count,
            memory_mib=mib,
            memory_percent=percent,
            core_percent=cores,
        ),
    )


def test_amounts_are_those_that_limits_would_name() -> None:
    size = {"memory": "4096Mi", "cores": "30"}
    made = claim(request(capacity=size, count=2))
    assert asked(pod(container("cuda", "gpu"), container("log")), gpu=made) == [
        wanted(2, mib=4096, cores=30),
        (),
    ]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(claim(request()), wanted(percent=100), id="nothing is the whole memory"),
        pytest.param(claim(request(), config=percent(25)), wanted(percent=25), id="percent"),
        pytest.param(
            claim(request(capacity={"memory": "1Gi"}), config=percent(5)),
            wanted(mib=1024, percent=5),
            id="an amount and a percentage, as limits may have both",
        ),
        pytest.param(
            claim(request(), config=percent(25, "r")), wanted(percent=25), id="percent of r"
        ),
        pytest.param(
            claim(request(), config=percent(25, "other")), wanted(percent=100), id="of another"
        ),
        pytest.param(
            claim(request(capacity={f"{DRIVER}/memory": "1500001"})), wanted(mib=2), id="rounded up"
        ),
        pytest.param(claim(request(capacity={"slots": "1"})), wanted(percent=100), id="one slot"),
        pytest.param(
            claim(
                request(),
                config=[{"opaque": {"driver": "other.example.com", "parameters": {"a": 1}}}],
            ),
            wanted(percent=100),
            id="another driver's configuration",
        ),
    ],
)
def test_a_request_is_read(made: Json, expected: object) -> None:
    assert asked(pod(container("cuda", "gpu")), gpu=made) == [expected]


def test_requests_are_of_the_containers_that_name_them() -> None:
    made = claim(request("a", capacity={"memory": "1Gi"}), request("b", capacity={"memory": "2Gi"}))
    two = pod(container("one", "gpu/a"), container("two", "gpu/b"))
    assert asked(two, gpu=made) == [wanted(mib=1024), wanted(mib=2048)]


def test_equal_requests_of_one_container_are_cards_of_one_size() -> None:
    made = claim(request("a", capacity={"memory": "1Gi"}))
    more = claim(request("b", capacity={"memory": "1Gi"}), name="d")
    assert asked(pod(container("one", "x", "y")), x=made, y=more) == [wanted(2, mib=1024)]


def test_containers_that_have_a_slice_in_turn_ask_once() -> None:
    one = container("cuda", "gpu")
    found = asked(pod(one, init=(container("fetch", "gpu"),)), gpu=claim(request()))
    assert found == [(), wanted(percent=100)]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (claim(request(selectors=[{"cel": {}}])), "request r of claim c has selectors"),
        (claim(request(tolerations=[{"operator": "Exists"}])), "has tolerations"),
        (claim(request(adminAccess=True)), "has adminAccess"),
        (claim(request(allocationMode="All")), "has allocationMode All: ExactCount"),
        (claim(request(count=33)), "asks for 33 cards: 32 at most"),
        (claim(request(), constraints=[{"matchAttribute": "a/b"}]), "claim c has constraints"),
        (claim({"name": "r", "firstAvailable": [{"deviceClassName": GPU}]}), "alternatives"),
        (claim(request(), request("s", device_class="other")), "is for class other"),
        (claim(request(capacity={"speed": "1"})), "capacity speed: memory, cores or slots"),
        (claim(request(capacity={"memory": "0"})), "asks for 0 MiB"),
        (claim(request(capacity={"memory": "1Ei"})), "MiB of memory"),
        (claim(request(capacity={"cores": "101"})), "asks for 101 cores"),
        (claim(request(capacity={"cores": "-1"})), "asks for -1 cores"),
        (claim(request(capacity={"slots": "2"})), "asks for 2 slots: a slice has one"),
        (claim(request(), config=percent(0)), "has memoryPercent 0: .* from 1 to 100"),
        (claim(request(), config=percent(True)), "has memoryPercent True"),
        (claim(request(), config=percent("25")), "has memoryPercent 25"),
        (
            claim(request(), config=[{"opaque": {"driver": DRIVER, "parameters": {"x": 1}}}]),
            "has x",
        ),
        (claim(request(), request("s")), "containers? |request s .* no container"),
    ],
)
def test_what_the_ledger_can_not_keep_is_refused_with_a_sentence(made: Json, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        slices(pod(container("cuda", "gpu/r")), gpu=made)


def test_slices_of_different_sizes_are_no_container_s() -> None:
    made = claim(request("a", capacity={"memory": "1Gi"}), request("b"))
    with pytest.raises(InvalidRequest, match=r"container one uses requests of different sizes"):
        slices(pod(container("one", "gpu")), gpu=made)


def test_a_claim_is_ours_by_its_class() -> None:
    assert is_ours(claim(request()))
    assert is_ours(claim(request("o", device_class="other"), request()))
    assert is_ours(claim({"name": "r", "firstAvailable": [{"deviceClassName": GPU}]}))
    assert not is_ours(claim(request(device_class="other")))
    assert not is_ours({"metadata": {}, "spec": {}})
