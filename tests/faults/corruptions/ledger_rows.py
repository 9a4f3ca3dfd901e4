"""Rows of the ledger that lie."""

from __future__ import annotations

from tests.faults.corruptions.corruption import (
    Corruption,
    Outcome,
    Room,
    both,
    journalled,
    refused,
    says,
    statement,
)

MAX64 = "9223372036854775807"
NODE, CARD, GRANT = "name = '{node}'", "uuid = '{card}'", "id = '{id}'"
SLICE = "allocation_id = '{id}'"

REFUSED = (
    refused("nodes", f"agent_sequence = {MAX64}", NODE, "ck_nodes_sequence_bounded"),
    refused("nodes", "agent_sequence = -1", NODE, "ck_nodes_sequence_bounded"),
    refused("nodes", "pair_scores = '[]'", NODE, "ck_nodes_pair_scores_object"),
    refused("nodes", "source = 'garbage'", NODE, "ck_nodes_source_known"),
    refused("devices", f"version = {MAX64}", CARD, "ck_devices_version_bounded"),
    refused("devices", "version = version - 1", CARD, "the version of card"),
    refused("devices", "slots = -1", CARD, "ck_devices_amounts_not_negative"),
    refused("devices", "memory_mib = -1", CARD, "ck_devices_amounts_not_negative"),
    refused("devices", "core_percent = -1", CARD, "ck_devices_amounts_not_negative"),
    refused("devices", "used_slots = -1", CARD, "ck_devices_slots_within_ceiling"),
    refused("devices", "used_memory_mib = 2147483647", CARD, "ck_devices_memory_within_ceiling"),
    refused("devices", "used_core_percent = 1000", CARD, "ck_devices_cores_within_ceiling"),
    refused("devices", "slots = 1000", CARD, "ck_devices_ceiling_slots_cover"),
    refused("devices", "node = 'garbage'", CARD, "fk_devices_node_nodes"),
    refused("devices", "info = '[]'", CARD, "ck_devices_info_object"),
    refused("devices", "holdings = '[]'", CARD, "ck_devices_holdings_object"),
    refused("devices", "mig_profiles = '{}'", CARD, "ck_devices_mig_profiles_array"),
    refused("allocations", "state = 'garbage'", GRANT, "ck_allocations_"),
    refused("allocations", "state = 'released'", GRANT, "ck_allocations_ended_when_not_live"),
    refused("allocations", "ended_at = now()", GRANT, "ck_allocations_ended_when_not_live"),
    refused("allocations", "token = -1", GRANT, "ck_allocations_token_bounded"),
    refused("allocations", f"token = {MAX64}", GRANT, "ck_allocations_token_bounded"),
    refused("allocations", "attempt = 0", GRANT, "ck_allocations_attempt_bounded"),
    refused("allocations", "attempt = 2147483647", GRANT, "ck_allocations_attempt_bounded"),
    refused("allocations", "origin = 'garbage'", GRANT, "ck_allocations_origin_known"),
    refused("allocations", "node = 'garbage'", GRANT, "fk_allocations_node_nodes"),
    refused("allocation_devices", "memory_mib = -1", SLICE, "amounts_not_negative"),
    refused("allocation_devices", "core_percent = -1", SLICE, "amounts_not_negative"),
    refused("allocation_devices", "slots = 0", SLICE, "ck_allocation_devices_slots_positive"),
    refused("allocation_devices", "role = 'garbage'", SLICE, "ck_allocation_devices_role_known"),
    refused("allocation_devices", "device_uuid = 'garbage'", SLICE, "fk_allocation_devices_device"),
    refused("allocation_events", "state = 'released'", SLICE, "append-only"),
)

DEVICE_REPORTED = (
    ("slots", "slots = 0", "10"),
    ("memory_mib", "memory_mib = 1", ""),
    ("type", "type = 'garbage'", ""),
    ("vendor", "vendor = 'garbage'", ""),
    ("index", "index = 99", ""),
    ("numa", "numa = 99", ""),
    ("mode", "mode = 'garbage'", ""),
    ("healthy", "healthy = false", ""),
    ("health_reason", "health_reason = 'garbage'", ""),
    ("present", "present = false", ""),
    ("mig_profiles", "mig_profiles = '[1]'", ""),
    ("info", "info = '{\"garbage\": 1}'", ""),
)


def reported(column: str, change: str) -> Corruption:
    """What a node reports of its cards, and writes again."""

    def lie(room: Room) -> None:
        before = room.sql(f"SELECT {column} FROM devices WHERE {CARD}")
        room.sql(f"UPDATE devices SET {change}, version = version + 1 WHERE {CARD}")
        room.kept = before

    return Corruption(
        where=f"`devices.{column}`",
        what=change.partition(" = ")[2],
        outcome=Outcome.REPAIRED,
        answer="the agent's next report that is compared (30 s) is written over it",
        lie=lie,
        right=lambda room: room.sql(f"SELECT {column} FROM devices WHERE {CARD}") == room.kept,
    )


def counted(change: str) -> Corruption:
    """A counter that is not the sum of the grants."""
    column = change.partition(" = ")[0]
    return Corruption(
        where=f"`devices.{column}`",
        what=change.partition(" = ")[2],
        outcome=Outcome.REPAIRED,
        answer="the reconciler counts the live grants (drift `card-counters`)",
        lie=statement(f"UPDATE devices SET {change} WHERE {CARD}"),
        right=both(
            journalled("card-counters"),
            says(
                "SELECT used_slots, used_memory_mib, used_core_percent, holdings,"
                f" ceiling_slots = slots FROM devices WHERE {CARD}",
                "1|1024|5|{}|t",
            ),
        ),
    )


COUNTED = (
    counted("used_slots = 0"),
    counted("used_slots = 10"),
    counted("used_memory_mib = 0"),
    counted("used_memory_mib = memory_mib"),
    counted("used_core_percent = 0"),
    counted("used_core_percent = 100"),
    counted('holdings = \'{"00000000-0000-4000-8000-000000000001": [{"detail": {}}]}\''),
    counted("version = 8796093022207"),
    counted("ceiling_slots = 2000000000"),
)

NODES = (
    Corruption(
        where="`nodes.agent_sequence`",
        what="2^53 - 1",
        outcome=Outcome.REPAIRED,
        answer="three reports are left out and heard, then the agent's number is believed (drift "
        "`inventory-number`)",
        lie=statement(f"UPDATE nodes SET agent_sequence = 9007199254740991 WHERE {NODE}"),
        right=both(
            journalled("inventory-number"),
            says(f"SELECT agent_sequence < 1000000 FROM nodes WHERE {NODE}", "t"),
        ),
    ),
    *(
        Corruption(
            where=f"`nodes.{column}`",
            what=value,
            outcome=Outcome.REPAIRED,
            answer="the agent's next report is written over it",
            lie=statement(f"UPDATE nodes SET {column} = {value} WHERE {NODE}"),
            right=says(f"SELECT {right} FROM nodes WHERE {NODE}", "t"),
        )
        for column, value, right in (
            ("agent_id", "'garbage'", "agent_id <> 'garbage'"),
            ("inventory_at", "now() + interval '10 years'", "inventory_at < now()"),
            ("inventory_at", "'-infinity'", "inventory_at > now() - interval '1 minute'"),
            ("source", "'annotation'", "source = 'agent'"),
            ("gone_at", "now()", "gone_at IS NULL"),
            ("pair_scores", '\'{"a": {"b": "garbage"}}\'', "pair_scores::text NOT LIKE '%garb%'"),
        )
    ),
)

CASES: tuple[Corruption, ...] = (
    *REFUSED,
    *(reported(column, change) for column, change, _ in DEVICE_REPORTED),
    *COUNTED,
    *NODES,
)
