"""The ledger's numbers, read from Postgres in two cheap statements."""

from __future__ import annotations

from datetime import datetime

from hamicommon.events import QuotaNumbers
from hamicommon.ledger.database import Database
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.bus.ledger_stats import LedgerNumbers

# Rows of quotas that ended are kept without a limit, so that their end is told too.
_QUOTAS = """
SELECT namespace, resource, limit_amount, used_amount FROM quotas ORDER BY namespace, resource
"""
# A node that reported no card has told an inventory all the same, so it counts.
_CLUSTER = """
SELECT now() AS taken_at,
       (SELECT count(*) FROM nodes WHERE source = 'agent' AND gone_at IS NULL) AS agent_nodes,
       ARRAY(SELECT DISTINCT d.vendor FROM devices d JOIN nodes n ON n.name = d.node
              WHERE n.source <> 'agent' AND n.gone_at IS NULL AND d.present
              ORDER BY d.vendor) AS foreign_vendors
"""


class PostgresNumbers:
    """Port NumbersReader."""

    def __init__(self, database: Database, *, bulkhead: Bulkhead | None = None) -> None:
        self._database = database
        self._bulkhead = bulkhead or Bulkhead()

    async def numbers(self) -> LedgerNumbers:
        """See the port."""
        # The moment is that of the first statement: what changes between the two is said next time.
        [cluster] = await self._database.fetch(_CLUSTER)
        taken_at: datetime = cluster["taken_at"]
        quotas: dict[str, list[QuotaNumbers]] = {}
        for row in await self._database.fetch(_QUOTAS):
            limits = quotas.setdefault(row["namespace"], [])
            if row["limit_amount"] is not None:
                with self._bulkhead.item("ledger-numbers", row["namespace"]):
                    limits.append(
                        QuotaNumbers(
                            resource=row["resource"],
                            limit=row["limit_amount"],
                            used=row["used_amount"],
                        )
                    )
        return LedgerNumbers(
            taken_at=taken_at,
            quotas={namespace: tuple(limits) for namespace, limits in quotas.items()},
            agent_nodes=cluster["agent_nodes"],
            foreign_vendors=tuple(cluster["foreign_vendors"]),
        )
