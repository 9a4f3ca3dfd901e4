"""Record which nodes are cordoned, also in the history of their cards.

A card of a cordoned node is cordoned in `device_periods`, so everything that counts free cards
leaves it out. The version before works on beside it: it never writes the new column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

_WHAT = (
    "node, vendor, type, slots, memory_mib, core_percent, healthy, health_reason, cordoned, present"
)
_NEW = ", ".join(f"NEW.{name}" for name in _WHAT.split(", "))
_OLD, _LAST = _NEW.replace("NEW.", "OLD."), _NEW.replace("NEW.", "last.")

# As in 0022, where nothing was between; a node's change touches its cards, whose own columns stay.
KEEP_CARD = f"""
CREATE OR REPLACE FUNCTION hami_keep_card() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    last device_periods;
    moment timestamptz := now();
BEGIN
    SELECT * INTO last FROM device_periods WHERE ended_at IS NULL
       AND device_uuid = CASE WHEN TG_OP = 'DELETE' THEN OLD.uuid ELSE NEW.uuid END;
    moment := greatest(moment, last.began_at);
{{of_node}}    IF TG_OP <> 'DELETE' AND last.began_at = moment THEN
        UPDATE device_periods SET ({_WHAT}) = ROW({_NEW}) WHERE id = last.id;
        RETURN NULL;
    END IF;
    UPDATE device_periods SET ended_at = moment WHERE id = last.id;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO device_periods (device_uuid, {_WHAT}, began_at)
        VALUES (NEW.uuid, {_NEW}, moment);
    END IF;
    RETURN NULL;
END $$
"""
OF_NODE = f"""    IF TG_OP <> 'DELETE' THEN
        NEW.cordoned := NEW.cordoned OR coalesce(
            (SELECT n.unschedulable FROM nodes n WHERE n.name = NEW.node), false);
        IF ({_NEW}) IS NOT DISTINCT FROM ({_LAST}) THEN
            RETURN NULL;
        END IF;
    END IF;
"""
CHANGED = (
    "CREATE OR REPLACE TRIGGER card_changed AFTER UPDATE OF {what} ON devices"
    " FOR EACH ROW {when} EXECUTE FUNCTION hami_keep_card()"
)
# `updated_at` is also how the pages learn of it.
KEEP_NODE = (
    """
CREATE FUNCTION hami_keep_cordon() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE devices SET cordoned = cordoned, updated_at = now() WHERE node = NEW.name AND present;
    RETURN NULL;
END $$
""",
    "CREATE TRIGGER node_cordoned AFTER UPDATE OF unschedulable ON nodes FOR EACH ROW"
    " WHEN (NEW.unschedulable <> OLD.unschedulable) EXECUTE FUNCTION hami_keep_cordon()",
)


def upgrade() -> None:
    """Add the column and the trigger of its history."""
    op.add_column(
        "nodes",
        sa.Column("unschedulable", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    op.execute(KEEP_CARD.format(of_node=OF_NODE))
    op.execute(CHANGED.format(what=_WHAT, when=""))
    for statement in KEEP_NODE:
        op.execute(statement)


def downgrade() -> None:
    """Drop them; cards of cordoned nodes count as open again."""
    op.execute("UPDATE nodes SET unschedulable = false WHERE unschedulable")
    op.execute("DROP TRIGGER node_cordoned ON nodes")
    op.execute("DROP FUNCTION hami_keep_cordon()")
    op.execute(KEEP_CARD.format(of_node=""))
    op.execute(CHANGED.format(what=_WHAT, when=f"WHEN (({_NEW}) IS DISTINCT FROM ({_OLD}))"))
    op.drop_column("nodes", "unschedulable")
