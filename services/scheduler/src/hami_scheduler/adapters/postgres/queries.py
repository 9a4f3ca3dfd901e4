"""Read the ledger for people, as plain JSON values, and its statistics for the bus."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hamicommon.domain.ids import NodeName
from hamicommon.events import ClusterNumbers, QuotaNumbers
from hamicommon.explain.sentences import count_noun
from hamicommon.ledger.database import Database
from hamicommon.ledger.footprint import footprint
from hamicommon.ledger.granted_cards import PodCard, read_pod_cards
from hamicommon.ledger.invariants import broken
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.bus.ledger_stats import LedgerStats
from hami_scheduler.ports.ledger import LastRefusal

Row = dict[str, Any]

_ALLOCATIONS = """
SELECT a.id::text AS id, a.pod_uid, a.namespace, a.pod_name, a.attempt, a.node, a.state, a.token,
       a.reason, a.reserved_at, a.binding_at, a.bound_at, a.allocated_at, a.ended_at, a.deadline,
       a.traceparent, a.origin,
       CASE WHEN a.origin <> 'claim' THEN '[]' ELSE
       coalesce((SELECT jsonb_agg(jsonb_build_object(
                     'container', c.name, 'container_index', k.container_index,
                     'claim', k.claim_name, 'claim_uid', k.claim_uid, 'request', k.request,
                     'share_id', k.share_id, 'device_uuid', k.device_uuid,
                     'memory_mib', k.memory_mib, 'core_percent', k.core_percent,
                     'counted', k.counted,
                     'together_with', ARRAY(
                         SELECT DISTINCT o.pod_name FROM allocation_claims b
                           JOIN allocations o ON o.id = b.allocation_id
                          WHERE (b.claim_uid, b.request, b.share_id)
                                = (k.claim_uid, k.request, k.share_id)
                            AND o.id <> a.id AND o.ended_at IS NULL ORDER BY 1))
                     ORDER BY k.container_index, k.position)
                   FROM allocation_claims k
                   JOIN allocation_containers c USING (allocation_id, container_index)
                  WHERE k.allocation_id = a.id), '[]') END AS claims,
       coalesce((SELECT jsonb_agg(jsonb_build_object(
                     'container', d.container_name, 'container_index', d.container_index,
                     'role', CASE WHEN d.sidecar THEN 'sidecar' ELSE d.role END,
                     'device_uuid', d.device_uuid, 'vendor', d.vendor,
                     'memory_mib', d.memory_mib, 'core_percent', d.core_percent)
                     ORDER BY d.container_index, d.position)
                   FROM allocation_devices d WHERE d.allocation_id = a.id), '[]') AS devices,
       CASE WHEN a.state NOT IN ('bound', 'allocated') THEN NULL
            ELSE coalesce((SELECT p.state FROM limit_periods p
                            WHERE p.pod_uid = a.pod_uid AND p.ended_at IS NULL
                            ORDER BY array_position('{exceeded,bypassed,unknown}', p.state)
                            LIMIT 1),
                          (SELECT 'enforced' FROM limit_checks c WHERE c.node = a.node
                              AND c.checked_at > now() - interval '3 minutes'
                              AND NOT EXISTS (
                                  SELECT FROM allocation_devices x
                                    JOIN devices d ON d.uuid = x.device_uuid
                                   WHERE x.allocation_id = a.id AND NOT d.present)),
                          'unknown')
       END AS limit_state
  FROM allocations a
 WHERE ($1::text IS NULL OR a.node = $1) AND ($2::text IS NULL OR a.namespace = $2)
   AND ($3::text IS NULL OR a.state = $3) AND ($4::text IS NULL OR a.pod_uid = $4)
   AND ($5::boolean IS NULL OR (a.ended_at IS NULL) = $5)
   AND ($6::text IS NULL OR a.pod_name = $6)
 ORDER BY a.reserved_at DESC, a.id LIMIT $7
"""
_NODES = """
SELECT n.name, n.source, n.node_group, n.agent_id, n.inventory_at, n.first_seen_at, n.gone_at,
       count(d.uuid) FILTER (WHERE d.present) AS cards,
       count(d.uuid) FILTER (WHERE d.present AND d.healthy) AS healthy_cards,
       coalesce(sum(d.slots) FILTER (WHERE d.present), 0) AS slots,
       coalesce(sum(d.used_slots), 0) AS used_slots,
       coalesce(sum(d.memory_mib) FILTER (WHERE d.present), 0) AS memory_mib,
       coalesce(sum(d.used_memory_mib), 0) AS used_memory_mib,
       coalesce(sum(d.core_percent) FILTER (WHERE d.present), 0) AS core_percent,
       coalesce(sum(d.used_core_percent), 0) AS used_core_percent
  FROM nodes n LEFT JOIN devices d ON d.node = n.name
 GROUP BY n.name ORDER BY n.name
"""
_DEVICES = f"""
SELECT uuid, node, vendor, index, type, slots, memory_mib, core_percent, used_slots,
       used_memory_mib, used_core_percent, ceiling_slots, ceiling_memory_mib, ceiling_core_percent,
       numa, mode, healthy, health_reason, cordoned OR unschedulable AS cordoned, present, version,
       updated_at, node_group, coalesce(room_memory_mib, 0) AS room_memory_mib
  FROM devices JOIN nodes ON name = node
  LEFT JOIN (SELECT card, sum(mib)::bigint AS room_memory_mib
               FROM (SELECT x.device_uuid AS card, {footprint("memory_mib")} AS mib
                       FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id
                      WHERE a.ended_at IS NULL AND a.state = 'reserved'
                      GROUP BY a.id, x.device_uuid) one GROUP BY card) rooms ON card = uuid
 WHERE ($1::text IS NULL OR node = $1) ORDER BY node, index, uuid
"""
_HISTORY = """
SELECT e.sequence, e.at, e.previous_state, e.state, e.reason, e.actor, e.detail,
       e.allocation_id::text AS allocation_id, a.attempt, a.node, a.score, a.policy
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 WHERE e.pod_uid = $1 ORDER BY e.sequence
"""
_DECISIONS = """
SELECT at, last_at, detail_at, pod_uid, namespace, pod_name, outcome, node, candidates, request,
       policy, message, summary, shortfalls, inventory, counters, view_version, trace_id,
       repeat_count, CASE WHEN isfinite(wait_ended_at) THEN wait_ended_at END AS wait_ended_at,
       wait_end, group_size
  FROM decisions WHERE pod_uid = $1 ORDER BY at DESC, id DESC LIMIT 20
"""
# By name or uid, of grants and of refusals: a pod that was never placed has refusals only.
_PODS_NAMED = """
SELECT pod_uid, namespace, pod_name, max(at) AS last_seen_at FROM (
    SELECT pod_uid, namespace, pod_name, reserved_at AS at FROM allocations
     WHERE (namespace = $1 AND pod_name = $2) OR pod_uid = $2
    UNION ALL
    SELECT pod_uid, namespace, pod_name, last_at FROM decisions
     WHERE ((namespace = $1 AND pod_name = $2) OR pod_uid = $2) AND outcome <> 'placed') named
 GROUP BY pod_uid, namespace, pod_name ORDER BY last_seen_at DESC LIMIT 100
"""
_DRIFT = """
SELECT at, "class", subject, detail, repaired FROM drift_journal
 WHERE $1::text IS NULL OR "class" = $1 ORDER BY at DESC, id DESC LIMIT $2
"""
# What continues first, then the latest.
_WANTED_NODES = """
SELECT w.type, count(*) AS nodes, sum(cardinality(w.pods)) AS pods,
       bool_and(w.asked_at IS NOT NULL) AS asked,
       string_agg(w.reason, '') FILTER (WHERE $1 = ANY(w.pods)) AS reason
  FROM scale_wishes w WHERE w.ended_at IS NULL GROUP BY w.type
HAVING bool_or($1 = ANY(w.pods))
"""
_LIMITS = """
SELECT node, container, device_uuid, state, reason, began_at, ended_at, seen_at, held_mib, peak_mib,
       granted_mib, evicted_at, eviction_problem
  FROM limit_periods WHERE pod_uid = $1
 ORDER BY ended_at DESC NULLS FIRST, began_at DESC, id DESC LIMIT 10
"""
_SNAPSHOTS = "SELECT id, content FROM decision_snapshots WHERE id = ANY($1::text[])"
# The same as the function allocations_at, narrowed before the join.
_HELD = """
SELECT a.id::text AS allocation_id, a.pod_uid, a.namespace, a.pod_name, a.node, a.state, a.origin,
       d.container_index, d.container_name,
       CASE WHEN d.sidecar THEN 'sidecar' ELSE d.role END AS role, d.vendor, d.device_uuid,
       d.memory_mib, d.core_percent, d.slots, d.detail,
       CASE WHEN a.state = 'releasing' THEN
           (SELECT min(at) FROM allocation_events
             WHERE allocation_id = a.id AND allocation_events.state = 'releasing')
       END AS releasing_at
  FROM allocations a JOIN allocation_devices d ON d.allocation_id = a.id
 WHERE a.reserved_at <= $1 AND (a.ended_at IS NULL OR a.ended_at > $1)
   AND (a.node = ANY($2::text[]) OR a.namespace = $3)
 ORDER BY a.namespace, a.pod_name, a.id, d.container_index, d.position
"""
_UNHEALTHY_SINCE = """
SELECT DISTINCT ON (device_uuid) device_uuid, at, healthy
  FROM device_health_events WHERE device_uuid = ANY($1::text[]) AND at <= $2
 ORDER BY device_uuid, at DESC, id DESC
"""
# Without a decision a pod is left out: kube-scheduler never asked about it.
_LAST_REFUSALS = """
SELECT wanted.pod_uid, d.reason, d.candidates, d.unregistered
  FROM unnest($1::text[]) AS wanted(pod_uid) CROSS JOIN LATERAL (
    SELECT candidates, coalesce((reason_counts->>'node unregistered')::bigint, 0) AS unregistered,
           coalesce((SELECT key FROM jsonb_each_text(reason_counts)
                      ORDER BY value::numeric DESC, key LIMIT 1), '') AS reason
      FROM decisions WHERE pod_uid = wanted.pod_uid AND at > now() - interval '31 days'
     ORDER BY at DESC, id DESC LIMIT 1) d
"""
_UNPUBLISHED = """
SELECT count(*)::float AS rows, min(at) AS oldest_at FROM (
    SELECT at FROM allocation_events WHERE published_at IS NULL
    UNION ALL SELECT created_at FROM outbox WHERE published_at IS NULL) waiting
"""
# Rows of quotas that ended are kept without a limit, so that their end is published too.
_QUOTAS = """
SELECT namespace, resource, limit_amount, used_amount FROM quotas ORDER BY namespace, resource
"""
# A node whose inventory is empty has reported one all the same, so it counts. The inventory stream
# has deleted nodes for a day; so many names fit into a message.
_CLUSTER = """
SELECT now() AS taken_at,
       (SELECT count(*) FROM nodes WHERE source = 'agent' AND gone_at IS NULL) AS agent_nodes,
       ARRAY(SELECT DISTINCT d.vendor FROM devices d JOIN nodes n ON n.name = d.node
              WHERE n.source <> 'agent' AND n.gone_at IS NULL AND d.present
              ORDER BY d.vendor) AS foreign_vendors,
       ARRAY(SELECT name FROM nodes WHERE source = 'agent' AND gone_at > now() - interval '25 hours'
              ORDER BY gone_at DESC LIMIT 2000) AS gone_nodes
"""


class PostgresQueries:
    """Answers to operators' questions, read from the ledger on each call."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def allocations(
        self,
        *,
        node: str | None = None,
        namespace: str | None = None,
        state: str | None = None,
        pod_uid: str | None = None,
        live: bool | None = None,
        pod_name: str | None = None,
        limit: int = 1000,
    ) -> list[Row]:
        """Return allocations, the newest first. Raises: Unavailable."""
        return await self._rows(
            _ALLOCATIONS, node, namespace, state, pod_uid, live, pod_name, limit
        )

    async def nodes(self) -> list[Row]:
        """Return nodes with the sums of their cards. Raises: Unavailable."""
        return await self._rows(_NODES)

    async def devices(self, *, node: str | None = None) -> list[Row]:
        """Return cards with capacity and granted amounts. Raises: Unavailable."""
        return await self._rows(_DEVICES, node)

    async def history(self, pod_uid: str) -> list[Row]:
        """Return every state change of the pod's allocations, in order. Raises: Unavailable."""
        return await self._rows(_HISTORY, pod_uid)

    async def decisions(self, pod_uid: str) -> list[Row]:
        """Return the pod's stored decisions, the newest first. Raises: Unavailable."""
        return await self._rows(_DECISIONS, pod_uid)

    async def pods_named(self, namespace: str, name: str) -> list[Row]:
        """Return pods that have or had this name or uid, the newest first. Raises: Unavailable."""
        return await self._rows(_PODS_NAMED, namespace, name)

    async def drift(self, *, kind: str | None = None, limit: int = 100) -> list[Row]:
        """Return differences that the reconciler found, the newest first. Raises: Unavailable."""
        return await self._rows(_DRIFT, kind, limit)

    async def broken_promises(self) -> list[Row]:
        """Return a sentence for each violated invariant. Raises: Unavailable."""
        async with self._database.connection() as connection:
            return [{"sentence": sentence} for sentence in await broken(connection)]

    async def limits(self, pod_uid: str) -> list[Row]:
        """Return periods in which the pod exceeded its limits, open ones first.

        Raises: Unavailable.
        """
        return await self._rows(_LIMITS, pod_uid)

    async def wanted_nodes(self, pod_uid: str) -> list[str]:
        """Return the nodes that the pod waits for. Raises: Unavailable."""
        return [
            f"{count_noun(row['nodes'], 'node')} of {row['type']} "
            f"{'requested' if row['asked'] else 'needed'}; this pod is 1 of "
            f"{row['pods']} waiting pods" + (f" ({row['reason']})" if row["reason"] else "")
            for row in await self._rows(_WANTED_NODES, pod_uid)
        ]

    async def pod_cards(
        self, *, pod_uid: str | None = None, silent: Collection[NodeName] = ()
    ) -> list[PodCard]:
        """Return the pod's cards; without a uid, the cards of all pods that may have a problem.

        Raises: Unavailable.
        """
        async with self._database.connection() as connection:
            return await read_pod_cards(connection, pod_uid=pod_uid, silent=silent)

    async def snapshots(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return stored states of cards at decisions, by name. Raises: Unavailable."""
        rows = await self._rows(_SNAPSHOTS, list(ids))
        return {row["id"]: row["content"] for row in rows}

    async def held_at(self, at: datetime, nodes: Sequence[str], namespace: str) -> list[Row]:
        """Return the slices that pods held then on nodes or in a namespace. Raises: Unavailable."""
        return await self._rows(_HELD, at, list(nodes), namespace)

    async def unhealthy_since(self, uuids: Sequence[str], at: datetime) -> dict[str, datetime]:
        """Return since when cards were unhealthy at a moment. Raises: Unavailable."""
        rows = await self._rows(_UNHEALTHY_SINCE, list(uuids), at)
        return {row["device_uuid"]: row["at"] for row in rows if not row["healthy"]}

    async def outbox_lag(self) -> tuple[float, datetime | None]:
        """Return the number of unpublished rows, and the time of the oldest.

        Raises: Unavailable.
        """
        row = await self._database.fetchrow(_UNPUBLISHED)
        return row["rows"], row["oldest_at"]

    async def last_refusals(self, uids: Sequence[str]) -> dict[str, LastRefusal]:
        """Return the last refusal of each pod. Raises: Unavailable."""
        rows = await self._rows(_LAST_REFUSALS, list(uids))
        return {row.pop("pod_uid"): LastRefusal(**row) for row in rows}

    async def quota_room(self) -> dict[tuple[str, str], int]:
        """Return the unused amount of each quota, by namespace and resource.

        Raises: Unavailable.
        """
        rows = await self._database.fetch(_QUOTAS)
        return {
            (row["namespace"], row["resource"]): row["limit_amount"] - row["used_amount"]
            for row in rows
            if row["limit_amount"] is not None
        }

    async def _rows(self, query: str, *args: object) -> list[Row]:
        return [dict(row) for row in await self._database.fetch(query, *args)]


@dataclass(eq=False)
class PostgresLedgerStats:
    """Statistics of the ledger for the bus."""

    database: Database
    bulkhead: Bulkhead = field(default_factory=Bulkhead)

    async def read(self) -> LedgerStats:
        """Read the ledger's statistics. Raises: Unavailable, Conflict."""
        # The moment is that of the first statement: what changes between the two is reported next
        # time.
        [cluster] = await self.database.fetch(_CLUSTER)
        quotas: dict[str, tuple[QuotaNumbers, ...]] = {}
        for namespace, resource, limit, used in await self.database.fetch(_QUOTAS):
            known = quotas.setdefault(namespace, ())
            if limit is not None:
                with self.bulkhead.item("ledger-stats", namespace):
                    numbers = QuotaNumbers(resource=resource, limit=limit, used=used)
                    quotas[namespace] = (*known, numbers)
        return LedgerStats(ClusterNumbers(**cluster), quotas)
