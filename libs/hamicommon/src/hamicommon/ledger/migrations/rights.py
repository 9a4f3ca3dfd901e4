"""Privileges of each database role, all granted here.

The migrations grant them (`migrations/env.py`), each in its own transaction and to the roles that
exist, so a table always has its rights, in an upgrade from any revision. A role that is created
later gets its rights from the next run. `k8s/base/migrations` creates only roles and passwords. A
table of the models without an entry here fails a test.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEDULER, METRICS, READER = "hami_scheduler", "hami_metrics", "hami_reader"
_WRITE = ("INSERT", "UPDATE", "DELETE")

WRITES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "nodes": {SCHEDULER: _WRITE},
    "devices": {SCHEDULER: _WRITE},
    "device_health_events": {SCHEDULER: _WRITE},
    "quotas": {SCHEDULER: _WRITE},
    "node_leases": {SCHEDULER: _WRITE},
    "allocations": {SCHEDULER: _WRITE},
    # By the trigger, with the rights of the role that ends a grant.
    "allocation_periods": {SCHEDULER: _WRITE},
    "allocation_devices": {SCHEDULER: _WRITE},
    "allocation_containers": {SCHEDULER: _WRITE},
    "allocation_claims": {SCHEDULER: _WRITE},
    "preempted": {SCHEDULER: _WRITE},
    "scale_wishes": {SCHEDULER: _WRITE},
    "node_types": {SCHEDULER: _WRITE},
    # History is append-only for every role; `UPDATED_COLUMNS` has what marks it as announced.
    "allocation_events": {SCHEDULER: ("INSERT",)},
    "decisions": {SCHEDULER: _WRITE},
    "decisions_default": {SCHEDULER: _WRITE},
    "decision_snapshots": {SCHEDULER: _WRITE},
    "outbox": {SCHEDULER: _WRITE},
    "drift_journal": {SCHEDULER: _WRITE},
    "limit_checks": {SCHEDULER: _WRITE},
    "limit_periods": {SCHEDULER: _WRITE},
    # By triggers, with the rights of the role that writes cards, nodes and quotas.
    "device_periods": {SCHEDULER: _WRITE},
    "node_gaps": {SCHEDULER: _WRITE},
    "quota_periods": {SCHEDULER: _WRITE},
    # Its trigger refuses what would change or remove a call.
    "operator_calls": {SCHEDULER: _WRITE},
    "admission_refusals": {METRICS: _WRITE},
    "usage_samples": {METRICS: _WRITE},
    "usage_samples_default": {METRICS: _WRITE},
    "usage_rollups": {METRICS: _WRITE},
    "namespace_rollups": {METRICS: _WRITE},
    "capacity_rollups": {METRICS: _WRITE},
    "showback_rollups": {METRICS: _WRITE},
}
"""Roles that write each table, and with which statements; every role reads all tables."""

UPDATED_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "allocation_events": {SCHEDULER: "published_at"},
}
"""Roles that may update only one column of a table."""

SEQUENCES = (SCHEDULER,)
"""Roles that may draw numbers from sequences."""

FUNCTIONS: Mapping[str, str] = {
    "hami_forget_grants(timestamptz, integer)": SCHEDULER,
    "hami_repair_numbers()": SCHEDULER,
}
"""Roles that may call a restricted function."""


def grants() -> str:
    """Return one statement that grants missing privileges; it locks no table."""
    rows = ", ".join(
        f"('{table}', '{role}', '{privilege}')"
        for table, roles in WRITES.items()
        for role, privileges in roles.items()
        for privilege in privileges
    )
    columns = ", ".join(
        f"('{table}', '{role}', '{column}')"
        for table, roles in UPDATED_COLUMNS.items()
        for role, column in roles.items()
    )
    readers = ", ".join(f"'{role}'" for role in (SCHEDULER, METRICS, READER))
    calls = ", ".join(f"('public.{name}', '{role}')" for name, role in FUNCTIONS.items())
    drawing = ", ".join(f"'{role}'" for role in SEQUENCES)
    return f"""
DO $$ DECLARE missing text; BEGIN
    FOR missing IN
        SELECT format('GRANT %s ON TABLE public.%I TO %I', wanted.privilege, c.relname, r.rolname)
          FROM (VALUES {rows}) AS wanted (relation, role, privilege)
          JOIN pg_roles r ON r.rolname = wanted.role
          JOIN pg_class c ON c.relname = wanted.relation
               AND c.relnamespace = 'public'::regnamespace
         WHERE NOT has_table_privilege(r.oid, c.oid, wanted.privilege)
        UNION ALL
        SELECT format('GRANT UPDATE (%I) ON TABLE public.%I TO %I', a.attname, c.relname, r.rolname)
          FROM (VALUES {columns}) AS wanted (relation, role, attribute)
          JOIN pg_roles r ON r.rolname = wanted.role
          JOIN pg_class c ON c.relname = wanted.relation
               AND c.relnamespace = 'public'::regnamespace
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = wanted.attribute
         WHERE NOT has_column_privilege(r.oid, c.oid, a.attnum, 'UPDATE')
        UNION ALL
        SELECT format('GRANT SELECT ON TABLE public.%I TO %I', c.relname, r.rolname)
          FROM pg_class c, pg_roles r
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v')
           AND r.rolname IN ({readers}) AND NOT has_table_privilege(r.oid, c.oid, 'SELECT')
        UNION ALL
        SELECT format('GRANT USAGE, SELECT ON SEQUENCE public.%I TO %I', c.relname, r.rolname)
          FROM pg_class c, pg_roles r
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'S'
           AND r.rolname IN ({drawing}) AND NOT has_sequence_privilege(r.oid, c.oid, 'USAGE')
        UNION ALL
        SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', called.name, r.rolname)
          FROM (VALUES {calls}) AS called (name, role)
          JOIN pg_roles r ON r.rolname = called.role
         WHERE to_regprocedure(called.name) IS NOT NULL
           AND NOT has_function_privilege(r.oid, to_regprocedure(called.name), 'EXECUTE')
        UNION ALL
        SELECT format('GRANT USAGE ON SCHEMA public TO %I', r.rolname)
          FROM pg_roles r
         WHERE r.rolname IN ({readers}) AND NOT has_schema_privilege(r.oid, 'public', 'USAGE')
    LOOP
        EXECUTE missing;
    END LOOP;
END $$
"""
