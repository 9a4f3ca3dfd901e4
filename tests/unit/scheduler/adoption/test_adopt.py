"""Adopting while the cluster goes on: what the watch showed may be over when it is written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hami_scheduler.adoption.adopt import Adopter
from hami_scheduler.adoption.entries import AdoptionEntries
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_events import Announcer
from hamicommon import device_config
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.errors import NotFound, Unavailable
from hamicommon.events import HeldContainer, NodeHoldings
from hamicommon.k8s.types import Json
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from tests.fakes.pods import FakeGrantAnnouncer, FakePodApi, FakePodEvents
from tests.unit.scheduler.readable_ledger import ReadableLedger
from tests.unit.scheduler.states import state_of

VENDORS = Vendors.from_config(device_config.load(None))
NODE, CARD = NodeName("n1"), GpuUuid("GPU-0")


class World:
    """One node of HAMi's with one pod, as the watch, the API server and the agent have it."""

    def __init__(self) -> None:
        self.ledger = ReadableLedger()
        self.ledger.add_card(
            NODE,
            GpuDevice(
                uuid=CARD,
                index=0,
                vendor="NVIDIA",
                type="A100",
                slots=10,
                memory_mib=8192,
                core_percent=100,
            ),
        )
        self.pods, self.grants, self.events = FakePodApi(), FakeGrantAnnouncer(), FakePodEvents()
        self.watched: dict[PodUid, Json] = {}
        self.held: list[HeldContainer] = []
        self.silent: Unavailable | NotFound | None = None

    async def holdings(self, node: NodeName) -> NodeHoldings:
        if self.silent is not None:
            raise self.silent
        return NodeHoldings(node=node, read_at=datetime.now(UTC), containers=tuple(self.held))

    def run(self, name: str) -> Json:
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}
        pod = self.pods.put(
            {
                "metadata": {
                    "name": name,
                    "uid": f"uid-{name}",
                    "annotations": {
                        "hami.io/vgpu-node": NODE,
                        "hami.io/vgpu-devices-allocated": f"{CARD},NVIDIA,4096,0:;",
                    },
                },
                "spec": {
                    "nodeName": NODE,
                    "containers": [{"name": "main", "resources": {"limits": limits}}],
                },
                "status": {"phase": "Running"},
            }
        )
        uid = pod["metadata"]["uid"]
        self.watched[uid] = pod
        self.held.append(
            HeldContainer(
                pod_uid=uid,
                namespace="default",
                pod_name=name,
                container="main",
                device_ids=(f"{CARD}-{len(self.held)}",),
                cards_of_ids=(CARD,),
                visible=(CARD,),
                memory_mib=(4096,),
                core_percent=0,
            )
        )
        return pod

    async def adopt(self, **wanted: Any) -> Json:
        view = state_of(self.ledger, VENDORS.rules)
        adopter = Adopter(
            ledger=self.ledger,
            entries=AdoptionEntries(
                ledger=self.ledger,
                pods=self.pods,
                grants=self.grants,
                view=view,
                announcer=Announcer(self.events),
                instruments=SchedulerInstruments(),
                vendors=VENDORS,
            ),
            witness=self,
            view=view,
            vendors=VENDORS,
            known_pods=self.watched,
            synced=lambda: True,
            request_of=lambda pod: pod_request(dict(pod), VENDORS),
        )
        return await adopter.answer({"apply": True, **wanted})


def whys(answer: Json) -> list[str]:
    return [row["why"] or row["outcome"] for row in answer["pods"]]


async def test_a_pod_that_was_deleted_since_is_not_adopted() -> None:
    world = World()
    world.run("gone")
    world.pods.remove("default", "gone")

    assert whys(await world.adopt()) == ["gone"]
    assert world.ledger.usage(CARD).used_slots == 0


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"status": {"phase": "Succeeded"}}, id="it is over"),
        pytest.param(
            {"metadata": {"name": "old", "uid": "another"}}, id="another one has its name"
        ),
        pytest.param({"spec": {"nodeName": "n2", "containers": []}}, id="it is on another node"),
    ],
)
async def test_a_pod_that_is_another_by_now_is_not_adopted(change: Json) -> None:
    world = World()
    pod = world.run("old")
    world.pods.put({**pod, **change})

    assert whys(await world.adopt()) == ["gone"]
    assert world.ledger.usage(CARD).used_slots == 0


async def test_adoptions_are_published_to_the_node_and_on_the_pod() -> None:
    world = World()
    world.run("old")

    assert whys(await world.adopt()) == ["adopted"]

    [grant] = world.grants.granted_ones
    assert (grant.pod_uid, grant.answered, grant.version) == ("uid-old", True, 2)
    assert [event.reason for event in world.events.shown] == ["Adopted"]


async def test_without_the_bus_an_adoption_stands_all_the_same() -> None:
    world = World()
    world.run("old")
    world.grants.away = True

    assert whys(await world.adopt()) == ["adopted"]
    assert whys(await world.adopt()) == ["held"]


@pytest.mark.parametrize(
    ("silence", "sentence"),
    [
        (NotFound("no node-agent of ours runs on n1"), "put our node-agent in the place"),
        (Unavailable("no answer within 5 s"), "did not answer (no answer within 5 s); try again"),
    ],
)
async def test_a_silent_node_proves_nothing(silence: NotFound | Unavailable, sentence: str) -> None:
    world = World()
    world.run("old")
    world.silent = silence

    answer = await world.adopt()

    assert whys(answer) == ["no-evidence"]
    assert sentence in answer["pods"][0]["sentence"]


async def test_what_a_dry_run_would_overfill_is_reported_before_it_is_written() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.run(name)

    dry, done = await world.adopt(apply=False), await world.adopt()

    assert dry["overfull"] == done["overfull"]
    assert dry["overfull"][0]["used"]["memory_mib"] == 3 * 4096
    assert world.ledger.usage(CARD).used_memory_mib == 3 * 4096


async def test_a_ledger_that_goes_away_while_nodes_are_judged_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.run("old")

    async def away(_node: str) -> None:
        raise Unavailable("Postgres is not available")

    monkeypatch.setattr(world.ledger, "live", away)

    with pytest.raises(Unavailable, match="Postgres is not available"):
        await world.adopt()


async def test_a_mistake_of_ours_while_nodes_are_judged_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.run("old")

    async def odd(_node: str) -> None:
        raise TypeError("nobody thought of this")

    monkeypatch.setattr(world.ledger, "live", odd)

    with pytest.raises(ExceptionGroup) as caught:
        await world.adopt()

    assert caught.group_contains(TypeError)
