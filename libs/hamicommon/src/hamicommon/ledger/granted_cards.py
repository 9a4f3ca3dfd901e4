"""Read the cards of live grants with their present condition."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hamicommon.domain.granted_cards import GrantedCard, GrantedCardCondition, condition_of
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.ledger.connection import Connection

# Every card of one pod, or of all pods only cards that may have a condition. A card replaces
# another if it came after the other was last healthy: an older one may only have got its index.
# Only our agent records MIG instances: on a node with HAMi's plugin a change of mode is unknown.
_CARDS = """
SELECT a.pod_uid, a.namespace, a.pod_name, a.node, x.container_name, x.device_uuid, d.index,
       d.present, d.healthy, d.health_reason, d.cordoned, d.mode, mig.part,
       n.inventory_at, n.gone_at IS NOT NULL AS node_gone,
       CASE WHEN NOT (d.present AND d.healthy) THEN (
           SELECT r.uuid FROM devices r
            WHERE r.node = d.node AND r.index = d.index AND r.vendor = d.vendor AND r.present
              AND r.uuid <> d.uuid AND NOT EXISTS (
                  SELECT FROM device_periods p
                   WHERE p.device_uuid = r.uuid AND p.present AND p.began_at < (
                       SELECT max(ended_at) FROM device_periods w
                        WHERE w.device_uuid = d.uuid AND w.present AND w.healthy))
            ORDER BY r.uuid LIMIT 1) END AS replaced_by
  FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id
  JOIN devices d ON d.uuid = x.device_uuid JOIN nodes n ON n.name = a.node
  CROSS JOIN LATERAL (
       SELECT CASE WHEN n.source = 'agent' AND d.vendor = 'NVIDIA' THEN x.detail ? 'placement'
                   ELSE d.mode = 'mig' END AS part) mig
 WHERE a.ended_at IS NULL AND a.state IN ('bound', 'allocated', 'releasing')
   AND ($1::text IS NULL OR a.pod_uid = $1)
   AND ($1::text IS NOT NULL OR NOT d.present OR NOT d.healthy OR d.cordoned
        OR a.node = ANY($2::text[]) OR (d.mode = 'mig') <> mig.part)
 ORDER BY a.namespace, a.pod_name, x.container_index, x.position
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCard:
    """One container's card with its condition."""

    pod: PodRef
    container: str
    uuid: GpuUuid
    condition: GrantedCardCondition


async def read_pod_cards(
    connection: Connection, *, pod_uid: str | None = None, silent: Collection[NodeName] = ()
) -> list[PodCard]:
    """Return all cards of a pod; without a uid, cards of all pods that may have a problem.

    `silent`: nodes whose agents are silent.
    """
    rows = await connection.fetch(_CARDS, pod_uid, sorted(silent))
    return [
        PodCard(
            pod=PodRef(
                uid=PodUid(row["pod_uid"]), namespace=row["namespace"], name=row["pod_name"]
            ),
            container=row["container_name"],
            uuid=GpuUuid(row["device_uuid"]),
            condition=condition_of(
                GrantedCard(
                    node=NodeName(row["node"]),
                    uuid=GpuUuid(row["device_uuid"]),
                    index=row["index"],
                    present=row["present"],
                    healthy=row["healthy"],
                    health_reason=row["health_reason"],
                    cordoned=row["cordoned"],
                    mode=row["mode"],
                    is_instance=row["part"],
                    replaced_by=row["replaced_by"],
                    node_gone=row["node_gone"],
                    node_silent=row["node"] in silent,
                    heard_at=row["inventory_at"],
                )
            ),
        )
        for row in rows
    ]
