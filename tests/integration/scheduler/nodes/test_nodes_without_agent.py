"""Pods on nodes of other vendors' plugins: annotated answers, inventories and locks."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

from hamicommon import events

from tests.integration.scheduler.nodes.other_nodes import (
    CHIP,
    CHIP_REGISTER,
    LOCK,
    OtherNode,
    a_pod,
    annotate_pod,
    chip_pod,
    chips,
    wait_until_placed,
    with_chips,
)
from tests.integration.scheduler.world import World
from tests.waiting import eventually

MLU_LOCK = "cambricon.com/dsmlu.lock"


async def test_a_pod_goes_all_its_way_on_another_vendors_node(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0")
    pod = await chip_pod(world, "slice")

    await wait_until_placed(replica, pod, node, "cpu-only")
    assert await replica.bind(pod, node.name) == ""

    written = (await world.read(pod))["metadata"]["annotations"]
    assert written[f"hami.io/{CHIP}-devices-to-allocate"] == f"npu-0,{CHIP},16384,0:;"
    assert written[f"hami.io/{CHIP}-devices-allocated"] == f"npu-0,{CHIP},16384,0:;"
    assert json.loads(written[f"huawei.com/{CHIP}"]) == [
        {"UUID": "npu-0", "temp": "vir05_1c_16g", "memory": 16384}
    ]
    assert written["hami.io/bind-phase"] == "allocating"
    lock = (await node.annotations())[LOCK]
    assert lock.endswith(",default,slice")
    await world.until(pod, "bound")

    # The plugin answers the kubelet, writes that on the pod, and frees the node.
    await annotate_pod(world, pod, **{"hami.io/bind-phase": "success"})
    await node.annotate(**{LOCK: None})
    await world.until(pod, "allocated")
    assert await world.used_amounts("npu-0@npu") == (1, 16384, 0)

    await world.delete(pod)
    await world.until(pod, "released")
    assert await world.used_amounts("npu-0@npu") == (0, 0, 0)


async def test_a_failed_bind_phase_is_shown_and_frees_the_node(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0")
    pod = await chip_pod(world, "slice")
    await wait_until_placed(replica, pod, node)
    assert await replica.bind(pod, node.name) == ""

    await annotate_pod(world, pod, **{"hami.io/bind-phase": "failed"})

    async def is_recorded() -> bool:
        return "bind-phase failed" in (await world.rows(pod))[-1]["reason"]

    await eventually(is_recorded, "the failure to be kept with the grant")

    async def is_unlocked() -> bool:
        return LOCK not in await node.annotations()

    await eventually(is_unlocked, "the node to be unlocked")
    await world.set_status(pod, phase="Failed", reason="UnexpectedAdmissionError")
    await world.until(pod, "failed")
    assert await world.used_amounts("npu-0@npu") == (0, 0, 0)


async def test_a_users_bind_phase_makes_no_grant(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0")
    pod = await chip_pod(world, "slice")

    await annotate_pod(
        world,
        pod,
        **{
            "hami.io/bind-phase": "success",
            "hami.io/vgpu-node": node.name,
            f"hami.io/{CHIP}-devices-allocated": f"npu-0,{CHIP},65536,0:;",
        },
    )
    other = await chip_pod(world, "other")
    await wait_until_placed(replica, other, node)

    assert await replica.bind(other, node.name) == ""
    assert await world.rows(pod) == []
    assert await world.used_amounts("npu-0@npu") == (1, 16384, 0)


async def test_a_mixed_cluster_gives_each_pod_its_vendors_node(world: World) -> None:
    """Our agent's node, an Ascend and a DCU node by annotation, an MLU node by capacity only."""
    replica, _ = await world.replica_with_card(enable_ascend=True)
    gpu = OtherNode(world, "n1")
    npu = await with_chips(world, replica, "npu-0")
    dcu = await OtherNode(world, "dcu").create(
        {"hami.io/node-dcu-register": "DCU-0,4,32768,100,DCU-Z100,0,true:"},
        **{"hygon.com/dcunum": "4"},
    )
    mlu = await OtherNode(world, "mlu").create(
        {},
        **{
            "cambricon.com/vmlu": "10",
            "cambricon.com/mlu.smlu.vcore": "200",
            "cambricon.com/mlu.smlu.vmemory": "200",
        },
    )
    await dcu.until_cards("DCU-0@dcu")
    await mlu.until_cards("mlu-cambricon-mlu-0@mlu", "mlu-cambricon-mlu-1@mlu")
    pods = {
        "n1": await world.pod("gpu"),
        "npu": await chip_pod(world, "chip"),
        "dcu": await a_pod(
            world,
            "dcu-slice",
            **{"hygon.com/dcunum": "1", "hygon.com/dcumem": "2000", "hygon.com/dcucores": "60"},
        ),
        "mlu": await a_pod(
            world,
            "mlu-slice",
            **{
                "cambricon.com/vmlu": "1",
                "cambricon.com/mlu.smlu.vmemory": "4",
                "cambricon.com/mlu.smlu.vcore": "30",
            },
        ),
    }
    nodes = {node.name: node for node in (gpu, npu, dcu, mlu)}
    for name, pod in pods.items():
        await wait_until_placed(replica, pod, nodes[name], *(nodes.keys() - {name}))
        assert await replica.bind(pod, name) == ""
        await world.until(pod, "bound")

    assert world.asked == {"n1"}
    locks = {
        name: {LOCK, MLU_LOCK} & (await node.annotations()).keys() for name, node in nodes.items()
    }
    assert locks == {"n1": set(), "npu": {LOCK}, "dcu": {LOCK}, "mlu": {MLU_LOCK}}
    written = (await world.read(pods["mlu"]))["metadata"]["annotations"]
    [row] = await world.rows(pods["mlu"])
    [card] = [c for c in await mlu.cards() if (await world.used_amounts(c))[0]]
    assert await world.used_amounts(card) == (1, 1024, 30)
    by_id = card.removesuffix("@mlu")
    assert written["CAMBRICON_DSMLU_PROFILE"] == f"{by_id[-1]}_30_4"
    assert written["hami.io/cambricon-mlu-devices-allocated"] == f"{by_id},MLU,1024,30:;"
    assert await world.used_amounts("DCU-0@dcu") == (1, 2000, 60)

    # Each node reports in its own way that the kubelet was answered.
    await world.publish_report(events.Allocated, (await world.rows(pods["n1"]))[-1])
    await annotate_pod(world, pods["npu"], **{"hami.io/bind-phase": "success"})
    await annotate_pod(world, pods["dcu"], **{"hami.io/bind-phase": "success"})
    await world.set_status(pods["mlu"], phase="Running", containerStatuses=[RUNNING])
    for pod in pods.values():
        await world.until(pod, "allocated")

    async def is_unlocked() -> bool:
        left = [await node.annotations() for node in nodes.values()]
        return not any({LOCK, MLU_LOCK} & annotations.keys() for annotations in left)

    await eventually(is_unlocked, "no node to be locked any more")
    await world.set_status(pods["mlu"], phase="Succeeded")
    for name in ("npu", "dcu"):
        await world.delete(pods[name])
    for name in ("npu", "dcu", "mlu"):
        await world.until(pods[name], "released")
    assert await world.used_amounts(card) == await world.used_amounts("DCU-0@dcu") == (0, 0, 0)
    assert row["node"] == "mlu"


RUNNING = {
    "name": "main",
    "containerID": "containerd://x",
    "image": "none",
    "imageID": "",
    "ready": True,
    "restartCount": 0,
}


CHIP_HANDSHAKE = f"hami.io/node-handshake-{CHIP}"


async def test_a_malformed_annotation_keeps_the_last_good_cards_and_is_reported(
    world: World,
) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0", "npu-1")

    await node.annotate(**{CHIP_REGISTER: chips("npu-0")[:-5]})

    async def is_reported() -> bool:
        rows = await world.database.fetch(
            "SELECT detail FROM drift_journal WHERE class = 'inventory-malformed'"
        )
        return any(CHIP in row["detail"] for row in rows)

    await eventually(is_reported, "the malformed annotation to be reported")
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

    async def is_cordoned() -> bool:
        answer = await replica.filter(pod, node.name)
        return answer["FailedAndUnresolvableNodes"] == {node.name: "1/1 CardCordoned"}

    await eventually(is_cordoned, "the card to be cordoned")
    await node.annotate(**{"hami.io/device-cordon": None})
    await wait_until_placed(replica, pod, node)
    assert await replica.bind(pod, node.name) == ""
    assert (await world.read(pod))["spec"]["nodeName"] == node.name


async def test_an_agents_node_is_never_read_from_its_annotations(world: World) -> None:
    replica, card = await world.replica_with_card(enable_ascend=True)
    other = OtherNode(world, "n1")
    gpu = {"id": "GPU-x", "count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA A100"}

    await other.annotate(**{"hami.io/node-nvidia-register": json.dumps([gpu | {"health": True}])})
    # One worker looks at the nodes in order: when this one is known, that one was looked at.
    await with_chips(world, replica, "npu-0")

    rows = await world.database.fetch("SELECT uuid FROM devices WHERE node = 'n1'")
    assert [row["uuid"] for row in rows] == [card]


async def test_the_plugins_removal_of_the_lock_lets_the_next_pod_bind(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0", "npu-1")
    first, second = await chip_pod(world, "first"), await chip_pod(world, "second")
    await wait_until_placed(replica, first, node)
    await wait_until_placed(replica, second, node)
    assert await replica.bind(first, node.name) == ""

    waiting = asyncio.create_task(replica.bind(second, node.name))
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    assert not done
    await node.annotate(**{LOCK: None})

    assert await waiting == ""
    assert (await node.annotations())[LOCK].endswith(",default,second")


async def test_a_lock_of_another_scheduler_is_respected_until_it_ends(world: World) -> None:
    replica = await world.replica(enable_ascend=True, bind_timeout_s=6.0)
    node = await with_chips(world, replica, "npu-0")
    other = await chip_pod(world, "others")
    pod = await chip_pod(world, "slice")
    now = datetime.now(UTC)
    await node.annotate(**{LOCK: f"{now:%Y-%m-%dT%H:%M:%SZ},default,others"})
    await wait_until_placed(replica, pod, node)

    error = await replica.bind(pod, node.name)
    assert "default/others" in error
    assert error.endswith("node lock contention")
    assert (await node.annotations())[LOCK].endswith(",default,others")
    assert (await world.rows(pod))[-1]["state"] == "failed"

    old = now - timedelta(minutes=6)
    await node.annotate(**{LOCK: f"{old:%Y-%m-%dT%H:%M:%SZ},default,others"})
    await wait_until_placed(replica, pod, node)
    assert await replica.bind(pod, node.name) == ""
    assert (await node.annotations())[LOCK].endswith(",default,slice")
    await world.delete(other)


async def test_a_lock_of_a_pod_that_is_gone_is_taken_over(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0")
    await node.annotate(**{LOCK: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ},default,no-such-pod"})
    pod = await chip_pod(world, "slice")
    await wait_until_placed(replica, pod, node)

    assert await replica.bind(pod, node.name) == ""
    await world.delete(pod)
    await world.until(pod, "released")

    async def is_unlocked() -> bool:
        return LOCK not in await node.annotations()

    await eventually(is_unlocked, "our own lock to be removed")
