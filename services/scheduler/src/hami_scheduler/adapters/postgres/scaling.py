"""Requests for nodes (wishes), and types of nodes, in Postgres.

A wish is a row until its node came, the wish was given up, or no pod needs it any more; there is at
most one such row per type and number.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import HostRequest
from hamicommon.ledger.database import Database
from hamicommon.scaling.node_types import NodeType
from pydantic import TypeAdapter

from hami_scheduler.ports.scaling import Failures, KnownType, ScaleWish

End = Literal["arrived", "given-up", "dropped"]

_KIND = TypeAdapter(NodeType)
_COLUMNS = """id, type, number, pods, cpu_milli, memory_mib, asked_at, reason, wanted_at,
 extract(epoch FROM now() - wanted_at)::float8 AS age_s"""
_OPEN = f"SELECT {_COLUMNS} FROM scale_wishes WHERE ended_at IS NULL ORDER BY type, number"
# Of two schedulers that want the same node, one begins the wish.
_WANT = """
INSERT INTO scale_wishes (type, number, pods, cpu_milli, memory_mib)
VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING RETURNING id
"""
_ASKED = """
UPDATE scale_wishes SET state = 'asked', asked_at = now(), reason = ''
 WHERE id = $1 AND ended_at IS NULL AND asked_at IS NULL RETURNING id
"""
_PODS = "UPDATE scale_wishes SET pods = $2 WHERE id = $1 AND ended_at IS NULL"
_REASON = "UPDATE scale_wishes SET reason = $2 WHERE id = $1 AND ended_at IS NULL"
_TAKE_BACK = """
UPDATE scale_wishes SET state = 'wanted', asked_at = NULL WHERE id = $1 AND ended_at IS NULL
"""
_END = """
UPDATE scale_wishes SET state = $2, node = $3, reason = $4, ended_at = now()
 WHERE id = $1 AND ended_at IS NULL RETURNING id
"""
_ARRIVED = "SELECT node FROM scale_wishes WHERE state = 'arrived' AND ended_at >= $1"
_FAILURES = """
SELECT type, count(*) AS count, extract(epoch FROM now() - max(ended_at))::float8 AS ago_s
  FROM scale_wishes w
 WHERE state = 'given-up' AND ended_at > now() - interval '1 day'
   AND NOT EXISTS (SELECT FROM scale_wishes later WHERE later.type = w.type
                    AND later.state = 'arrived' AND later.ended_at > w.ended_at)
 GROUP BY type
"""
_TYPES = "SELECT spec, wrong FROM node_types ORDER BY name"
_SAVE = """
INSERT INTO node_types (name, spec, wrong) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, wrong = excluded.wrong, changed_at = now()
"""
_WRONG = "UPDATE node_types SET wrong = $2, changed_at = now() WHERE name = $1"
_HELD = "SELECT pod_uid FROM allocations WHERE ended_at IS NULL AND pod_uid = ANY($1::text[])"


class PostgresScaling:
    """Store of requests for nodes and of node types; every call raises Unavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self) -> list[ScaleWish]:
        """Return the requests for nodes that are still open."""
        return [_wish(row) for row in await self._database.fetch(_OPEN)]

    async def want(self, kind: str, number: int, pods: Sequence[PodUid], host: HostRequest) -> bool:
        """Record a request for a node; return False if an open one has this number."""
        row = await self._database.fetchrow(
            _WANT, kind, number, list(pods), host.cpu_milli, host.memory_mib
        )
        return row is not None

    async def mark_asked(self, wish: ScaleWish) -> bool:
        """Record that the placeholder pod was created; return False if that was recorded before."""
        return await self._database.fetchrow(_ASKED, wish.id) is not None

    async def take_back(self, wish: ScaleWish) -> None:
        """Record that the placeholder pod no longer exists."""
        await self._database.fetch(_TAKE_BACK, wish.id)

    async def set_pods(self, wish: ScaleWish, pods: Sequence[PodUid]) -> None:
        """Record the pods that wait for the node now."""
        await self._database.fetch(_PODS, wish.id, list(pods))

    async def note(self, wish: ScaleWish, reason: str) -> None:
        """Record why the node has not joined yet."""
        await self._database.fetch(_REASON, wish.id, reason)

    async def end(
        self, wish: ScaleWish, state: End, *, node: NodeName | None = None, reason: str = ""
    ) -> bool:
        """End the request for a node; return False if it had ended."""
        return await self._database.fetchrow(_END, wish.id, state, node, reason) is not None

    async def arrived_since(self, moment: datetime) -> set[NodeName]:
        """Return the nodes that joined for requests since `moment`."""
        rows = await self._database.fetch(_ARRIVED, moment)
        return {NodeName(row["node"]) for row in rows}

    async def failures(self) -> dict[str, Failures]:
        """Return how often each type was given up since its last node joined, within a day."""
        rows = await self._database.fetch(_FAILURES)
        return {row["type"]: Failures(count=row["count"], ago_s=row["ago_s"]) for row in rows}

    async def types(self) -> dict[str, KnownType]:
        """Return the node types in the ledger."""
        rows = await self._database.fetch(_TYPES)
        found = [
            KnownType(kind=_KIND.validate_python(row["spec"]), wrong=row["wrong"]) for row in rows
        ]
        return {each.kind.name: each for each in found}

    async def save_type(self, kind: NodeType, wrong: str) -> None:
        """Record a node type."""
        await self._database.fetch(_SAVE, kind.name, _KIND.dump_python(kind, mode="json"), wrong)

    async def mark_wrong(self, kind: str, why: str) -> None:
        """Mark a node type as wrong, so that no more nodes of it are requested."""
        await self._database.fetch(_WRONG, kind, why)

    async def find_holders(self, pods: Sequence[PodUid]) -> set[PodUid]:
        """Return which of these pods have a grant or a room (cards reserved by preemption)."""
        return {PodUid(row["pod_uid"]) for row in await self._database.fetch(_HELD, list(pods))}


def _wish(row: Any) -> ScaleWish:
    return ScaleWish(
        id=row["id"],
        type=row["type"],
        number=row["number"],
        pods=tuple(map(PodUid, row["pods"])),
        host=HostRequest(cpu_milli=row["cpu_milli"], memory_mib=row["memory_mib"]),
        is_asked=row["asked_at"] is not None,
        reason=row["reason"],
        wanted_at=row["wanted_at"],
        age_s=row["age_s"],
    )
