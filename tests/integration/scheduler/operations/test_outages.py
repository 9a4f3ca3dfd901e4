"""Redis, NATS or Postgres is away."""

from __future__ import annotations

import nats
import pytest
from pydantic import SecretStr

from tests.integration.scheduler.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.integration

NOBODY_LISTENS = "127.0.0.1:1"


async def test_without_redis_a_node_that_needs_its_lock_gets_no_pod_and_the_others_go_on(
    world: World,
) -> None:
    world.late.add("late")
    replica = await world.replica(
        redis=world.settings.redis.model_copy(
            update={"url": SecretStr(f"redis://{NOBODY_LISTENS}/0")}
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
        "nodes that need the node lock get no pod; start it again, the pod is tried again"
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
            update={"url": f"nats://{NOBODY_LISTENS}", "connect_timeout_s": 1.0}
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
    replica = await world.replica()
    await world.add_node("n1")
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
