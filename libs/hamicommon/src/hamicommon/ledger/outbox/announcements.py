"""SQL of the rows that the relay announces: what waits, and how a row is marked or parked.

`allocation_events` is its own outbox. `outbox` has the health changes of cards, and what a version
before migration 0034 wrote.
"""

from __future__ import annotations

from dataclasses import dataclass

BATCH = 128


@dataclass(frozen=True, slots=True)
class Source:
    """A table with facts to announce; each statement takes row ids as $1."""

    table: str
    take: str
    """Rows to announce (id, subject, data, traceparent, created_at), but for those of $1."""
    mark_published: str
    park: str


# Without counters of cards: the one scheduler that is active has them from its own commits.
EVENTS = Source(
    table="allocation_events",
    take=f"""
SELECT e.id, 'hami.events.v1.allocation.' || e.state AS subject,
       jsonb_build_object(
           'version', 1, 'event_id', e.id, 'allocation_id', a.id::text, 'pod_uid', a.pod_uid,
           'namespace', a.namespace, 'pod_name', a.pod_name, 'node', a.node, 'state', e.state,
           'sequence', e.sequence, 'reason', e.reason, 'at', e.at,
           'counters', '[]'::jsonb)::text AS data,
       a.traceparent, e.at AS created_at
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 WHERE e.published_at IS NULL AND e.id <> ALL($1::bigint[])
 ORDER BY e.id LIMIT {BATCH}
""",
    mark_published="UPDATE allocation_events SET published_at = now() WHERE id = ANY($1::bigint[])",
    park="UPDATE allocation_events SET published_at = 'infinity' WHERE id = ANY($1::bigint[])",
)
OUTBOX = Source(
    table="outbox",
    # The payload travels as PostgreSQL writes it: nothing here has to read it.
    take=f"""
SELECT id, subject, payload::text AS data, traceparent, created_at FROM outbox
 WHERE published_at IS NULL AND id <> ALL($1::bigint[])
 ORDER BY id LIMIT {BATCH}
""",
    mark_published="DELETE FROM outbox WHERE id = ANY($1::bigint[])",
    park="UPDATE outbox SET published_at = 'infinity' WHERE id = ANY($1::bigint[])",
)
SOURCES = (EVENTS, OUTBOX)
