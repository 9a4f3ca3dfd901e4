"""A ledger with wrong values is compared and repaired, and backends that are away come back."""

import json

import nats
import pytest
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.k8s import annotations
from hamicommon.k8s.types import Json
from hamicommon.ledger.invariants import broken
from pydantic import SecretStr

from tests.integration.scheduler.world import Replica, World
from tests.waiting import eventually


async def lines(world: World, kind: str) -> list[str]:
    """The journal's lines of this class."""
    rows = await world.database.fetch(
        'SELECT subject, detail, repaired FROM drift_journal WHERE "class" = $1 ORDER BY id', kind
    )
    return [f"{row['subject']}: {row['detail']} ({row['repaired']})" for row in rows]


async def sound(world: World) -> None:
    """Waits until every promise holds."""

    async def nothing_broken() -> bool:
        async with world.database.connection() as connection:
            return await broken(connection) == []

    await eventually(nothing_broken, "the ledger's promises to hold")


async def bind_pod(world: World, replica: Replica, name: str) -> Json:
    """A pod of 1024 MiB, bound to n1."""
    pod = await world.pod(name)
    assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
    assert await replica.bind(pod, "n1") == ""
    await world.until(pod, "bound", "allocated")
    return pod


@pytest.mark.parametrize(
    "change",
    [
        "used_slots = 3, used_memory_mib = 4096, used_core_percent = 30",
        "used_slots = 0, used_memory_mib = 0",
        'holdings = \'{"00000000-0000-4000-8000-000000000001": [{"detail": {}}]}\'',
        "version = 8796093022207",
        "ceiling_slots = 2000000000",
    ],
)
async def test_a_card_that_counts_wrong_is_counted_again(world: World, change: str) -> None:
    replica = await world.replica()
    world.late.add("n1")
    [card] = await world.add_node("n1")
    await bind_pod(world, replica, "first")

    await world.database.fetch(f"UPDATE devices SET {change}")

    async def is_repaired() -> bool:
        row = await world.database.fetchrow(
            "SELECT holdings = '{}' AND version BETWEEN 2 AND 4000000000000"
            " AND ceiling_slots = slots FROM devices"
        )
        return row[0] and await world.used_amounts(card) == (1, 1024, 0)

    await eventually(is_repaired, "the card to be counted again")
    [line] = await eventually(lambda: lines(world, "card-counters"), "a line about it")
    assert line.startswith(f"n1/{card}: it counted ")
    await sound(world)
    await bind_pod(world, replica, "second")
    assert await world.used_amounts(card) == (2, 2048, 0)


async def test_a_version_falls_for_nobody(world: World) -> None:
    await world.replica()
    await world.add_node("n1")

    with pytest.raises(InvalidRequest, match="a card's version only grows"):
        await world.database.fetch("UPDATE devices SET version = version - 1")


async def test_a_number_that_can_not_be_drawn_is_waited_for(world: World) -> None:
    """The sequence stays spent here: no replica runs that would repair it."""
    await world.database.fetch("SELECT setval('allocation_tokens', 9223372036854775807)")

    with pytest.raises(Unavailable, match="is exhausted"):
        await world.database.fetch("SELECT nextval('allocation_tokens')")


async def test_numbers_that_ran_out_go_on(world: World) -> None:
    replica, _ = await world.replica_with_card()
    await world.database.fetch("SELECT setval('allocation_tokens', 9223372036854775807)")
    await world.database.fetch("SELECT setval('allocation_events_id_seq', 1)")

    async def is_repaired() -> bool:
        found = await lines(world, "number-sequence")
        return any(line.startswith("allocation_tokens: it was at 9223") for line in found)

    await eventually(is_repaired, "the tokens to go on")
    await bind_pod(world, replica, "slice")


async def other_node(world: World) -> str:
    """A node with HAMi's device plugin and one card."""
    card = {"id": "GPU-other", "count": 10, "devmem": 40960, "devcore": 100, "type": "A100"}
    register = json.dumps([{**card, "health": True, "mode": "hami-core", "index": 0, "numa": 0}])
    amounts = {"nvidia.com/gpu": "10"}
    await world.api.create(
        "/api/v1/nodes",
        {
            "metadata": {"name": "other", "annotations": {annotations.NVIDIA_REGISTER: register}},
            "status": {"allocatable": amounts, "capacity": amounts},
        },
    )

    async def is_known() -> bool:
        return bool(await world.database.fetch("SELECT 1 FROM devices WHERE node = 'other'"))

    await eventually(is_known, "the card")
    return "other"


async def running(world: World, replica: Replica) -> Json:
    """A pod of 1024 MiB whose container runs on n1."""
    world.late.add("n1")
    await world.add_node("n1", cards=2)
    await world.add_node("n2")
    pod = await bind_pod(world, replica, "slice")
    status = {"name": "main", "containerID": "c", "state": {"running": {}}}
    await world.set_status(pod, phase="Running", containerStatuses=[status])
    await world.until(pod, "allocated")
    return pod


ROW = """
SELECT a.state, a.node, a.pod_uid, a.namespace, a.ended_at, x.device_uuid, x.memory_mib,
       x.core_percent, x.container_name, c.name
  FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id
  JOIN allocation_containers c ON c.allocation_id = a.id
"""


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("UPDATE allocations SET state = 'releasing'", "row-contradicts-history"),
        ("UPDATE allocations SET state = 'reserved', deadline = now()", "row-contradicts-history"),
        ("UPDATE allocations SET state = 'bound'", "row-contradicts-history"),
        ("UPDATE allocations SET pod_uid = 'garbage'", "row-contradicts-history"),
        (
            "UPDATE allocations SET state = 'released', ended_at = now()",
            "row-contradicts-history",
        ),
        ("UPDATE allocations SET node = 'n2'", "row-contradicts-grant"),
        ("UPDATE allocations SET namespace = 'garbage'", "row-contradicts-grant"),
        ("DELETE FROM allocation_devices", "row-contradicts-grant"),
        ("DELETE FROM allocation_containers", "row-contradicts-grant"),
        ("UPDATE allocation_devices SET memory_mib = 1", "row-contradicts-grant"),
        ("UPDATE allocation_devices SET core_percent = 90", "row-contradicts-grant"),
        ("UPDATE allocation_devices SET device_uuid = {other_card}", "row-contradicts-grant"),
        ("UPDATE allocation_devices SET container_name = 'garbage'", "row-contradicts-grant"),
    ],
)
async def test_the_row_of_a_running_pod_is_put_right(world: World, change: str, kind: str) -> None:
    replica = await world.replica()
    pod = await running(world, replica)
    [before] = [tuple(row) for row in await world.database.fetch(ROW)]
    other = (
        "(SELECT min(uuid) FROM devices d WHERE node = 'n1' AND uuid <> "
        "(SELECT device_uuid FROM allocation_devices))"
    )

    await world.database.fetch(change.replace("{other_card}", other))

    async def right() -> bool:
        return [tuple(row) for row in await world.database.fetch(ROW)] == [before]

    await eventually(right, f"the row to be as it was: {before}")
    [line] = await eventually(lambda: lines(world, kind), "a line about it")
    assert pod["metadata"]["name"] in line
    assert line.endswith("(True)")
    await sound(world)
    assert (await world.used_amounts(before[5]))[:2] == (1, 1024)


@pytest.mark.parametrize("value", ["garbage", "GPU-1,NVIDIA,1,1:;", ""])
async def test_annotations_that_a_row_keeps_are_those_of_its_slices(
    world: World, value: str
) -> None:
    replica = await world.replica()
    pod = await running(world, replica)
    right = (await world.read(pod))["metadata"]["annotations"][annotations.NVIDIA_ALLOCATED]

    await world.database.fetch(
        "UPDATE allocations SET annotations = annotations || $1::jsonb",
        {annotations.NVIDIA_ALLOCATED: value},
    )
    # The pod changes, so that it is compared with the row.
    await world.set_status(pod, message="again")

    async def written_again() -> bool:
        row = await world.database.fetchrow("SELECT annotations FROM allocations")
        found = (await world.read(pod))["metadata"]["annotations"]
        kept = row["annotations"][annotations.NVIDIA_ALLOCATED]
        return kept == found[annotations.NVIDIA_ALLOCATED] == right

    await eventually(written_again, "the row's annotation, and the pod's")
    [line] = await eventually(lambda: lines(world, "row-contradicts-grant"), "a line about it")
    assert annotations.NVIDIA_ALLOCATED in line
    assert line.endswith("(True)")


async def test_a_node_of_which_no_agent_reported_is_its_plugins(world: World) -> None:
    await world.replica()
    node = await other_node(world)
    await world.database.fetch("UPDATE nodes SET source = 'agent' WHERE name = $1", node)

    # As each answer to the handshake does.
    await world.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"again": "yes"}}})

    async def of_its_plugin() -> bool:
        row = await world.database.fetchrow("SELECT source FROM nodes WHERE name = $1", node)
        return bool(row["source"] == "annotation")

    await eventually(of_its_plugin, "the node to be its device plugin's again")


async def test_a_state_that_never_ends_is_looked_at(world: World) -> None:
    replica = await world.replica()
    pod = await running(world, replica)
    await world.delete(pod)
    await world.until(pod, "releasing")

    await world.database.fetch("UPDATE allocations SET deadline = 'infinity'")

    await eventually(lambda: lines(world, "row-without-end"), "a line about it")


async def test_a_row_that_nothing_can_put_right_is_shown(world: World) -> None:
    replica = await world.replica()
    pod = await running(world, replica)
    await world.api.patch(
        f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}",
        {"metadata": {"annotations": {"hami.io/grant": "garbage"}}},
    )
    await world.database.fetch("DELETE FROM allocation_devices")

    [line] = await eventually(lambda: lines(world, "row-without-slices"), "a line about it")

    assert line.endswith("(False)")
    assert (await world.database.fetchrow("SELECT sum(used_memory_mib) FROM devices"))[0] == 1024


UNUSED_ADDRESS = "127.0.0.1:1"


async def test_without_redis_a_node_that_needs_its_lock_gets_no_pod_and_the_others_go_on(
    world: World,
) -> None:
    world.late.add("late")
    replica = await world.replica(
        redis=world.settings.redis.model_copy(
            update={"url": SecretStr(f"redis://{UNUSED_ADDRESS}/0")}
        )
    )
    for node in ("locked", "late"):
        await world.add_node(node)
    refused, bound = await world.pod("refused"), await world.pod("bound")
    await replica.filter(refused, "locked")
    await replica.filter(bound, "late")

    error = await replica.bind(refused, "locked")

    assert error.startswith("Redis is unavailable")
    assert error.endswith(
        "nodes that need the node lock get no pod; start it again. The pod will be retried"
    )
    await world.until(refused, "failed")
    assert await replica.bind(bound, "late") == ""

    with_redis = await world.replica()
    await with_redis.filter(refused, "locked")
    assert await with_redis.bind(refused, "locked") == ""


async def test_without_nats_pods_are_bound_and_the_facts_wait(world: World) -> None:
    running = await world.replica()
    await world.add_node("n1")
    replica = await world.replica(
        nats=world.settings.nats.model_copy(
            update={"url": f"nats://{UNUSED_ADDRESS}", "connect_timeout_s": 1.0}
        )
    )
    pod = await world.pod("slice")

    client = await nats.connect(world.settings.nats.url)
    announced = await client.subscribe("hami.events.v1.allocation.*")
    await client.flush()
    await replica.filter(pod, "n1")
    assert await replica.bind(pod, "n1") == ""

    assert "hami.io/grant" in (await world.read(pod))["metadata"]["annotations"]

    async def all_published() -> bool:
        rows = await world.database.fetch(
            "SELECT 1 FROM allocation_events WHERE published_at IS NULL"
        )
        return not rows

    try:
        # The attempt itself is in the history only.
        message = await announced.next_msg(timeout=10)
        assert message.subject == "hami.events.v1.allocation.bound"
        await eventually(all_published, "the replica that has the bus to publish it")
    finally:
        await client.close()
    assert running is not replica


async def test_without_postgres_filter_answers_from_memory_and_bind_with_an_error(
    world: World,
) -> None:
    replica, _ = await world.replica_with_card()
    pod = await world.pod("slice")
    name = (await world.database.fetchrow("SELECT current_database()"))[0]
    # As when the server goes: connections end, and new ones are refused.
    dsn = world.settings.postgres.dsn.get_secret_value()
    import asyncpg

    admin = await asyncpg.connect(dsn.rsplit("/", 1)[0] + "/postgres")
    try:
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name
        )
        assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
        assert (await replica.bind(pod, "n1")).startswith("Postgres is not available")
        assert (await replica.http.get("/readyz")).status_code == 503
        assert (await replica.http.get("/v1/nodes")).status_code == 503
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    finally:
        await admin.close()

    assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
    assert await replica.bind(pod, "n1") == ""
