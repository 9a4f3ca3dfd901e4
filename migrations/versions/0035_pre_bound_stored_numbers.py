"""Refuse numbers that no service writes: counters without bound, amounts below 0.

A counter at the end of its type can't be increased, and a sum of such counters exceeds its type.
Existing values of this kind are corrected first; cards, nodes and events repeat, so the next report
brings the right ones. Each constraint is added without checking the rows, which locks a table for a
moment, and validated concurrently with writes.

`hami_repair_numbers` repairs sequences: one at its end, or behind the rows that it numbered,
prevents every insert.
"""

from __future__ import annotations

from collections.abc import Mapping

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

# 2^53 - 1: JSON numbers hold it exactly, and a signed 64-bit sum holds 1,024 of them.
MAX_COUNTER = 9007199254740991
# A card's version begins at the milliseconds of its time: this is the year 2248.
MAX_VERSION = 8796093022207

CHECKS: Mapping[str, Mapping[str, str]] = {
    "nodes": {
        "sequence_bounded": f"agent_sequence BETWEEN 0 AND {MAX_COUNTER}",
        "pair_scores_object": "jsonb_typeof(pair_scores) = 'object'",
    },
    "devices": {
        "version_bounded": f"version BETWEEN 1 AND {MAX_VERSION}",
        "amounts_not_negative": "least(slots, memory_mib, core_percent) >= 0",
        "info_object": "jsonb_typeof(info) = 'object'",
        "holdings_object": "jsonb_typeof(holdings) = 'object'",
        "mig_profiles_array": "jsonb_typeof(mig_profiles) = 'array'",
    },
    "quotas": {"limit_not_negative": "limit_amount >= 0"},
    "allocations": {
        "token_bounded": f"token BETWEEN 1 AND {MAX_COUNTER}",
        "attempt_bounded": "attempt BETWEEN 1 AND 1073741823",
        "annotations_object": "jsonb_typeof(annotations) = 'object'",
    },
    "allocation_devices": {
        "amounts_not_negative": "least(memory_mib, core_percent) >= 0",
        "detail_object": "jsonb_typeof(detail) = 'object'",
    },
    "allocation_claims": {"amounts_not_negative": "least(slots, memory_mib, core_percent) >= 0"},
    "limit_checks": {"sequence_bounded": f"sequence BETWEEN 0 AND {MAX_COUNTER}"},
    "limit_periods": {"amounts_not_negative": "least(held_mib, peak_mib, granted_mib) >= 0"},
    "usage_samples": {
        "amounts_not_negative": "least(memory_used_bytes, memory_limit_bytes, core_limit_percent,"
        " core_percent) >= 0"
    },
    "usage_rollups": {
        "amounts_not_negative": "least(memory_used_sum_bytes, memory_used_max_bytes,"
        " memory_limit_max_bytes, core_percent_sum, core_percent_max) >= 0"
    },
}
"""Constraints by table and name; NULL, which is unknown, passes each of them."""

REPAIRS = (
    f"UPDATE nodes SET agent_sequence = 0 WHERE agent_sequence NOT BETWEEN 0 AND {MAX_COUNTER}",
    "UPDATE nodes SET pair_scores = '{}' WHERE jsonb_typeof(pair_scores) <> 'object'",
    "UPDATE devices SET version = (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    f" WHERE version NOT BETWEEN 1 AND {MAX_VERSION}",
    "UPDATE devices SET slots = greatest(slots, 0), memory_mib = greatest(memory_mib, 0),"
    " core_percent = greatest(core_percent, 0) WHERE least(slots, memory_mib, core_percent) < 0",
    "UPDATE devices SET info = '{}' WHERE jsonb_typeof(info) <> 'object'",
    "UPDATE devices SET mig_profiles = '[]' WHERE jsonb_typeof(mig_profiles) <> 'array'",
    "UPDATE quotas SET limit_amount = 0 WHERE limit_amount < 0",
    f"UPDATE limit_checks SET sequence = 0 WHERE sequence NOT BETWEEN 0 AND {MAX_COUNTER}",
)
# Months of usage are read beside the writers, in no transaction with the rest.
ABSURD_USAGE = tuple(
    f"DELETE FROM {table} WHERE NOT ({CHECKS[table]['amounts_not_negative']})"
    for table in ("usage_samples", "usage_rollups")
)

DRAWN = """
('allocation_tokens', 'allocations', 'token', 'ended_at IS NULL'),
('allocation_events_id_seq', 'allocation_events', 'id', 'true'),
('device_health_events_id_seq', 'device_health_events', 'id', 'true'),
('outbox_id_seq', 'outbox', 'id', 'true'),
('drift_journal_id_seq', 'drift_journal', 'id', 'true'),
('operator_calls_id_seq', 'operator_calls', 'id', 'true'),
('limit_periods_id_seq', 'limit_periods', 'id', 'true'),
('device_periods_id_seq', 'device_periods', 'id', 'true'),
('quota_periods_id_seq', 'quota_periods', 'id', 'true')
"""
# A million beyond the newest row, so that drawn numbers that no row has are not drawn again.
REPAIR_NUMBERS = f"""
CREATE FUNCTION hami_repair_numbers(OUT name text, OUT was bigint, OUT is_now bigint)
RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    held text; col text; which text; newest bigint;
BEGIN
    FOR name, held, col, which IN SELECT * FROM (VALUES {DRAWN}) AS drawn LOOP
        CONTINUE WHEN to_regclass(format('public.%I', name)) IS NULL;
        EXECUTE format('SELECT last_value FROM public.%I', name) INTO was;
        EXECUTE format('SELECT coalesce(max(%I), 0) FROM public.%I WHERE %s', col, held, which)
            INTO newest;
        CONTINUE WHEN was >= newest AND was <= {MAX_COUNTER // 2};
        is_now := newest + 1000000;
        PERFORM setval(format('public.%I', name)::regclass, is_now);
        RETURN NEXT;
    END LOOP;
END $$
"""

# Views accept no lower version than their own, so none may be written; a version that is a year
# ahead of its time is corrected by `adapters/postgres/row_repairs.py`.
OLDER = """
CREATE FUNCTION hami_refuse_older() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the version of card % falls from % to %', OLD.uuid, OLD.version, NEW.version
          USING ERRCODE = 'check_violation', TABLE = 'devices',
                CONSTRAINT = 'ck_devices_version_grows';
END $$
"""
GROWS = """
CREATE TRIGGER version_grows BEFORE UPDATE OF version ON devices FOR EACH ROW
WHEN (NEW.version < OLD.version
      AND OLD.version < (extract(epoch FROM clock_timestamp()) * 1000)::bigint + 31536000000)
EXECUTE FUNCTION hami_refuse_older()
"""


def upgrade() -> None:
    """Correct wrong numbers, and add the constraints."""
    for statement in REPAIRS:
        op.execute(statement)
    for table, checks in CHECKS.items():
        added = ", ".join(
            f"ADD CONSTRAINT ck_{table}_{name} CHECK ({rule}) NOT VALID"
            for name, rule in checks.items()
        )
        op.execute(f"ALTER TABLE {table} {added}")
    op.execute(REPAIR_NUMBERS)
    op.execute(OLDER)
    op.execute(GROWS)
    op.execute("REVOKE ALL ON FUNCTION hami_repair_numbers() FROM PUBLIC")
    with op.get_context().autocommit_block():
        for statement in ABSURD_USAGE:
            op.execute(statement)
        for table, checks in CHECKS.items():
            for name in checks:
                op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT ck_{table}_{name}")


def downgrade() -> None:
    """Drop the constraints; corrected numbers stay."""
    op.execute("DROP TRIGGER version_grows ON devices")
    op.execute("DROP FUNCTION hami_refuse_older()")
    op.execute("DROP FUNCTION hami_repair_numbers()")
    for table, checks in CHECKS.items():
        dropped = ", ".join(f"DROP CONSTRAINT ck_{table}_{name}" for name in checks)
        op.execute(f"ALTER TABLE {table} {dropped}")
