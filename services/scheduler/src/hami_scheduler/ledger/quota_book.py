"""Quotas of namespaces in memory: the ledger's limits and use, and what is assumed beside it.

A hint that answers /filter without the ledger; the guard is the ledger's own (`QuotaConflict` of
`AllocationStore.commit`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hamicommon.errors import QuotaConflict
from hamicommon.ledger.model import QuotaAmounts, QuotaUse

_Key = tuple[str, str]
"""Namespace and resource."""


class QuotaBook:
    """Limits with what is used of them; a namespace without limits may use everything."""

    def __init__(self) -> None:
        self._ledger: dict[_Key, QuotaUse] = {}
        self._assumed: Counter[_Key] = Counter()

    def load(self, quotas: Iterable[QuotaUse]) -> bool:
        """Replace everything by the ledger's quotas; True if something differed."""
        new = {(quota.namespace, quota.resource): quota for quota in quotas}
        changed, self._ledger = new != self._ledger, new
        return changed

    def apply(self, quotas: Iterable[QuotaUse]) -> None:
        """Take over what a commit returned."""
        for quota in quotas:
            self._ledger[quota.namespace, quota.resource] = quota

    def assume(self, namespace: str, amounts: QuotaAmounts, sign: int = 1) -> None:
        """Count amounts that the ledger does not count yet, or (`sign` -1) stop counting them."""
        for resource, amount in amounts.items():
            key = (namespace, resource)
            self._assumed[key] += sign * amount
            if not self._assumed[key]:
                del self._assumed[key]

    def conflict(self, namespace: str, amounts: QuotaAmounts) -> QuotaConflict | None:
        """The first limit that has no room for the amounts; None if all have."""
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
