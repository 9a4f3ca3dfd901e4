"""Nodes of other vendors' device plugins: inventory, locks and answers are annotations.

The tests play those plugins through the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hamicommon import events
from hamicommon.errors import NotFound

from tests.integration.scheduler.conftest import Replica, World, eventually

pytestmark = pytest.mark.integration

Json = dict[str, Any]
LOCK, MLU_LOCK = "hami.io/mutex.lock", "cambricon.com/dsmlu.lock"
CHIP = "Ascend910B3"
CHIP_REGISTER, CHIP_HANDSHAKE = f"hami.io/node-register-{CHIP}", f"hami.io/node-handshake-{CHIP}"


def chips(*names: str, **changes: Any) -> str:
    """The register annotation of an Ascend node."""
    base = {"count": 4, "devmem": 65536, "devcore": 20, "type": CHIP, "health": True} | changes
    return json.dumps([{"id": name, "index": i, **base} for i, name in enumerate(names)])


class OtherNode:
    """A node whose device plugin is another vendor's."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.path = f"/api/v1/nodes/{name}"

    async def create(self, annotations: Mapping[str, str], **capacity: str) -> OtherNode:
        with contextlib.suppress(NotFound):
            await self.world.api.delete(self.path)
        status = {"capacity": capacity, "allocatable": capacity}
        await self.world.api.create(
            "/api/v1/nodes",
            {
                "metadata": {"name": self.name, "annotations": dict(annotations)},
                "status": status,
            },
        )
        return self

    async def annotate(self, **changes: str | None) -> None:
        await self.world.api.patch(self.path, {"metadata": {"annotations": changes}})

    async def annotations(self) -> dict[str, str]:
        node = await self.world.api.get(self.path)
        return dict(node["metadata"].get("annotations") or {})

    async def cards(self) -> list[str]:
        rows = await self.world.database.fetch(
            "SELECT d.uuid FROM devices d JOIN nodes n ON n.name = d.node"
            " WHERE d.node = $1 AND d.present AND n.source = 'annotation' ORDER BY d.uuid",
            self.name,
        )
        return [row["uuid"] for row in rows]

    async def until_cards(self, *uuids: str) -> None:
        async def same() -> bool:
            return await self.cards() == list(uuids)

        await eventually(same, f"{self.name} to have {uuids}")


async def a_pod(world: World, name: str, **limits: str) -> Json:
    made = await world.api.create(
        "/api/v1/namespaces/default/pods",
        {
            "metadata": {"name": name},
            "spec": {
                "schedulerName": "hami-scheduler",
                "containers": [
                    {"name": "main", "image": "none", "resources": {"limits": dict(limits)}}
                ],
            },
        },
    )
    world.pods.append(made)
    return made


def chip_pod(world: World, name: str) -> Any:
    limits = {f"huawei.com/{CHIP}": "1", f"huawei.com/{CHIP}-memory": "16384"}
    return a_pod(world, name, **limits)


async def annotate_pod(world: World, pod: Json, **changes: str) -> None:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    await world.api.patch(path, {"metadata": {"annotations": changes}})


async def placed(replica: Replica, pod: Json, node: OtherNode, *others: str) -> None:
    async def known() -> bool:
        answer = await replica.filter(pod, node.name, *others)
        return bool(answer["NodeNames"] == [node.name])

    await eventually(known, f"the replica to place {pod['metadata']['name']} on {node.name}")


async def with_chips(world: World, replica: Replica, *names: str) -> OtherNode:
    del replica
    node = await OtherNode(world, "npu").create(
        {CHIP_REGISTER: chips(*names)}, **{f"huawei.com/{CHIP}": "8"}
    )
    await node.until_cards(*names)
    return node


async def test_a_pod_goes_all_its_way_on_another_vendors_node(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0")
    pod = await chip_pod(world, "slice")

    await placed(replica, pod, node, "cpu-only")
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

    # The plugin answers the kubelet, says so on the pod, and frees the node.
    await annotate_pod(world, pod, **{"hami.io/bind-phase": "success"})
    await node.annotate(**{LOCK: None})
    await world.until(pod, "allocated")
    assert await world.used("npu-0") == (1, 16384, 0)

    await world.delete(pod)
    await world.until(pod, "released")
    assert await world.used("npu-0") == (0, 0, 0)


async def test_the_plugins_removal_of_the_lock_lets_the_next_pod_bind(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0", "npu-1")
    first, second = await chip_pod(world, "first"), await chip_pod(world, "second")
    await placed(replica, first, node)
    await placed(replica, second, node)
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
    await placed(replica, pod, node)

    error = await replica.bind(pod, node.name)
    assert "default/others" in error
    assert error.endswith("node lock contention")
    assert (await node.annotations())[LOCK].endswith(",default,others")
    assert (await world.rows(pod))[-1]["state"] == "failed"

    old = now - timedelta(minutes=6)
    await node.annotate(**{LOCK: f"{old:%Y-%m-%dT%H:%M:%SZ},default,others"})
    await placed(replica, pod, node)
    assert await replica.bind(pod, node.name) == ""
    assert (await node.annotations())[LOCK].endswith(",default,slice")
    await world.delete(other)


async def test_a_lock_of_a_pod_that_is_gone_is_taken_over(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0")
    await node.annotate(**{LOCK: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ},default,no-such-pod"})
    pod = await chip_pod(world, "slice")
    await placed(replica, pod, node)

    assert await replica.bind(pod, node.name) == ""
    await world.delete(pod)
    await world.until(pod, "released")

    async def unlocked() -> bool:
        return LOCK not in await node.annotations()

    await eventually(unlocked, "our own lock to be removed")


async def test_a_failed_bind_phase_is_shown_and_frees_the_node(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0")
    pod = await chip_pod(world, "slice")
    await placed(replica, pod, node)
    assert await replica.bind(pod, node.name) == ""

    await annotate_pod(world, pod, **{"hami.io/bind-phase": "failed"})

    async def told() -> bool:
        return "bind-phase failed" in (await world.rows(pod))[-1]["reason"]

    await eventually(told, "the failure to be kept with the grant")

    async def unlocked() -> bool:
        return LOCK not in await node.annotations()

    await eventually(unlocked, "the node to be unlocked")
    await world.set_status(pod, phase="Failed", reason="UnexpectedAdmissionError")
    await world.until(pod, "failed")
    assert await world.used("npu-0") == (0, 0, 0)


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
    await placed(replica, other, node)

    assert await world.rows(pod) == []
    assert await world.used("npu-0") == (1, 16384, 0)


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
    assert await node.cards() == ["npu-0", "npu-1"]

    await node.annotate(**{CHIP_REGISTER: chips("npu-1")})
    await node.until_cards("npu-1")


async def test_the_handshake_is_asked_where_the_plugin_registered_only(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0")
    plain = await OtherNode(world, "plain").create({})

    async def asked() -> bool:
        return (await node.annotations()).get(CHIP_HANDSHAKE, "").startswith("Requesting_")

    await eventually(asked, "the plugin to be asked")
    assert await plain.annotations() == {}

    # No answer for a minute, and the kubelet lists none: the plugin is gone, and its cards with it.
    long_ago = datetime.now(UTC) - timedelta(minutes=2)
    await world.api.patch(
        f"{node.path}/status", {"status": {"allocatable": {f"huawei.com/{CHIP}": "0"}}}
    )
    await node.annotate(**{CHIP_HANDSHAKE: f"Requesting_{long_ago:%Y-%m-%d %H:%M:%S}"})
    await node.until_cards()

    await node.annotate(**{CHIP_HANDSHAKE: "Reported_2026-01-01 00:00:00"})
    await node.until_cards("npu-0")


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


async def test_a_mixed_cluster_gives_each_pod_its_vendors_node(world: World) -> None:
    """Our agent's node, an Ascend and a DCU node by annotation, an MLU node by capacity alone."""
    replica = await world.replica(enable_ascend=True)
    await world.add_node("n1")
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
    await dcu.until_cards("DCU-0")
    await mlu.until_cards("mlu-cambricon-mlu-0", "mlu-cambricon-mlu-1")
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
        await placed(replica, pod, nodes[name], *(nodes.keys() - {name}))
        assert await replica.bind(pod, name) == ""
        await world.until(pod, "bound")

    assert world.asked == {"n1"}
    locks = {
        name: {LOCK, MLU_LOCK} & (await node.annotations()).keys() for name, node in nodes.items()
    }
    assert locks == {"n1": set(), "npu": {LOCK}, "dcu": {LOCK}, "mlu": {MLU_LOCK}}
    written = (await world.read(pods["mlu"]))["metadata"]["annotations"]
    [row] = await world.rows(pods["mlu"])
    [card] = [c for c in await mlu.cards() if (await world.used(c))[0]]
    assert await world.used(card) == (1, 1024, 30)
    assert written["CAMBRICON_DSMLU_PROFILE"] == f"{card[-1]}_30_4"
    assert written["hami.io/cambricon-mlu-devices-allocated"] == f"{card},MLU,1024,30:;"
    assert await world.used("DCU-0") == (1, 2000, 60)

    # Each node says in its own way that the kubelet was answered.
    await world.say(events.Allocated, (await world.rows(pods["n1"]))[-1])
    await annotate_pod(world, pods["npu"], **{"hami.io/bind-phase": "success"})
    await annotate_pod(world, pods["dcu"], **{"hami.io/bind-phase": "success"})
    await world.set_status(pods["mlu"], phase="Running", containerStatuses=[RUNNING])
    for pod in pods.values():
        await world.until(pod, "allocated")

    async def unlocked() -> bool:
        left = [await node.annotations() for node in nodes.values()]
        return not any({LOCK, MLU_LOCK} & annotations.keys() for annotations in left)

    await eventually(unlocked, "no node to be locked any more")
    await world.set_status(pods["mlu"], phase="Succeeded")
    for name in ("npu", "dcu"):
        await world.delete(pods[name])
    for name in ("npu", "dcu", "mlu"):
        await world.until(pods[name], "released")
    assert await world.used(card) == await world.used("DCU-0") == (0, 0, 0)
    assert row["node"] == "mlu"


RUNNING = {
    "name": "main",
    "containerID": "containerd://x",
    "image": "none",
    "imageID": "",
    "ready": True,
    "restartCount": 0,
}
