"""What admission knows of the cluster when it judges a pod, and what it does not.

Nothing here is needed: what is unknown hinders no pod, and the audit annotations say that it was
unknown. The webhook keeps it from the bus (`hami_webhook.cluster_feed`), `hamictl lint` from a
dump.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hamicommon.admission.idle_cards import IdleCards, words_of
from hamicommon.admission.quota import NamespaceQuotas
from hamicommon.domain.requests import PodRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Of one moment."""

    cards: IdleCards | None = None
    cards_unknown: str = "the cluster's cards are not known"
    """Why `cards` is None, for the audit annotation."""
    foreign_vendors: frozenset[str] = frozenset()
    """Vendors that have cards on nodes without our agent: those are in no inventory stream."""
    quotas: Mapping[str, NamespaceQuotas] | None = None
    """By namespace; one that is absent has none."""
    quotas_unknown: str = "the ledger's quota numbers are not known"
    """Why `quotas` is None, for the audit annotation."""

    def quotas_of(self, namespace: str) -> NamespaceQuotas:
        """Empty where it has none, or none is known."""
        return (self.quotas or {}).get(namespace, {})

    def cards_for(self, request: PodRequest) -> tuple[IdleCards | None, str]:
        """The cards on which the pod can be judged, or why it can't."""
        if self.cards is None:
            return None, self.cards_unknown
        words = words_of(request)
        foreign = sorted(words & self.foreign_vendors)
        if foreign:
            return None, f"nodes without our agent have cards of {', '.join(foreign)}"
        missing = sorted(self.cards.vendors_without_cards(request))
        if missing:
            return None, f"no node has reported a card of {', '.join(missing)}"
        return self.cards, ""


NOTHING_KNOWN = Knowledge()
