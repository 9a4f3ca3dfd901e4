"""A ClusterState over given cards, of a ledger without quotas and grants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ports.ledger import CardReader
from hamicommon.domain.allocations import Allocation
from hamicommon.ledger.model import QuotaUse
from hamicommon.placement.vendor_policy import VendorRules


class EmptyLedger:
    """No quota and no grant."""

    async def list_uses(self) -> list[QuotaUse]:
        return []

    async def standing(self) -> AsyncIterator[list[Allocation]]:
        for some in ():
            yield some


def state_of(
    cards: CardReader | None = None,
    rules: Mapping[str, VendorRules] | None = None,
    **options: Any,
) -> ClusterState:
    """`cards` None: they are never read."""
    empty = cast(Any, EmptyLedger())
    options = {"quota_store": empty, "grants": empty, "ttl_s": 60.0, **options}
    return ClusterState(cast(Any, cards), rules=rules or {}, **options)
