"""Rows of the ledger with wrong values."""

import json
from datetime import UTC, datetime

from hamicommon.k8s.annotations import NVIDIA_ALLOCATED, NVIDIA_REGISTER

from tests.e2e.system import wait
from tests.faults.corruptions.corruption import (
    Corruption,
    Outcome,
    Room,
    answers,
    both,
    expect_journal_line,
    make_refused_change,
    statement,
)

MAX64 = "9223372036854775807"
NODE, CARD, GRANT = "name = '{node}'", "uuid = '{card}'", "id = '{id}'"
SLICE = "allocation_id = '{id}'"

REFUSED = (
    make_refused_change("nodes", f"agent_sequence = {MAX64}", NODE, "ck_nodes_sequence_bounded"),
    make_refused_change("nodes", "agent_sequence = -1", NODE, "ck_nodes_sequence_bounded"),
    make_refused_change("nodes", "pair_scores = '[]'", NODE, "ck_nodes_pair_scores_object"),
    make_refused_change("nodes", "source = 'garbage'", NODE, "ck_nodes_source_known"),
    make_refused_change("devices", f"version = {MAX64}", CARD, "ck_devices_version_bounded"),
    make_refused_change("devices", "version = version - 1", CARD, "the version of card"),
    make_refused_change("devices", "slots = -1", CARD, "ck_devices_amounts_not_negative"),
    make_refused_change("devices", "memory_mib = -1", CARD, "ck_devices_amounts_not_negative"),
    make_refused_change("devices", "core_percent = -1", CARD, "ck_devices_amounts_not_negative"),
    make_refused_change("devices", "used_slots = -1", CARD, "ck_devices_slots_within_ceiling"),
    make_refused_change(
        "devices", "used_memory_mib = 2147483647", CARD, "ck_devices_memory_within_ceiling"
    ),
    make_refused_change(
        "devices", "used_core_percent = 1000", CARD, "ck_devices_cores_within_ceiling"
    ),
    make_refused_change("devices", "slots = 1000", CARD, "ck_devices_ceiling_slots_cover"),
    make_refused_change("devices", "node = 'garbage'", CARD, "fk_devices_node_nodes"),
    make_refused_change("devices", "info = '[]'", CARD, "ck_devices_info_object"),
    make_refused_change("devices", "holdings = '[]'", CARD, "ck_devices_holdings_object"),
    make_refused_change("devices", "mig_profiles = '{}'", CARD, "ck_devices_mig_profiles_array"),
    make_refused_change("allocations", "state = 'garbage'", GRANT, "ck_allocations_"),
    make_refused_change(
        "allocations", "state = 'released'", GRANT, "ck_allocations_ended_when_not_live"
    ),
    make_refused_change(
        "allocations", "ended_at = now()", GRANT, "ck_allocations_ended_when_not_live"
    ),
    make_refused_change("allocations", "token = -1", GRANT, "ck_allocations_token_bounded"),
    make_refused_change("allocations", f"token = {MAX64}", GRANT, "ck_allocations_token_bounded"),
    make_refused_change("allocations", "attempt = 0", GRANT, "ck_allocations_attempt_bounded"),
    make_refused_change(
        "allocations", "attempt = 2147483647", GRANT, "ck_allocations_attempt_bounded"
    ),
    make_refused_change("allocations", "origin = 'garbage'", GRANT, "ck_allocations_origin_known"),
    make_refused_change(
        "allocations", "annotations = '[]'", GRANT, "ck_allocations_annotations_object"
    ),
    make_refused_change(
        "allocation_devices", "detail = '[]'", SLICE, "ck_allocation_devices_detail_object"
    ),
    make_refused_change("allocations", "node = 'garbage'", GRANT, "fk_allocations_node_nodes"),
    make_refused_change("allocation_devices", "memory_mib = -1", SLICE, "amounts_not_negative"),
    make_refused_change("allocation_devices", "core_percent = -1", SLICE, "amounts_not_negative"),
    make_refused_change(
        "allocation_devices", "slots = 0", SLICE, "ck_allocation_devices_slots_positive"
    ),
    make_refused_change(
        "allocation_devices", "role = 'garbage'", SLICE, "ck_allocation_devices_role_known"
    ),
    make_refused_change(
        "allocation_devices", "device_uuid = 'garbage'", SLICE, "fk_allocation_devices_device"
    ),
    make_refused_change("allocation_events", "state = 'released'", SLICE, "append-only"),
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


def make_reported_column(column: str, change: str) -> Corruption:
    """Return a corruption of a card's column that the node's next report repairs."""

    def lie(room: Room) -> None:
        before = room.sql(f"SELECT {column} FROM devices WHERE {CARD}")
        room.sql(f"UPDATE devices SET {change}, version = version + 1 WHERE {CARD}")
        room.kept = before

    return Corruption(
        where=f"`devices.{column}`",
        what=change.partition(" = ")[2],
        outcome=Outcome.REPAIRED,
        answer="the agent's next comparison (30 s) overwrites it",
        lie=lie,
        right=lambda room: room.sql(f"SELECT {column} FROM devices WHERE {CARD}") == room.kept,
    )


def wrong_sum(change: str) -> Corruption:
    """A counter that is not the sum of the grants."""
    column = change.partition(" = ")[0]
    return Corruption(
        where=f"`devices.{column}`",
        what=change.partition(" = ")[2],
        outcome=Outcome.REPAIRED,
        answer="the reconciler counts the live grants (drift `card-counters`)",
        lie=statement(f"UPDATE devices SET {change} WHERE {CARD}"),
        right=both(
            expect_journal_line("card-counters"),
            answers(
                "SELECT used_slots, used_memory_mib, used_core_percent, holdings,"
                f" ceiling_slots = slots FROM devices WHERE {CARD}",
                "1|1024|5|{}|t",
            ),
        ),
    )


COUNTED = (
    wrong_sum("used_slots = 0"),
    wrong_sum("used_slots = 10"),
    wrong_sum("used_memory_mib = 0"),
    wrong_sum("used_memory_mib = memory_mib"),
    wrong_sum("used_core_percent = 0"),
    wrong_sum("used_core_percent = 100"),
    wrong_sum('holdings = \'{"00000000-0000-4000-8000-000000000001": [{"detail": {}}]}\''),
    wrong_sum("version = 8796093022207"),
    wrong_sum("ceiling_slots = 2000000000"),
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
            expect_journal_line("inventory-number"),
            answers(f"SELECT agent_sequence < 1000000 FROM nodes WHERE {NODE}", "t"),
        ),
    ),
    *(
        Corruption(
            where=f"`nodes.{column}`",
            what=value,
            outcome=Outcome.REPAIRED,
            answer="the agent's next report overwrites it",
            lie=statement(f"UPDATE nodes SET {column} = {value} WHERE {NODE}"),
            right=answers(f"SELECT {right} FROM nodes WHERE {NODE}", "t"),
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

ROW = """
SELECT a.state, a.node, a.pod_uid, a.namespace, a.pod_name, x.device_uuid, x.memory_mib,
       x.core_percent, x.vendor, x.container_name, c.name
  FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id
  JOIN allocation_containers c ON c.allocation_id = a.id WHERE a.id = '{id}' AND a.ended_at IS NULL
"""


def make_granted_row(where: str, what: str, change: str, kind: str) -> Corruption:
    """A row of a running pod's grant that is another than it was."""
    witness = "history" if kind.endswith("history") else "signed grant"

    def lie(room: Room) -> None:
        room.kept = room.sql(ROW)
        room.sql(change)

    return Corruption(
        where=f"`{where}`",
        what=what,
        outcome=Outcome.REPAIRED,
        answer=f"the reconciler writes it again from its {witness} (drift `{kind}`)",
        lie=lie,
        right=both(expect_journal_line(kind), lambda room: room.sql(ROW) == room.kept),
    )


ANNOTATION = f"SELECT annotations ->> '{NVIDIA_ALLOCATED}' FROM allocations WHERE {GRANT}"
PLUGINS_NODE = "SELECT source FROM nodes WHERE name = 'plugin'"
HISTORY, SIGNED = "row-contradicts-history", "row-contradicts-grant"
GRANTS = (
    make_granted_row(
        "allocations.state",
        "`releasing`",
        f"UPDATE allocations SET state = 'releasing' WHERE {GRANT}",
        HISTORY,
    ),
    make_granted_row(
        "allocations.state",
        "`reserved`, its deadline over",
        f"UPDATE allocations SET state = 'reserved', deadline = now() WHERE {GRANT}",
        HISTORY,
    ),
    make_granted_row(
        "allocations.state",
        "`bound`, a step back",
        f"UPDATE allocations SET state = 'bound' WHERE {GRANT}",
        HISTORY,
    ),
    make_granted_row(
        "allocations.state, ended_at",
        "`released`, now",
        f"UPDATE allocations SET state = 'released', ended_at = now() WHERE {GRANT}",
        HISTORY,
    ),
    make_granted_row(
        "allocations.pod_uid",
        "no pod's",
        f"UPDATE allocations SET pod_uid = 'garbage' WHERE {GRANT}",
        HISTORY,
    ),
    make_granted_row(
        "allocations.node",
        "another node",
        f"UPDATE allocations SET node = '{{other}}' WHERE {GRANT}",
        SIGNED,
    ),
    make_granted_row(
        "allocations.namespace",
        "garbage",
        f"UPDATE allocations SET namespace = 'garbage' WHERE {GRANT}",
        SIGNED,
    ),
    make_granted_row(
        "allocation_devices",
        "no row of the grant",
        f"DELETE FROM allocation_devices WHERE {SLICE}",
        SIGNED,
    ),
    make_granted_row(
        "allocation_containers",
        "no row of the grant",
        f"DELETE FROM allocation_containers WHERE {SLICE}",
        SIGNED,
    ),
    make_granted_row(
        "allocation_devices.memory_mib",
        "1",
        f"UPDATE allocation_devices SET memory_mib = 1 WHERE {SLICE}",
        SIGNED,
    ),
    make_granted_row(
        "allocation_devices.core_percent",
        "90",
        f"UPDATE allocation_devices SET core_percent = 90 WHERE {SLICE}",
        SIGNED,
    ),
    make_granted_row(
        "allocation_devices.device_uuid",
        "another card of the node",
        "UPDATE allocation_devices SET device_uuid = (SELECT min(uuid) FROM devices"
        f" WHERE node = '{{node}}' AND uuid <> '{{card}}') WHERE {SLICE}",
        SIGNED,
    ),
    make_granted_row(
        "allocation_devices.container_name",
        "garbage",
        f"UPDATE allocation_devices SET container_name = 'garbage' WHERE {SLICE}",
        SIGNED,
    ),
    make_granted_row(
        "allocation_devices.vendor",
        "garbage",
        f"UPDATE allocation_devices SET vendor = 'garbage' WHERE {SLICE}",
        SIGNED,
    ),
)


def garbage_annotation(room: Room) -> None:
    """In the row, from where the pod has it."""
    room.kept = room.sql(ANNOTATION)
    room.sql(
        "UPDATE allocations SET annotations = annotations ||"
        f' \'{{"{NVIDIA_ALLOCATED}": "garbage"}}\' WHERE {GRANT}'
    )


def annotated_as_before(room: Room) -> bool:
    """The row and the pod."""
    pod = room.system.get(f"/api/v1/namespaces/default/pods/{room.name}")
    on_pod = pod["metadata"]["annotations"][NVIDIA_ALLOCATED]
    return room.sql(ANNOTATION) == room.kept == on_pod


def plugins_node(room: Room) -> None:
    """Make a node with only HAMi's device plugin, and mark it as reported by an agent."""
    card = {"id": "GPU-plugin", "count": 10, "devmem": 40960, "devcore": 100, "type": "A100"}
    register = json.dumps([{**card, "health": True, "mode": "hami-core", "index": 0, "numa": 0}])
    amounts = {"nvidia.com/gpu": "10"}
    metadata = {"name": "plugin", "annotations": {NVIDIA_REGISTER: register}}
    # Nothing may be placed there: no kubelet runs it.
    body = {
        "metadata": metadata,
        "spec": {"unschedulable": True},
        "status": {"allocatable": amounts, "capacity": amounts},
    }
    room.undone.append(lambda: room.system.api.delete("/api/v1/nodes/plugin"))
    answer = room.system.api.post("/api/v1/nodes", json=body)
    assert answer.status_code == 201, answer.text
    wait(lambda: room.sql(PLUGINS_NODE), "the node to be known")
    room.sql("UPDATE nodes SET source = 'agent' WHERE name = 'plugin'")
    room.annotate("/api/v1/nodes/plugin", {"again": "yes"})


KEPT = (
    Corruption(
        where="`allocations.annotations`",
        what="garbage for the pod's slices",
        outcome=Outcome.REPAIRED,
        answer="the reconciler compares them with what the vendor writes for the row's slices "
        "(drift `row-contradicts-grant`)",
        lie=garbage_annotation,
        right=both(expect_journal_line(SIGNED), annotated_as_before),
    ),
    Corruption(
        where="`nodes.source`",
        what="`agent`, where HAMi's plugin is alone",
        outcome=Outcome.REPAIRED,
        answer="no agent has the Node's uid for its id: the node's next change is written over it",
        lie=plugins_node,
        right=lambda room: room.sql(PLUGINS_NODE) == "annotation",
    ),
)


def idle(column: str, value: str, rule: str) -> Corruption:
    """A column of the grant that nothing follows from."""
    return Corruption(
        where=f"`allocations.{column}`",
        what=value,
        outcome=Outcome.WITHOUT_EFFECT,
        answer=rule,
        lie=statement(f"UPDATE allocations SET {column} = {value} WHERE {GRANT}"),
    )


WITHOUT_EFFECT = (
    idle("deadline", "'infinity'", "a grant that is allocated has no deadline to look at"),
    idle("deadline", "'-infinity'", "a grant that is allocated has no deadline to look at"),
    idle("bound_at", "NULL", "kept for people; no step goes by it once the pod has its cards"),
    idle("lock_deadline", "'infinity'", "kept for people; the lock ends in its own store"),
    idle("reason", "'garbage'", "kept for people"),
    idle("traceparent", "'garbage'", "a link that can't be read is left out of the trace"),
    idle("score", "-1e300", "kept for people"),
    idle("policy", "'{\"garbage\": 1}'", "kept for people"),
    idle("labels", "'{\"garbage\": 1}'", "kept for people"),
    idle("owner_name", "'garbage'", "kept for people"),
)


def make_repaired_row(where: str, what: str, answer: str, change: str, right: str) -> Corruption:
    """Return a corruption that others than the reconciler repair; `right` answers t."""
    return Corruption(
        where=f"`{where}`",
        what=what,
        outcome=Outcome.REPAIRED,
        answer=answer,
        lie=statement(change),
        right=answers(right, "t"),
    )


OTHERS = (
    make_repaired_row(
        "allocation_tokens",
        "at its end",
        "the reconciler lets it go on beyond the rows (drift `number-sequence`)",
        f"SELECT setval('allocation_tokens', {MAX64})",
        "SELECT last_value < 1000000000 FROM allocation_tokens",
    ),
    make_repaired_row(
        "allocation_events_id_seq",
        "1",
        "the reconciler lets it go on beyond the rows (drift `number-sequence`)",
        "SELECT setval('allocation_events_id_seq', 1)",
        "SELECT last_value > (SELECT max(id) FROM allocation_events) - 1"
        " FROM allocation_events_id_seq",
    ),
    make_repaired_row(
        "quotas",
        "a limit that nobody set",
        "the limits of the ResourceQuotas are written again",
        "INSERT INTO quotas (namespace, resource, limit_amount)"
        " VALUES ('default', 'nvidia.com/gpumem', 1)"
        " ON CONFLICT (namespace, resource) DO UPDATE SET limit_amount = 1",
        "SELECT count(*) = 0 FROM quotas WHERE limit_amount IS NOT NULL",
    ),
    make_repaired_row(
        "devices",
        "no row of a card that is free",
        "the agent's next comparison (30 s) enters it again",
        "DELETE FROM devices d WHERE node = '{node}' AND used_slots = 0 AND uuid ="
        " (SELECT max(uuid) FROM devices e WHERE e.node = '{node}' AND used_slots = 0"
        " AND NOT EXISTS (SELECT FROM allocation_devices x WHERE x.device_uuid = e.uuid)"
        " AND NOT EXISTS (SELECT FROM device_health_events h WHERE h.device_uuid = e.uuid))",
        "SELECT count(*) = 4 FROM devices WHERE node = '{node}' AND present",
    ),
    make_repaired_row(
        "devices.node",
        "another node",
        "the other node does not report it, its own takes it again",
        f"UPDATE devices SET node = '{{other}}', version = version + 1 WHERE {CARD}",
        f"SELECT node = '{{node}}' FROM devices WHERE {CARD}",
    ),
)

PARTITIONS = tuple(
    Corruption(
        where=f"`{table}`",
        what="the partition of today is gone",
        outcome=Outcome.WITHOUT_EFFECT,
        answer="rows of today go to the default partition, and into the day's own once it is "
        "made again (10 min)",
        lie=lambda room, table=table: room.sql(f"DROP TABLE {table}_{datetime.now(UTC):%Y%m%d}"),
    )
    for table in ("decisions", "usage_samples")
)

CASES: tuple[Corruption, ...] = (
    *PARTITIONS,
    *GRANTS,
    *KEPT,
    *OTHERS,
    *WITHOUT_EFFECT,
    *REFUSED,
    *(make_reported_column(column, change) for column, change, _ in DEVICE_REPORTED),
    *COUNTED,
    *NODES,
)
