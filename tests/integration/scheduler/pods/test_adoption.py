"""Pods of a running HAMi into the ledger: judged by their nodes' answers, over the real bus."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from hamicommon import events
from hamicommon.bus.client import Deliver, Message, Subscription
from hamicommon.k8s.types import Json

from tests.integration.scheduler.world import Replica, World
from tests.waiting import eventually


class Node:
    """The agent of a node, as far as it answers who holds devices."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.held: list[events.HeldContainer] = []
        self.problems: tuple[str, ...] = ()
        self.readable = True
        self.grants: list[events.GrantAnnounced] = []

    async def answer(self, _subject: str, _body: bytes) -> events.NodeHoldings:
        return events.NodeHoldings(
            node=self.name,
            read_at=datetime.now(UTC),
            containers=tuple(self.held),
            problems=self.problems,
            readable=self.readable,
        )

    async def hear(self, message: Message) -> None:
        fact = events.GRANT_MESSAGE.validate_json(message.data)
        if isinstance(fact, events.GrantAnnounced):
            self.grants.append(fact)

    async def pod(self, name: str, card: str, *, memory_mib: int = 4096, cores: int = 30) -> Json:
        """A running pod as HAMi left it, and what the node's kubelet holds for it."""
        made = await self.annotated_pod(
            name, f"{card},NVIDIA,{memory_mib},{cores}:;", memory_mib, cores
        )
        self.holds(made, card, memory_mib=memory_mib, cores=cores)
        return made

    async def annotated_pod(
        self, name: str, written: str, memory_mib: int = 4096, cores: int = 30
    ) -> Json:
        """A running pod with HAMi's annotations."""
        pod = await self.world.pod(
            name,
            memory_mib=memory_mib,
            cores=cores,
            annotations={
                "hami.io/vgpu-node": self.name,
                "hami.io/vgpu-devices-allocated": written,
                "hami.io/bind-phase": "success",
            },
        )
        metadata = pod["metadata"]
        await self.world.api.create(
            f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding",
            {"metadata": {"name": metadata["name"]}, "target": {"name": self.name}},
        )
        await self.world.set_status(pod, phase="Running")

        def is_running() -> bool:
            phases = {replica.phase(pod) for replica in self.world.replicas}
            return phases <= {"Running"}

        await eventually(is_running, "the watches to have the running pod")
        return await self.world.read(pod)

    def holds(
        self, pod: Json, card: str, *, memory_mib: int = 4096, cores: int = 30, **changes: Any
    ) -> None:
        values: dict[str, Any] = {
            "pod_uid": pod["metadata"]["uid"],
            "namespace": pod["metadata"]["namespace"],
            "pod_name": pod["metadata"]["name"],
            "container": "main",
            "device_ids": (f"{card}-{len(self.held)}",),
            "cards_of_ids": (card,),
            "visible": (card,),
            "memory_mib": (memory_mib,),
            "core_percent": cores,
        }
        self.held.append(events.HeldContainer(**{**values, **changes}))


@asynccontextmanager
async def hamis_node(world: World, **card: Any) -> AsyncIterator[tuple[Node, list[str]]]:
    """A node with cards whose agent answers."""
    name = f"n-{uuid.uuid4().hex[:6]}"
    node = Node(world, name)
    heard = Subscription(
        stream=events.GRANTS_STREAM,
        subject=events.grants_subject(name),
        consumer=f"test-{name}",
        deliver=Deliver.ALL,
    )
    tasks = [
        asyncio.create_task(world.bus.serve(events.holdings_subject(name), "", node.answer)),
        asyncio.create_task(world.bus.consume(heard, node.hear)),
    ]
    try:
        yield node, await world.add_node(name, cards=2, **card)
    finally:
        for task in tasks:
            task.cancel()


async def adopt(replica: Replica, node: Node, **wanted: Any) -> Json:
    async def read_adoption() -> Json | None:
        answer = await replica.http.post("/v1/adopt", json={"nodes": [node.name], **wanted})
        assert answer.status_code == 200, answer.text
        return dict(answer.json()) if len(answer.json()["pods"]) >= expected else None

    expected = len({one.pod_uid for one in node.held})
    return await eventually(read_adoption, "the watch to know the pods")


def outcomes(answer: Json) -> list[str]:
    return [row["why"] or row["outcome"] for row in answer["pods"]]


async def test_a_dry_run_reports_what_would_be_adopted_and_writes_nothing(world: World) -> None:
    replica = await world.replica()
    async with hamis_node(world) as (node, [card, _]):
        pod = await node.pod("old", card)

        answer = await adopt(replica, node)

        assert outcomes(answer) == ["would adopt"]
        assert answer["pods"][0]["slices"] == [
            {"container": "main", "uuid": card, "memory_mib": 4096, "core_percent": 30}
        ]
        assert not answer["applied"]
        assert await world.rows(pod) == []
        assert await world.used_amounts(card) == (0, 0, 0)


async def test_an_adopted_pod_holds_its_slices_until_it_ends(world: World) -> None:
    replica = await world.replica()
    async with hamis_node(world, memory_mib=8192) as (node, [card, _]):
        pod = await node.pod("old", card)
        assert outcomes(await adopt(replica, node, apply=True)) == ["adopted"]

        [row] = await world.rows(pod)
        assert (row["state"], row["node"]) == ("allocated", node.name)
        assert row["token"] is not None
        assert await world.used_amounts(card) == (1, 4096, 30)
        uid = pod["metadata"]["uid"]
        detail = await world.database.fetchrow(
            "SELECT e.detail, e.actor, a.origin FROM allocation_events e"
            " JOIN allocations a ON a.id = e.allocation_id WHERE e.pod_uid = $1",
            uid,
        )
        assert (detail["actor"], detail["origin"]) == ("adopt", "adopted")
        assert detail["detail"]["containers"][0]["device_ids"] == [f"{card}-0"]

        async def is_announced() -> bool:
            return [g.grant.pod_uid for g in node.grants] == [uid]

        await eventually(is_announced, "the grant to be announced to the node")
        assert node.grants[0].grant.answered

        # The filter counts it: 4096 of 8192 MiB are left of that card.
        large = await world.pod("large", memory_mib=5000)
        refused = await replica.filter(large, node.name)
        assert refused["NodeNames"] == [node.name]
        assert (await world.used_amounts(card))[1] == 4096
        other = await world.pod("other", memory_mib=5000)
        assert not (await replica.filter(other, node.name))["NodeNames"]

        await world.set_status(pod, phase="Succeeded")
        await world.until(pod, "released")
        assert (await world.used_amounts(card))[1] == 0


async def test_adopting_again_changes_nothing(world: World) -> None:
    replica = await world.replica()
    async with hamis_node(world) as (node, [card, _]):
        pod = await node.pod("old", card)
        await adopt(replica, node, apply=True)

        again = await adopt(replica, node, apply=True)

        assert outcomes(again) == ["held"]
        assert len(await world.rows(pod)) == 1
        assert await world.used_amounts(card) == (1, 4096, 30)


async def test_two_replicas_that_adopt_at_once_write_each_pod_once(world: World) -> None:
    replicas = [await world.replica(), await world.replica()]
    async with hamis_node(world) as (node, [card, _]):
        pods = [await node.pod(f"old-{n}", card, cores=10) for n in range(6)]
        await asyncio.gather(*(adopt(replica, node) for replica in replicas))

        await asyncio.gather(*(adopt(replica, node, apply=True) for replica in replicas))

        assert [len(await world.rows(pod)) for pod in pods] == [1] * 6
        assert await world.used_amounts(card) == (6, 6 * 4096, 60)


async def test_a_card_that_holds_too_much_is_reported_and_closed(world: World) -> None:
    replica = await world.replica()
    async with hamis_node(world, memory_mib=6000) as (node, [card, _]):
        for name in ("a", "b"):
            await node.pod(name, card)

        dry = await adopt(replica, node)
        done = await adopt(replica, node, apply=True)

        for answer in (dry, done):
            [full] = answer["overfull"]
            assert (full["uuid"], full["used"]["memory_mib"], full["has"]["memory_mib"]) == (
                card,
                8192,
                6000,
            )
        row = await world.database.fetchrow(
            "SELECT ceiling_memory_mib FROM devices WHERE uuid = $1", card
        )
        assert row["ceiling_memory_mib"] == 8192


async def test_annotations_alone_never_make_a_grant(world: World) -> None:
    replica = await world.replica()
    async with hamis_node(world) as (node, [card, other]):
        forged = await node.annotated_pod("forged", f"{card},NVIDIA,4096,30:;")
        less = await node.annotated_pod("less", f"{card},NVIDIA,1,0:;")
        node.holds(less, card)
        broken = await node.annotated_pod("broken", f"{card},NVIDIA:;")
        node.holds(broken, other)

        async def all_there() -> Json | None:
            answer = await adopt(replica, node, apply=True)
            return answer if len(answer["pods"]) == 3 else None

        answer = await eventually(all_there, "the watch to know all pods")

        whys = {row["name"]: row["why"] for row in answer["pods"]}
        assert whys == {
            forged["metadata"]["name"]: "no-evidence",
            less["metadata"]["name"]: "disagree",
            broken["metadata"]["name"]: "malformed",
        }
        assert {one["uuid"] for one in answer["unaccounted"]} == {card, other}
        for pod in (forged, less, broken):
            assert await world.rows(pod) == []
        believed = await adopt(replica, node, apply=True, believe_node=True)
        assert {row["name"] for row in believed["pods"] if row["outcome"] == "adopted"} == {
            less["metadata"]["name"]
        }
        assert await world.used_amounts(card) == (1, 4096, 30)


async def test_a_device_that_two_pods_claim_is_given_to_neither(world: World) -> None:
    replica = await world.replica()
    async with hamis_node(world) as (node, [card, _]):
        for name in ("a", "b"):
            pod = await node.annotated_pod(name, f"{card},NVIDIA,4096,30:;")
            node.holds(pod, card, device_ids=(f"{card}-0",))

        answer = await adopt(replica, node, apply=True)

        assert outcomes(answer) == ["held-twice"] * 2
        assert await world.used_amounts(card) == (0, 0, 0)


async def test_a_damaged_checkpoint_is_reported_and_pods_are_judged_by_device_ids(
    world: World,
) -> None:
    replica = await world.replica()
    async with hamis_node(world) as (node, [card, other]):
        node.problems = ("kubelet_internal_checkpoint: not a device checkpoint",)
        same = await node.annotated_pod("same", f"{card},NVIDIA,4096,30:;")
        node.holds(same, card)
        moved = await node.annotated_pod("moved", f"{card},NVIDIA,4096,30:;")
        node.holds(moved, other)
        blind = {"visible": None, "memory_mib": (), "core_percent": None}
        node.held = [one.model_copy(update=blind) for one in node.held]

        answer = await adopt(replica, node, apply=True)

        assert {row["name"][:4]: row["why"] or row["outcome"] for row in answer["pods"]} == {
            "same": "adopted",
            "move": "disagree",
        }
        assert "not a device checkpoint" in answer["problems"][0]


async def test_without_kubelet_state_or_without_an_agent_nothing_is_adopted(world: World) -> None:
    replica = await world.replica()
    async with hamis_node(world) as (node, [card, _]):
        pod = await node.pod("old", card)
        node.held, node.readable = [], False
        node.problems = ("checkpoint: no such file", "kubelet.sock: no such socket")
        lonely = Node(world, f"lonely-{uuid.uuid4().hex[:6]}")
        await world.api.create("/api/v1/nodes", {"metadata": {"name": lonely.name}})
        far = await lonely.annotated_pod("far", f"{card},NVIDIA,4096,30:;")

        async def both() -> list[str] | None:
            rows = []
            for each in (node, lonely):
                answer = await replica.http.post(
                    "/v1/adopt", json={"nodes": [each.name], "apply": True}
                )
                rows += answer.json().get("pods", [])
            return [row["sentence"] for row in rows] if len(rows) == 2 else None

        unreadable, nobody = await eventually(both, "the watch to know both pods")

        assert "are unavailable" in unreadable
        assert "no HAMi node-agent runs" in nobody
        assert await world.rows(pod) == await world.rows(far) == []


async def test_a_request_that_makes_no_sense_is_refused_with_what_would(world: World) -> None:
    replica = await world.replica()
    for body, error in (
        ({"apply": "yes"}, "apply is 'yes': expected true or false"),
        ({"nodes": "n1"}, "a list of names"),
        ({"nodes": ["nowhere"]}, "node nowhere has no cards"),
        ({"force": True}, "force: expected apply, nodes and believe_node"),
        ([], "expected {"),
    ):
        answer = await replica.http.post("/v1/adopt", json=body)

        assert answer.status_code == 400
        assert error in answer.json()["error"]
