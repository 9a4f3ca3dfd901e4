"""Two nodes of one kind, whose device plugins name their cards alike.

Ids of other vendors' cards are numbers or bus addresses: the ledger names them by id and node,
everything that the nodes and the users read or write names them by id.
"""

import json
import re
from copy import deepcopy
from typing import Any

from hamicommon.k8s.types import Json
from hamicommon.simulation.cases import Simulator

from tests.integration.scheduler.nodes.other_nodes import OtherNode, a_pod, wait_until_placed
from tests.integration.scheduler.world import Replica, World
from tests.unit.hamicommon import recorded
from tests.unit.hamicommon.simulation.objects import every_vendor
from tests.waiting import eventually

DCU_REGISTER = "hami.io/node-dcu-register"
DCU_CARDS = "DCU-0,4,32768,100,DCU-Z100,0,true:DCU-1,4,32768,100,DCU-Z100,0,true:"
DCU = {"hygon.com/dcunum": "1", "hygon.com/dcumem": "2000", "hygon.com/dcucores": "60"}
_TIME = re.compile(r"\d{10,}")


async def dcu_node(world: World, name: str) -> OtherNode:
    return await OtherNode(world, name).create(
        {DCU_REGISTER: DCU_CARDS}, **{"hygon.com/dcunum": "8"}
    )


async def two_dcu_nodes(world: World) -> tuple[OtherNode, OtherNode]:
    nodes = await dcu_node(world, "dcu-a"), await dcu_node(world, "dcu-b")
    for node in nodes:
        await node.until_cards(f"DCU-0@{node.name}", f"DCU-1@{node.name}")
    return nodes


def rename_node(node: Json, name: str) -> Json:
    """The recorded node under another name; NVIDIA's uuids differ from card to card."""
    text = json.dumps(node["metadata"].get("annotations") or {}).replace("GPU-mix", f"GPU-{name}")
    labels = node["metadata"].get("labels") or {}
    metadata = {"name": name, "labels": labels, "annotations": json.loads(text)}
    return {"metadata": metadata, "status": deepcopy(node["status"])}


def expected_annotations(node: Json, pod: Json) -> dict[str, str]:
    """Annotations as HAMi writes them if this is the only node, by the simulator."""
    case = {"name": "case", "in": {"nodes": [node], "pods": [], "pod": pod}}
    answer = Simulator(vendors=every_vendor()).answer_line(json.dumps(case), 1)
    return dict(answer["nodes"][node["metadata"]["name"]]["annotations"])


def comparable(annotations: dict[str, str]) -> dict[str, list[str]]:
    """Without times, and without the entries of containers that have no card, which HAMi loses."""
    return {
        key: [piece for piece in _TIME.sub("T", value).split(";") if piece]
        for key, value in annotations.items()
    }


def list_assumed(replica: Replica, pod: Json) -> list[tuple[str, str]]:
    found = replica.service.adopter.view.assumption(pod["metadata"]["uid"])
    assert found is not None
    placement = found.draft.placement
    return [(placement.node, s.uuid) for each in placement.containers for s in each.shares]


async def read_grants(world: World, pod: Json) -> list[tuple[str, str]]:
    rows = await world.database.fetch(
        "SELECT a.node, x.device_uuid FROM allocations a JOIN allocation_devices x"
        " ON x.allocation_id = a.id WHERE a.pod_uid = $1 ORDER BY 2",
        pod["metadata"]["uid"],
    )
    return [(row["node"], row["device_uuid"]) for row in rows]


async def test_pods_of_every_vendor_go_their_way_on_both_of_two_equal_nodes(world: World) -> None:
    replica = await world.replica(enable_ascend=True, enable_iluvatar=True)
    for record in recorded.lines("filter-vendors.jsonl"):
        names = [f"{record['name']}-{which}" for which in ("a", "b")]
        nodes = [rename_node(record["in"]["nodes"][0], name) for name in names]
        cards = [await goes_its_way(world, replica, node, record["in"]["pod"]) for node in nodes]
        assert cards[0].isdisjoint(cards[1]), record["name"]


async def goes_its_way(world: World, replica: Replica, node: Json, template: Json) -> set[str]:
    """The cards that a pod had on this node from /filter to its end."""
    name = node["metadata"]["name"]
    await world.api.create("/api/v1/nodes", node)
    metadata = {"name": name, "annotations": template["metadata"].get("annotations") or {}}
    pod = await world.api.create(
        "/api/v1/namespaces/default/pods", {"metadata": metadata, "spec": template["spec"]}
    )
    await wait_until_placed(replica, pod, OtherNode(world, name), "cpu-only")
    assert await replica.bind(pod, name) == ""
    await world.until(pod, "bound")
    written = (await world.read(pod))["metadata"]["annotations"]
    expected = comparable(expected_annotations(node, template))
    assert {key: comparable(written).get(key) for key in expected} == expected
    held = await read_grants(world, pod)
    assert {where for where, _ in held} == {name}
    await world.delete(pod)
    await world.until(pod, "released")
    cards = {card for _, card in held}
    for card in cards:
        assert await world.used_amounts(card) == (0, 0, 0)
    return cards


async def test_an_annotation_that_names_a_card_finds_it_on_every_node(world: World) -> None:
    replica = await world.replica()
    first, second = await two_dcu_nodes(world)
    for node in (first, second):
        pod = await chosen_pod(world, f"use-{node.name}", "DCU-1")
        await wait_until_placed(replica, pod, node)
        assert list_assumed(replica, pod) == [(node.name, f"DCU-1@{node.name}")]
    pod = await chosen_pod(world, "use-one", "DCU-0@dcu-b")
    await wait_until_placed(replica, pod, second, first.name)
    assert list_assumed(replica, pod) == [("dcu-b", "DCU-0@dcu-b")]


async def chosen_pod(world: World, name: str, card: str) -> Json:
    return await world.api.create(
        "/api/v1/namespaces/default/pods",
        {
            "metadata": {"name": name, "annotations": {"hygon.com/use-gpuuuid": card}},
            "spec": {
                "schedulerName": "hami-scheduler",
                "containers": [
                    {"name": "main", "image": "none", "resources": {"limits": dict(DCU)}}
                ],
            },
        },
    )


async def test_a_cordon_closes_the_card_of_its_own_node(world: World) -> None:
    replica = await world.replica()
    first, second = await two_dcu_nodes(world)
    await first.annotate(**{"hami.io/device-cordon": "DCU-0,DCU-1"})
    pod = await a_pod(world, "slice", **DCU)

    async def is_cordoned() -> bool:
        answer = await replica.filter(pod, first.name)
        return answer["FailedAndUnresolvableNodes"] == {"dcu-a": "2/2 CardCordoned"}

    await eventually(is_cordoned, "the cards to be cordoned")
    await wait_until_placed(replica, pod, second, first.name)


async def test_a_refused_pod_is_explained_by_the_cards_of_the_nodes_it_was_offered(
    world: World,
) -> None:
    replica = await world.replica()
    await two_dcu_nodes(world)
    big = await a_pod(world, "big", **DCU | {"hygon.com/dcumem": "40000"})
    answer = await replica.filter(big, "dcu-b")
    assert "dcu-b" in {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
    [node] = (await wait_for_explanation(replica, big))["nodes"]
    assert [card["uuid"] for card in node["cards"]] == ["DCU-0@dcu-b", "DCU-1@dcu-b"]

    # A selector of the pod leaves kube-scheduler with nodes that have no cards.
    small = await a_pod(world, "small", **DCU)
    await replica.filter(small, "cpu-only")
    assert (await wait_for_explanation(replica, small))["nodes"] == []


async def wait_for_explanation(replica: Replica, pod: Json) -> Any:
    path = f"/v1/pods/{pod['metadata']['uid']}/explain"

    async def explanation() -> Json | None:
        answer = await replica.http.get(path)
        return dict(answer.json()) if answer.status_code == 200 else None

    found = await eventually(explanation, "the decision to be recorded")
    assert found["outcome"] == "refused"
    return found


async def test_cards_that_the_ledger_has_by_their_id_alone_keep_their_grants(world: World) -> None:
    """Rows of a version that named all cards by their id."""
    await world.database.fetch(
        "INSERT INTO nodes (name, source, agent_id) VALUES ('dcu-a', 'annotation', 'x')"
    )
    await world.database.fetch(
        "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,"
        " ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy, present)"
        " SELECT 'DCU-' || i, 'dcu-a', 'DCU', i, 'DCU-Z100', 4, 32768, 100, 4, 32768, 100, true,"
        " i = 0 FROM generate_series(0, 1) i"
    )
    replica = await world.replica()
    first, second = await dcu_node(world, "dcu-a"), await dcu_node(world, "dcu-b")
    await first.until_cards("DCU-0", "DCU-1")
    await second.until_cards("DCU-0@dcu-b", "DCU-1@dcu-b")
    for node, card in ((first, "DCU-0"), (second, "DCU-0@dcu-b")):
        pod = await chosen_pod(world, f"old-{node.name}", "DCU-0")
        await wait_until_placed(replica, pod, node)
        assert await replica.bind(pod, node.name) == ""
        written = (await world.read(pod))["metadata"]["annotations"]
        assert written["hami.io/dcu-devices-allocated"] == "DCU-0,DCU,2000,60:;"
        assert await world.used_amounts(card) == (1, 2000, 60)
    await first.annotate(**{"hami.io/device-cordon": "DCU-0"})

    async def is_cordoned() -> bool:
        rows = await world.database.fetch("SELECT uuid FROM devices WHERE cordoned")
        return [row["uuid"] for row in rows] == ["DCU-0"]

    await eventually(is_cordoned, "the card to be cordoned")
