"""What a pod asks for, by the served vendors and the cluster's default policies."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hamicommon.domain.requests import ContainerRequest, PodRequest, Policy, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import JsonMapping
from hamicommon.vendors.pod_request import pod_request, request_for, wants_devices
from hamicommon.vendors.registry import Vendors

SHARED_MODES = "hami-core,mps"
"""As `nvidia.com/vgpu-mode` has it: a card's mode must be contained in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequests:
    """Reads requests from pods."""

    vendors: Vendors
    defaults: Policy
    """For pods that name no policy."""

    def of(self, pod: JsonMapping) -> PodRequest:
        """What the pod asks for. Raises: InvalidRequest."""
        return pod_request(dict(pod), self.vendors, self.defaults)

    def for_cards(self, pod: JsonMapping, containers: tuple[ContainerRequest, ...]) -> PodRequest:
        """The pod's request where its cards are asked for by claims: as by limits, but for cards
        in MIG mode, which are no DRA devices. Raises: InvalidRequest.
        """
        request = request_for(dict(pod), containers, self.vendors, self.defaults)
        selections = {
            vendor: each if each.mode else replace(each, mode=SHARED_MODES)
            for vendor, each in request.selections.items()
        }
        return replace(request, selections=selections)

    def takes_any_card(self, pod: JsonMapping) -> bool:
        """Whether the pod's annotations leave it open which card of a node it gets, and with whom
        it shares that."""
        try:
            request = self.of(pod)
        except InvalidRequest:
            return False
        alone = "mutex" in request.policy.gpu
        return not alone and all(each == Selection() for each in request.selections.values())

    def wants_devices(self, pod: JsonMapping) -> bool:
        """Whether the pod asks for a card of a vendor that is served."""
        return wants_devices(dict(pod), self.vendors)
