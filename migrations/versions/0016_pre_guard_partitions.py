"""Let functions of the tables' owner manage partitions, so that no service owns a table.

A service owned its partitioned table and had CREATE on the schema, where a function of its making
could have been taken for PostgreSQL's own by the owner's next migration (CVE-2018-1058). Now it
needs neither: who may delete a table's rows may make and drop its days. The version before works on
beside this: days are made by the same function, and those that it made it still owns.

Locks both partitioned tables for a moment where a service owned them.
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# `session_user`: in such a function `current_user` is the owner. Nothing is looked up in a schema
# that others may write to.
KEEPER = """
CREATE FUNCTION hami_day_of(parent text, day date) RETURNS text LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass(format('public.%I', parent))
                   AND relkind = 'p') THEN
        RAISE EXCEPTION '% is no table of days', parent USING ERRCODE = 'undefined_table';
    END IF;
    IF NOT has_table_privilege(session_user, format('public.%I', parent), 'DELETE') THEN
        RAISE EXCEPTION 'permission denied for the days of %', parent
              USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN parent || '_' || to_char(day, 'YYYYMMDD');
END $$
"""
ENSURE = """
CREATE OR REPLACE FUNCTION hami_ensure_partition(parent text, day date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    child text := public.hami_day_of(parent, day);
    from_at timestamptz := day::timestamp AT TIME ZONE 'UTC';
BEGIN
    IF to_regclass(format('public.%I', child)) IS NULL THEN
        EXECUTE format('CREATE TABLE public.%I PARTITION OF public.%I FOR VALUES FROM (%L) TO (%L)',
                       child, parent, from_at, from_at + interval '1 day');
    END IF;
END $$
"""
DROP = """
CREATE FUNCTION hami_drop_partition(parent text, day date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    child text := public.hami_day_of(parent, day);
BEGIN
    EXECUTE format('DROP TABLE IF EXISTS public.%I', child);
END $$
"""
ENSURE_BEFORE = """
CREATE OR REPLACE FUNCTION hami_ensure_partition(parent text, day date) RETURNS void
LANGUAGE plpgsql SECURITY INVOKER AS $$
DECLARE
    child text := parent || '_' || to_char(day, 'YYYYMMDD');
    from_at timestamptz := day::timestamp AT TIME ZONE 'UTC';
BEGIN
    IF to_regclass(child) IS NULL THEN
        EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
                       child, parent, from_at, from_at + interval '1 day');
    END IF;
END $$
"""
# Partitions that a service made stay its own until they are dropped: an old replica may have to.
OWNED_AGAIN = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT relname FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relowner <> current_user::regrole
          AND relname IN ('decisions', 'decisions_default', 'usage_samples',
                          'usage_samples_default') LOOP
        EXECUTE format('ALTER TABLE public.%I OWNER TO CURRENT_USER', name);
    END LOOP;
END $$
"""
# PUBLIC: what a server that was made before PostgreSQL 15 still has.
NO_CREATE = """
DO $$ DECLARE name text; BEGIN
    IF NOT (SELECT pg_has_role(current_user, nspowner, 'USAGE') FROM pg_namespace
             WHERE nspname = 'public') THEN
        RETURN;
    END IF;
    REVOKE CREATE ON SCHEMA public FROM PUBLIC;
    FOR name IN SELECT rolname FROM pg_roles
                 WHERE rolname IN ('hami_scheduler', 'hami_metrics') LOOP
        EXECUTE format('REVOKE CREATE ON SCHEMA public FROM %I', name);
    END LOOP;
END $$
"""


def upgrade() -> None:
    """Create the functions, and take ownership back."""
    for statement in (KEEPER, ENSURE, DROP, OWNED_AGAIN, NO_CREATE):
        op.execute(statement)


def downgrade() -> None:
    """Restore the earlier functions, which need CREATE and the services' ownership."""
    for statement in (
        "DROP FUNCTION hami_drop_partition(text, date)",
        ENSURE_BEFORE,
        "ALTER FUNCTION hami_ensure_partition(text, date) RESET ALL",
        "DROP FUNCTION hami_day_of(text, date)",
    ):
        op.execute(statement)
