"""Which container of a pod gets what by its claims; objects are cut from a real 1.36's."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon.domain.allocations import ContainerGrant, DeviceShare, slices_name
from hamicommon.domain.ids import GpuUuid, PodUid
from hamicommon.dra.claims import (
    AllocatedDevice,
    allocated_devices,
    claim_names,
    claimed_slices_of,
    container_claims,
    granted_containers,
    granted_shares,
    holders,
    pods_of,
)
from hamicommon.dra.devices import DRIVER, device_name
from hamicommon.errors import InvalidRequest, NotFound
from hamicommon.k8s.types import Json

UID = PodUid("pod-1")
CARD = GpuUuid("GPU-A1")
OTHER = GpuUuid("GPU-B2")
CARDS = {device_name(card): card for card in (CARD, OTHER)}


def result(request: str, card: GpuUuid = CARD, *, share: str = "s", **consumed: str) -> Json:
    return {
        "request": request,
        "driver": DRIVER,
        "pool": "n1",
        "device": device_name(card),
        "shareID": share,
        "consumedCapacity": {"memory": "4Gi", "cores": "30", "slots": "1"} | consumed,
    }


def claim(*results: Json, name: str = "c", holders: tuple[str, ...] = (UID,)) -> Json:
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}"},
        "status": {
            "allocation": {"devices": {"results": list(results)}},
            "reservedFor": [{"resource": "pods", "name": h, "uid": h} for h in holders],
        },
    }


def container(name: str, *claims: tuple[str, str | None], **more: Any) -> Json:
    named = [{"name": n} | ({"request": r} if r else {}) for n, r in claims]
    return {"name": name, "resources": {"claims": named}, **more}


def pod(*containers: Json, init: tuple[Json, ...] = (), status: Json | None = None) -> Json:
    return {
        "metadata": {"uid": UID},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
            "initContainers": list(init),
            "containers": list(containers),
        },
        "status": status or {},
    }


def grants(a_pod: Json, *results: Json) -> tuple[ContainerGrant, ...]:
    claimed = container_claims(a_pod, {"gpu": allocated_devices(claim(*results), UID)})
    return granted_containers(claimed, granted_shares(claimed, CARDS))


def shares(granted: ContainerGrant) -> list[tuple[str, int, int]]:
    return [(share.uuid, share.memory_mib, share.core_percent) for share in granted.shares]


def test_a_container_gets_what_was_allocated_to_the_claim_it_names() -> None:
    [cuda, log] = grants(pod(container("cuda", ("gpu", None)), container("log")), result("r"))
    assert cuda.shares == (
        DeviceShare(uuid=CARD, vendor="NVIDIA", memory_mib=4096, core_percent=30),
    )
    assert (cuda.index, cuda.role, log.shares) == (0, "app", ())


def test_requests_of_one_claim_go_to_the_containers_that_name_them() -> None:
    [one, both] = grants(
        pod(container("one", ("gpu", "a")), container("both", ("gpu", "b"))),
        result("a", share="1", memory="1Gi"),
        # Of a prioritised list the result names the alternative, the container the request.
        result("b/second", OTHER, share="2", memory="2Gi", cores="0"),
    )
    assert shares(one) == [(CARD, 1024, 30)]
    assert shares(both) == [(OTHER, 2048, 0)]


def test_a_part_of_a_mebibyte_counts_as_a_whole_one() -> None:
    [cuda] = grants(pod(container("cuda", ("gpu", None))), result("r", memory="1500001"))
    assert shares(cuda) == [(CARD, 2, 30)]


def test_containers_with_the_same_slices_side_by_side_are_one_budget() -> None:
    [one, other] = grants(
        pod(container("a", ("gpu", None)), container("b", ("gpu", None))), result("r")
    )
    assert (shares(one), other.shares) == ([(CARD, 4096, 30)], ())
    sidecar = container("s", ("gpu", None), restartPolicy="Always")
    [first, cuda] = grants(pod(container("a", ("gpu", None)), init=(sidecar,)), result("r"))
    assert (shares(first), cuda.shares) == ([(CARD, 4096, 30)], ())


def test_all_containers_of_a_slice_use_it_under_one_name_and_one_is_counted() -> None:
    a_pod = pod(container("a", ("gpu", None)), container("b", ("gpu", None)))
    claimed = container_claims(a_pod, {"gpu": allocated_devices(claim(result("r")), UID)})
    used = claimed_slices_of(claimed, granted_shares(claimed, CARDS))
    assert [(each.container, each.counted) for each in used] == [(0, True), (1, False)]
    assert {each.key for each in used} == {("uid-c", "r", "s")}
    assert len({slices_name([each.key]) for each in used}) == 1


def test_an_init_container_may_have_the_same_slices_before_and_they_count_once() -> None:
    before = container("init", ("gpu", None))
    [init, cuda] = grants(pod(container("cuda", ("gpu", None)), init=(before,)), result("r"))
    assert (init.shares, shares(cuda)) == ((), [(CARD, 4096, 30)])


def test_an_init_container_with_a_part_of_anothers_slices_is_refused() -> None:
    before = container("init", ("gpu", "a"))
    with pytest.raises(InvalidRequest, match="init and cuda"):
        grants(
            pod(container("cuda", ("gpu", None)), init=(before,)),
            result("a", share="1"),
            result("b", share="2"),
        )


def test_each_of_two_pods_that_hold_a_claim_has_what_is_allocated_to_it() -> None:
    shared = claim(result("r"), holders=(UID, "other"))
    assert allocated_devices(shared, UID) == allocated_devices(shared, PodUid("other"))
    assert [one["uid"] for one in pods_of(shared)] == [UID, "other"]


def test_a_claim_that_is_not_reserved_for_the_pod_is_not_its() -> None:
    with pytest.raises(NotFound, match="not reserved"):
        allocated_devices(claim(result("r"), holders=("other",)), UID)


def test_devices_of_other_drivers_are_theirs() -> None:
    foreign = result("r") | {"driver": "gpu.example.com"}
    assert allocated_devices(claim(foreign, holders=("other", "another")), UID) == ()


def test_a_result_that_does_not_state_its_part_of_the_card_is_refused() -> None:
    whole = result("r")
    del whole["consumedCapacity"]
    with pytest.raises(InvalidRequest, match=r"consumedCapacity\.memory; .*1\.36"):
        allocated_devices(claim(whole), UID)


def test_a_device_that_is_no_card_of_the_node_is_refused() -> None:
    with pytest.raises(NotFound, match="gpu-zz"):
        grants(pod(container("cuda", ("gpu", None))), result("r", GpuUuid("GPU-ZZ")))


def test_claims_made_from_templates_are_named_by_the_pods_status() -> None:
    made = pod(status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-x"}]})
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    assert claim_names(made) == {"gpu": "p-gpu-x"}
    del made["status"]["resourceClaimStatuses"]
    with pytest.raises(NotFound, match="not made from its template"):
        claim_names(made)
    # The template needed no claim: the status names none.
    made["status"]["resourceClaimStatuses"] = [{"name": "gpu"}]
    assert claim_names(made) == {}


def test_an_extended_resource_that_a_class_maps_is_a_claim_too() -> None:
    mapped = pod(
        container("cuda"),
        status={
            "extendedResourceClaimStatus": {
                "resourceClaimName": "p-extended",
                "requestMappings": [{"containerName": "cuda", "requestName": "container-0"}],
            }
        },
    )
    mapped["spec"]["resourceClaims"] = []
    names = claim_names(mapped)
    assert list(names.values()) == ["p-extended"]
    devices = {key: allocated_devices(claim(result("container-0")), UID) for key in names}
    claimed = container_claims(mapped, devices)
    [cuda] = granted_containers(claimed, granted_shares(claimed, CARDS))
    assert shares(cuda) == [(CARD, 4096, 30)]


def test_one_container_holds_each_set_of_slices() -> None:
    device = AllocatedDevice(
        claim_uid="u", claim="c", request="r", pool="n1", device="d", share_id="s",
        memory_mib=1, core_percent=0, slots=1,
    )  # fmt: skip
    used = pod(
        container("cuda", ("gpu", None)),
        init=(container("i1", ("gpu", None)), container("i2", ("gpu", None))),
    )
    found = holders(container_claims(used, {"gpu": (device,)}))
    assert [one.name for one in found] == ["cuda"]
    assert [one.name for one in holders(container_claims(used, {"gpu": ()}))] == []
