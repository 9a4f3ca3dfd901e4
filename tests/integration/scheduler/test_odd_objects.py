"""Objects as odd as an API server lets them be end no loop; others are served beside them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.scheduler.conftest import World, eventually

pytestmark = pytest.mark.integration

AMOUNTS = (
    "0",
    "9223372036854775807",
    "9223372036854775808",
    "8E",
    "9e18",
    "1e30",
    "100000E",
    "1k",
    "3000000000",
)
"""Quantities that the API server takes for a resource of ours."""
NAMES = ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority")


async def still_serves(world: World, replica: Any, node: str) -> None:
    pod = await world.pod("plain")
    answer = await replica.filter(pod, node)
    assert answer["NodeNames"] == [node], answer


async def test_quotas_of_any_amount_are_limits_or_none(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    path = "/api/v1/namespaces/default/resourcequotas"
    made = []
    for number, amount in enumerate(AMOUNTS[1:]):
        hard = {f"limits.nvidia.com/{name}": amount for name in ("gpumem", "gpucores")}
        hard["limits.huawei.com/Ascend910B3-memory"] = amount
        metadata = {"name": f"odd-{number}"}
        made.append(await world.api.create(path, {"metadata": metadata, "spec": {"hard": hard}}))
    try:

        async def limited() -> bool:
            row = await world.database.fetchrow(
                "SELECT limit_amount FROM quotas WHERE resource = 'nvidia.com/gpumem'"
            )
            return row is not None and row[0] == 1000

        await eventually(limited, "the strictest limit")
    finally:
        for quota in made:
            await world.api.delete(f"{path}/{quota['metadata']['name']}")

    async def unlimited() -> bool:
        rows = await world.database.fetch("SELECT 1 FROM quotas WHERE limit_amount IS NOT NULL")
        return not rows

    await eventually(unlimited, "the limits to go")
    await still_serves(world, replica, "n1")


@pytest.mark.parametrize("name", NAMES)
async def test_a_pod_that_asks_for_any_amount_is_answered(world: World, name: str) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    await world.add_node("n2")

    for amount in AMOUNTS:
        pod = await world.pod("odd", limits={"nvidia.com/gpu": "1", f"nvidia.com/{name}": amount})
        answer = await replica.filter(pod, "n1")
        refused = answer["FailedNodes"] or answer["FailedAndUnresolvableNodes"]
        assert answer["NodeNames"] or refused or f"nvidia.com/{name}" in answer["Error"], answer
        await world.delete(pod)

    await still_serves(world, replica, "n2")
