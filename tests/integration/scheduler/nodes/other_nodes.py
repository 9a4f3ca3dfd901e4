"""Nodes of other vendors' device plugins, which the tests play through the API server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from hamicommon.errors import NotFound
from hamicommon.k8s.types import Json

from tests.integration.scheduler.world import Replica, World
from tests.waiting import eventually

LOCK = "hami.io/mutex.lock"
CHIP = "Ascend910B3"
CHIP_REGISTER = f"hami.io/node-register-{CHIP}"


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
    return await world.api.create(
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


def chip_pod(world: World, name: str) -> Any:
    limits = {f"huawei.com/{CHIP}": "1", f"huawei.com/{CHIP}-memory": "16384"}
    return a_pod(world, name, **limits)


async def annotate_pod(world: World, pod: Json, **changes: str) -> None:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    await world.api.patch(path, {"metadata": {"annotations": changes}})


async def wait_until_placed(replica: Replica, pod: Json, node: OtherNode, *others: str) -> None:
    async def is_known() -> bool:
        answer = await replica.filter(pod, node.name, *others)
        return bool(answer["NodeNames"] == [node.name])

    await eventually(is_known, f"the replica to place {pod['metadata']['name']} on {node.name}")


async def with_chips(world: World, replica: Replica, *names: str) -> OtherNode:
    del replica
    node = await OtherNode(world, "npu").create(
        {CHIP_REGISTER: chips(*names)}, **{f"huawei.com/{CHIP}": "8"}
    )
    await node.until_cards(*(f"{name}@npu" for name in names))
    return node
