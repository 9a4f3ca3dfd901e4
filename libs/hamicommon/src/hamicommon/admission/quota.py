"""Compute what a pod takes of its namespace's quotas before its cards are chosen (protocol 3).

Input: the request and the ledger's numbers. Output: the quota that is too small, if there is one.
The amounts are the least that the ledger can count: per resource the greater of the most that any
one init container takes with the sidecars declared before it, and what all sidecars and app
containers take, of every card they ask for. So no request is refused here that the ledger would
grant. A percentage counts as 0 here: its amount depends on the card, and the scheduler counts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hamicommon.domain.requests import ContainerRequest, PodRequest
from hamicommon.explain.record import QuotaShort
from hamicommon.vendors.registry import Vendors

MAX_CORES = 100
"""Cores of one card in percent; a higher request counts as all of them (protocol 1.0.4, 8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """Used amount and limit of one resource in one namespace, in MiB or percent of cores."""

    limit: int
    used: int


NamespaceQuotas = Mapping[str, QuotaUse]
"""Quotas by resource name, such as `nvidia.com/gpumem`; resources without a limit are left out."""


def needs(request: PodRequest, vendors: Vendors) -> dict[str, int]:
    """Return the minimum amounts that the pod will take, by resource; zero amounts are left out."""
    sidecars: Counter[str] = Counter()
    together: Counter[str] = Counter()
    highest: Counter[str] = Counter()
    for container in request.containers:
        taken = _amounts_of(container, vendors)
        if container.role == "init":
            highest |= taken + sidecars
            continue
        together.update(taken)
        if container.role == "sidecar":
            sidecars.update(taken)
    return dict(together | highest)


def _amounts_of(container: ContainerRequest, vendors: Vendors) -> Counter[str]:
    taken: Counter[str] = Counter()
    for asked in container.requests:
        names = vendors[asked.vendor].resources
        if names.memory:
            taken[names.memory] += asked.count * asked.memory_mib
        if names.core:
            taken[names.core] += asked.count * min(asked.core_percent, MAX_CORES)
    return taken


def over_quota(
    request: PodRequest, namespace: str, quotas: NamespaceQuotas, vendors: Vendors
) -> QuotaShort | None:
    """Return the first exceeded quota, by resource name; None if the pod fits in all."""
    if not quotas:
        return None
    for resource, wanted in sorted(needs(request, vendors).items()):
        quota = quotas.get(resource)
        if quota is not None and wanted and quota.used + wanted > quota.limit:
            return QuotaShort(
                namespace=namespace,
                resource=resource,
                limit=quota.limit,
                used=quota.used,
                wanted=wanted,
                unit_mib=_unit_mib(resource, vendors),
            )
    return None


def _unit_mib(resource: str, vendors: Vendors) -> int:
    """Return the MiB in one unit of the resource; 0 for cores."""
    for vendor in vendors:
        if vendor.resources.memory == resource:
            return max(vendor.resources.memory_factor, 1)
    return 0
