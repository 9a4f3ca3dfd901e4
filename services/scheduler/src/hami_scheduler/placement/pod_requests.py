"""What a pod asks for, by the served vendors and the cluster's default policies."""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.domain.requests import PodRequest, Policy
from hamicommon.k8s.types import JsonMapping
from hamicommon.vendors.pod_request import pod_request, wants_devices
from hamicommon.vendors.registry import Vendors


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequests:
    """Reads requests from pods."""

    vendors: Vendors
    defaults: Policy
    """For pods that name no policy."""

    def of(self, pod: JsonMapping) -> PodRequest:
        """What the pod asks for. Raises: InvalidRequest."""
        return pod_request(dict(pod), self.vendors, self.defaults)

    def wants_devices(self, pod: JsonMapping) -> bool:
        """Whether the pod asks for a card of a vendor that is served."""
        return wants_devices(dict(pod), self.vendors)
