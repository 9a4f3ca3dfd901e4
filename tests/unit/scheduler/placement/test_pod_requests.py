"""Which pods leave it open which card they get."""

from __future__ import annotations

from typing import Any

import pytest
from hami_scheduler.placement.pod_requests import PodRequests
from hamicommon import device_config
from hamicommon.domain.requests import Policy
from hamicommon.vendors.registry import Vendors

REQUESTS = PodRequests(vendors=Vendors.from_config(device_config.load(None)), defaults=Policy())


def pod(limits: dict[str, Any] | None = None, **annotations: str) -> dict[str, Any]:
    wanted = limits or {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
    return {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {"limits": wanted}}]},
    }


def test_a_pod_without_annotations_takes_any_card() -> None:
    assert REQUESTS.takes_any_card(pod())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nvidia.com/use-gpuuuid", "GPU-1"),
        ("nvidia.com/nouse-gpuuuid", "GPU-1"),
        ("nvidia.com/use-gputype", "A100"),
        ("nvidia.com/nouse-gputype", "A100"),
        ("nvidia.com/vgpu-mode", "hami-core"),
        ("nvidia.com/numa-bind", "true"),
        ("hami.io/gpu-scheduler-policy", "mutex"),
    ],
)
def test_one_that_chooses_its_card_or_its_company_does_not(key: str, value: str) -> None:
    assert not REQUESTS.takes_any_card(pod(**{key: value}))


def test_one_that_cannot_be_read_does_not() -> None:
    assert not REQUESTS.takes_any_card(pod({"nvidia.com/gpu": "many"}))
