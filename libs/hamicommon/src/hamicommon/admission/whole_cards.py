"""Find out whether a pod has only whole NVIDIA cards, so that it may run without libvgpu.

The node-agent decides, from the grant; admission refuses what the node-agent will not do.
"""

from __future__ import annotations

from hamicommon.clipping import clip
from hamicommon.domain.requests import DeviceRequest, PodRequest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.pod_annotations import PRELOAD
from hamicommon.k8s.types import Json
from hamicommon.vendors.nvidia import nvidia
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors


def check_preload(pod: Json, vendors: Vendors) -> None:
    """Check that a pod without the library has whole cards only. Raises: InvalidRequest."""
    if PRELOAD.read(annotations_of(pod)) != "false":
        return
    part = _part_of_a_card(pod_request(pod, vendors))
    if part:
        raise InvalidRequest(
            f"annotation {PRELOAD.name} is 'false' and container '{clip(part)}' asks for a part "
            "of a card: only a pod whose containers have whole cards runs without libvgpu; leave "
            "the annotation out, or ask for cards without an amount of memory and with no cores "
            "or 100"
        )


def has_whole_cards_only(pod: Json, vendors: Vendors) -> bool:
    """Return whether the pod asks only for whole NVIDIA cards."""
    try:
        request = pod_request(pod, vendors)
    except InvalidRequest:
        return False
    asks = any(each.vendor == nvidia.NAME for c in request.containers for each in c.requests)
    return asks and not _part_of_a_card(request)


def _part_of_a_card(request: PodRequest) -> str:
    """Return the name of the first container that asks for a part of a card; empty: none does."""
    for container in request.containers:
        if any(each.vendor == nvidia.NAME and not _is_whole(each) for each in container.requests):
            return container.name
    return ""


def _is_whole(request: DeviceRequest) -> bool:
    return (
        request.memory_mib == 0
        and request.memory_percent == 100
        and request.core_percent in (0, 100)
    )
