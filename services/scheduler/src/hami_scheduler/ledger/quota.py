"""Quotas on slices in ResourceQuotas (`limits.<memory or core resource>`).

Pure. The amounts are the footprints of `domain.allocations`, summed over cards, in MiB and cores,
as HAMi counts them (protocol 3, "Quota manager rules"). A request by percent counts its amount on
the chosen card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hamicommon.admission.mistakes.quotas import COUNTED, quota_mistakes, quota_units
from hamicommon.domain.allocations import ContainerGrant, footprints
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import InvalidRequest, QuotaConflict
from hamicommon.explain.record import QuotaShort
from hamicommon.k8s.quantities import parse_int
from hamicommon.ledger.model import QuotaAmounts, QuotaUse
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide
from hamicommon.placement.rules import REASONS, Rule
from hamicommon.vendors.registry import Vendors

QUOTA_REASON = "ResourceQuotaNotFit"
# More than any card has, and far from the end of int32.
_HOPELESS_MIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimits:
    """Limits of our resources in one ResourceQuota object."""

    limits: Mapping[str, int]
    """Limits by resource in MiB, or percent of cores; 0 allows nothing."""
    mistakes: Mapping[str, str] = field(default_factory=dict)
    """Reasons by key, for entries that limit nothing (as with HAMi)."""


def quota_amounts(containers: Sequence[ContainerGrant], vendors: Vendors) -> dict[str, int]:
    """Return the amounts by resource; resources without an amount are left out.

    A vendor that is no longer configured has no resource: its slices can still be given back.
    """
    vendor_of = {share.uuid: share.vendor for c in containers for share in c.shares}
    amounts: dict[str, int] = {}
    for card in footprints(containers):
        vendor = next((each for each in vendors if each.name == vendor_of[card.uuid]), None)
        if vendor is None:
            continue
        names = vendor.resources
        for name, amount in ((names.memory, card.memory_mib), (names.core, card.core_percent)):
            if name and amount:
                amounts[name] = amounts.get(name, 0) + amount
    return amounts


def quota_limits(quota: Mapping[str, Any], vendors: Vendors) -> QuotaLimits:
    """Return the limits of one ResourceQuota object, of all vendors.

    Amounts are read as HAMi reads them: `20Gi` is so many MiB, and named as a mistake.
    """
    hard = (quota.get("spec") or {}).get("hard") or {}
    limits: dict[str, int] = {}
    for name, unit_mib in quota_units(vendors):
        text = hard.get(f"{COUNTED}{name}")
        if text is None:
            continue
        try:
            amount = parse_int(text)
        except InvalidRequest:
            amount = None
        if amount is not None and amount >= 0:
            limits[name] = amount * (unit_mib or 1)
    return QuotaLimits(limits=limits, mistakes=quota_mistakes(quota, vendors))


def quota_reasons(
    request: PodRequest,
    view: ClusterView,
    names: Sequence[NodeName],
    resource: str,
    vendors: Vendors,
) -> dict[NodeName, str]:
    """Return each node's reason to refuse a pod for which a quota on `resource` has no room.

    HAMi asks the quota card by card, right before the memory (protocol 1.0.4, 10): a card that an
    earlier rule refuses keeps that reason. So the engine is asked for more memory than there is.
    """
    kinds = {v.name for v in vendors if resource in (v.resources.memory, v.resources.core)}
    containers = tuple(
        replace(
            container,
            requests=tuple(
                replace(asked, memory_mib=_HOPELESS_MIB, memory_percent=None)
                if asked.vendor in kinds
                else asked
                for asked in container.requests
            ),
        )
        for container in request.containers
    )
    refusal = decide(replace(request, containers=containers), view, candidates=names).refusal
    assert refusal is not None
    return {node: _by_quota(reason) for node, reason in refusal.reasons.items()}


def _by_quota(reason: str) -> str:
    pieces = reason.replace(REASONS[Rule.MEMORY], QUOTA_REASON).split(", ")
    return ", ".join(sorted(pieces))


def cards_beyond(
    request: PodRequest, view: ClusterView, conflict: QuotaConflict, vendors: Vendors
) -> frozenset[GpuUuid]:
    """Return cards of which the requested percentage exceeds the quota's rest."""
    kinds = {v.name for v in vendors if v.resources.memory == conflict.resource}
    by_percent = [
        asked
        for container in request.containers
        for asked in container.requests
        if asked.vendor in kinds and not asked.memory_mib
    ]
    left = conflict.limit - conflict.used
    if not by_percent:
        return frozenset()
    return frozenset(
        usage.device.uuid
        for cards in view.frozen().usages
        for usage in cards
        if any(
            asked.vendor == usage.device.vendor
            and asked.memory_mib_on(usage.device.memory_mib) > left
            for asked in by_percent
        )
    )


def quota_short(conflict: QuotaConflict, vendors: Vendors) -> QuotaShort:
    """Return the refusal for people and for the record."""
    memory = {v.resources.memory: max(v.resources.memory_factor, 1) for v in vendors}
    return QuotaShort(
        namespace=conflict.namespace,
        resource=conflict.resource,
        limit=conflict.limit,
        used=conflict.used,
        wanted=conflict.wanted,
        unit_mib=memory.get(conflict.resource, 0),
    )


_Key = tuple[str, str]
"""Namespace and resource."""


class QuotaBook:
    """Limits with their use; a namespace without limits may use everything."""

    def __init__(self) -> None:
        self._ledger: dict[_Key, QuotaUse] = {}
        self._assumed: Counter[_Key] = Counter()

    def load(self, quotas: Iterable[QuotaUse]) -> bool:
        """Replace everything by the ledger's quotas; return whether anything differed."""
        new = {(quota.namespace, quota.resource): quota for quota in quotas}
        changed, self._ledger = new != self._ledger, new
        return changed

    def apply(self, quotas: Iterable[QuotaUse]) -> None:
        """Apply the quotas that a commit returned."""
        for quota in quotas:
            self._ledger[quota.namespace, quota.resource] = quota

    def assume(self, namespace: str, amounts: QuotaAmounts, sign: int = 1) -> None:
        """Add amounts that the ledger does not count yet, or with `sign` -1 subtract them."""
        for resource, amount in amounts.items():
            key = (namespace, resource)
            self._assumed[key] += sign * amount
            if not self._assumed[key]:
                del self._assumed[key]

    def conflict(self, namespace: str, amounts: QuotaAmounts) -> QuotaConflict | None:
        """Return the first limit that the amounts exceed; None if there is none."""
        for resource, wanted in sorted(amounts.items()):
            quota = self._ledger.get((namespace, resource))
            if quota is None or quota.limit is None or wanted <= 0:
                continue
            used = quota.used + self._assumed[namespace, resource]
            if used + wanted > quota.limit:
                return QuotaConflict(
                    namespace, resource, limit=quota.limit, used=used, wanted=wanted
                )
        return None
