"""Cards listed in a node's annotations: read where no agent of ours reports, and kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.scheduler.nodes.other_nodes import (
    CHIP,
    CHIP_REGISTER,
    OtherNode,
    chips,
    placed,
    with_chips,
)
from tests.integration.scheduler.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.integration

CHIP_HANDSHAKE = f"hami.io/node-handshake-{CHIP}"


async def test_a_malformed_annotation_keeps_the_last_good_cards_and_is_reported(
    world: World,
) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0", "npu-1")

    await node.annotate(**{CHIP_REGISTER: chips("npu-0")[:-5]})

    async def reported() -> bool:
        rows = await world.database.fetch(
            "SELECT detail FROM drift_journal WHERE class = 'inventory-malformed'"
        )
        return any(CHIP in row["detail"] for row in rows)

    await eventually(reported, "the malformed annotation to be reported")
    metrics = (await replica.http.get("/metrics")).text
    assert "hami_scheduler_malformed_inventories 1.0" in metrics
    assert await node.cards() == ["npu-0@npu", "npu-1@npu"]

    await node.annotate(**{CHIP_REGISTER: chips("npu-1")})
    await node.until_cards("npu-1@npu")


async def test_the_handshake_is_asked_where_the_plugin_registered_only(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0")
    plain = await OtherNode(world, "plain").create({})

    async def is_requested() -> bool:
        return (await node.annotations()).get(CHIP_HANDSHAKE, "").startswith("Requesting_")

    await eventually(is_requested, "the plugin to be asked")
    assert await plain.annotations() == {}

    # No answer for a minute, and the kubelet lists none: the plugin is gone, and its cards with it.
    long_ago = datetime.now(UTC) - timedelta(minutes=2)
    await world.api.patch(
        f"{node.path}/status", {"status": {"allocatable": {f"huawei.com/{CHIP}": "0"}}}
    )
    await node.annotate(**{CHIP_HANDSHAKE: f"Requesting_{long_ago:%Y-%m-%d %H:%M:%S}"})
    await node.until_cards()

    await node.annotate(**{CHIP_HANDSHAKE: "Reported_2026-01-01 00:00:00"})
    await node.until_cards("npu-0@npu")


async def test_a_cordon_holds_for_cards_under_hamis_own_plugin(world: World) -> None:
    replica = await world.replica()
    gpu = {"id": "GPU-h", "count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA A100"}
    node = await OtherNode(world, "hami").create(
        {
            "hami.io/node-nvidia-register": json.dumps([gpu | {"health": True}]),
            "hami.io/device-cordon": "GPU-h",
        },
        **{"nvidia.com/gpu": "10"},
    )
    await node.until_cards("GPU-h")
    pod = await world.pod("slice")

    async def cordoned() -> bool:
        answer = await replica.filter(pod, node.name)
        return answer["FailedAndUnresolvableNodes"] == {node.name: "1/1 CardCordoned"}

    await eventually(cordoned, "the card to be cordoned")
    await node.annotate(**{"hami.io/device-cordon": None})
    await placed(replica, pod, node)
    assert await replica.bind(pod, node.name) == ""
    assert (await world.read(pod))["spec"]["nodeName"] == node.name


async def test_an_agents_node_is_never_read_from_its_annotations(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    [card] = await world.add_node("n1")
    other = OtherNode(world, "n1")
    gpu = {"id": "GPU-x", "count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA A100"}

    await other.annotate(**{"hami.io/node-nvidia-register": json.dumps([gpu | {"health": True}])})
    # One worker looks at the nodes in order: when this one is known, that one was looked at.
    await with_chips(world, replica, "npu-0")

    rows = await world.database.fetch("SELECT uuid FROM devices WHERE node = 'n1'")
    assert [row["uuid"] for row in rows] == [card]
