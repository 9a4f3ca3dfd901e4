"""Only vendors whose resources a container names are called; the result is the same."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hamicommon.device_config import DeviceConfig, NvidiaConfig
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.vendors.interface.vendor import MutateResult, Vendor
from hamicommon.vendors.registry import Vendors
from hypothesis import given
from hypothesis import strategies as st

PLAIN = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
EAGER = Vendors.from_config(
    DeviceConfig(nvidia=NvidiaConfig(overwrite_env=True, gpu_core_policy="force")),
    enable_ascend=True,
    enable_iluvatar=True,
)
amounts = st.sampled_from((0, 1, "2", 50, "16Gi", "x", -1))
resources = st.dictionaries(st.sampled_from((*PLAIN.resource_names, "cpu")), amounts, max_size=4)


def judge_container(vendor: Vendor, container: Json) -> tuple[Json, MutateResult | str, object]:
    """The pod after the vendor, its result, and the request that it reads."""
    pod = {"metadata": {"annotations": {}}, "spec": {"containers": [container]}}
    found: MutateResult | str
    try:
        found = vendor.mutate(container, pod)
    except InvalidRequest as exc:
        found = str(exc)
    try:
        return pod, found, vendor.parse_request(container)
    except InvalidRequest as exc:
        return pod, found, str(exc)


@pytest.mark.parametrize("vendors", [PLAIN, EAGER], ids=["plain", "every pod is changed"])
@given(resources, resources, st.booleans())
def test_a_vendor_that_is_not_concerned_changes_nothing(
    vendors: Vendors, limits: Json, requests: Json, both: bool
) -> None:
    container = {"name": "c", "resources": {"limits": limits}}
    if both:
        container["resources"]["requests"] = requests
    concerned = vendors.concerned_by(container)

    for vendor in vendors:
        if vendor not in concerned:
            given_ = deepcopy(container)
            pod, found, request = judge_container(vendor, given_)
            assert pod == {"metadata": {"annotations": {}}, "spec": {"containers": [container]}}
            assert (found, request) == (MutateResult(wants=False), None)


def test_the_order_is_that_of_registration() -> None:
    container = {"resources": {"limits": dict.fromkeys(reversed(PLAIN.resource_names), "1")}}

    assert PLAIN.concerned_by(container) == PLAIN.items
    assert PLAIN.concerned_by({"name": "c"}) == ()
    assert [vendor.name for vendor in EAGER.concerned_by({"name": "c"})] == ["NVIDIA"]
