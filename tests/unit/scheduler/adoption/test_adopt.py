"""Adoption in a running cluster: the state that the watch showed may be outdated."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hami_scheduler.adoption.adopt import Adopter
from hami_scheduler.adoption.rules import AdoptionResult, Claim, Why, claim_of, held_twice, judge
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_events import Announcer
from hamicommon import device_config
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.errors import NotFound, Unavailable
from hamicommon.events import HeldContainer, NodeHoldings
from hamicommon.k8s.types import Json
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from tests.fakes.pods import FakeGrantAnnouncer, FakePodApi, FakePodEvents
from tests.unit.devices import a_device
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
            a_device(CARD, type="A100", memory_mib=8192),
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
            pods=self.pods,
            grants=self.grants,
            announcer=Announcer(self.events),
            instruments=SchedulerInstruments(),
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
        (NotFound("no HAMi node-agent runs on n1"), "replace HAMi's device plugin"),
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

    async def raise_unavailable(_node: str) -> None:
        raise Unavailable("Postgres is not available")

    monkeypatch.setattr(world.ledger, "live", raise_unavailable)

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


# --- which pods of HAMi are adopted: the annotation claims, the node proves, and both must agree


ALLOCATED = "hami.io/vgpu-devices-allocated"
A, B = (f"GPU-{letter * 8}-1111-2222-3333-444444444444" for letter in "ab")


def card(uuid: str) -> DeviceUsage:
    return DeviceUsage(device=a_device(uuid))


CARDS = {GpuUuid(uuid): card(uuid) for uuid in (A, B)}


def a_pod(
    written: str | None, *, names: tuple[str, ...] = ("main",), init: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A pod of HAMi's: every container asks for one slice of 4096 MiB and 30 % of the cores."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
    annotations = {"hami.io/vgpu-node": "n1"}
    if written is not None:
        annotations[ALLOCATED] = written
    return {
        "metadata": {
            "uid": "uid-1",
            "namespace": "team",
            "name": "train",
            "annotations": annotations,
        },
        "spec": {
            "nodeName": "n1",
            "initContainers": [{"name": n, "resources": {"limits": limits}} for n in init],
            "containers": [{"name": n, "resources": {"limits": limits}} for n in names],
        },
    }


def held_container(container: str = "main", **changes: Any) -> HeldContainer:
    testimony = HeldContainer(
        pod_uid="uid-1",
        container=container,
        device_ids=(f"{A}-3",),
        cards_of_ids=(GpuUuid(A),),
        visible=(A,),
        memory_mib=(4096,),
        core_percent=30,
    )
    return testimony.model_copy(update=changes)


def verdict(
    pod: dict[str, Any],
    *testimonies: HeldContainer,
    believe_node: bool = False,
    twice: dict[str, frozenset[PodUid]] | None = None,
) -> AdoptionResult:
    claim = claim_of(pod, VENDORS)
    assert claim is not None
    return judge(
        claim,
        testimonies,
        silence="nobody saw it",
        cards=CARDS,
        asked=pod_request(pod, VENDORS),
        held_twice=twice or {},
        believe_node=believe_node,
    )


def test_a_pod_whose_annotation_and_node_agree_is_adopted_with_its_evidence() -> None:
    found = verdict(a_pod(f"{A},NVIDIA,4096,30:;"), held_container())

    assert found.refused is None
    [container] = found.containers
    [share] = container.shares
    assert (container.name, container.role) == ("main", "app")
    assert (share.uuid, share.memory_mib, share.core_percent, share.type) == (A, 4096, 30, "")
    [evidence] = found.evidence["containers"]
    assert evidence["device_ids"] == [f"{A}-3"]
    assert evidence["answer"]


def test_the_card_that_the_container_sees_counts_not_the_one_of_its_ids() -> None:
    # HAMi shows the annotated card whatever ids the kubelet took, unless it prefers ids.
    ids = {"device_ids": (f"{B}-0",), "cards_of_ids": (GpuUuid(B),)}

    found = verdict(a_pod(f"{A},NVIDIA,4096,30:;"), held_container(**ids))

    assert found.containers[0].shares[0].uuid == A


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(f";{A},NVIDIA,4096,30:;", id="by position"),
        pytest.param(f"{A},NVIDIA,4096,30:;", id="HAMi lost the empty entry (TRAP-1)"),
        pytest.param(f";{A},NVIDIA,4096,30:;;;", id="with the entries that its plugin adds"),
    ],
)
def test_the_node_shows_which_container_an_entry_is_for(written: str) -> None:
    pod = a_pod(written, names=("sidecar", "cuda"))

    found = verdict(pod, held_container("cuda"))

    assert [(c.name, len(c.shares)) for c in found.containers] == [("sidecar", 0), ("cuda", 1)]


def test_init_containers_are_adopted_with_their_own_slices() -> None:
    pod = a_pod(f"{A},NVIDIA,8192,10:;{A},NVIDIA,4096,30:;", init=("prepare",))

    found = verdict(
        pod, held_container(), held_container("prepare", memory_mib=(8192,), core_percent=10)
    )

    assert [(c.name, c.role, c.shares[0].memory_mib) for c in found.containers] == [
        ("prepare", "init", 8192),
        ("main", "app", 4096),
    ]


@pytest.mark.parametrize(
    ("pod", "testimony", "why"),
    [
        pytest.param(a_pod(f"{A},NVIDIA,4096,30:;"), (), Why.NO_EVIDENCE, id="no evidence"),
        pytest.param(
            a_pod(f"{A},NVIDIA,1,0:;"), (held_container(),), Why.DISAGREE, id="annotation has less"
        ),
        pytest.param(
            a_pod(f"{B},NVIDIA,4096,30:;"), (held_container(),), Why.DISAGREE, id="another card"
        ),
        pytest.param(
            a_pod(f"{A},NVIDIA,4096,30:;", names=("x", "y")),
            (held_container("x"), held_container("y")),
            Why.DISAGREE,
            id="fewer containers than the node",
        ),
        pytest.param(
            a_pod(f"{A},NVIDIA,4096,30:;"),
            (held_container(device_ids=(f"{A}-0", f"{B}-1")),),
            Why.DISAGREE,
            id="more ids than cards",
        ),
        pytest.param(
            a_pod("GPU-x,NVIDIA,4096,30:;"),
            (held_container(visible=("GPU-x",)),),
            Why.UNKNOWN_CARD,
            id="a card nobody reports",
        ),
        pytest.param(
            a_pod("GPU-x,NVIDIA:;"), (held_container(),), Why.MALFORMED, id="fields missing"
        ),
        pytest.param(
            a_pod(f"{A},NVIDIA,much,30:;"), (held_container(),), Why.MALFORMED, id="no number"
        ),
        pytest.param(
            a_pod(f"{A},NVIDIA,4096,30:;"),
            (held_container(ours=True),),
            Why.NOT_HAMI,
            id="our own answer",
        ),
        pytest.param(
            a_pod(f"{A},NVIDIA,4096,30:;"),
            (held_container(memory_mib=()),),
            Why.NOT_HAMI,
            id="an answer without HAMi's limits",
        ),
        pytest.param(
            a_pod(f"{A},NVIDIA,4096,30:;"), (held_container(visible=("MIG-1",)),), Why.MIG, id="MIG"
        ),
    ],
)
def test_what_is_not_proven_is_refused(
    pod: dict[str, Any], testimony: tuple[HeldContainer, ...], why: Why
) -> None:
    found = verdict(pod, *testimony)

    assert (found.refused, found.containers) == (why, ())
    assert found.sentence


def test_an_annotation_of_another_node_is_refused() -> None:
    pod = a_pod(f"{A},NVIDIA,4096,30:;")
    pod["spec"]["nodeName"] = "n2"

    assert verdict(pod, held_container()).refused is Why.WRONG_NODE


def test_a_pod_with_devices_of_another_vendor_is_refused() -> None:
    pod = a_pod(f"{A},NVIDIA,4096,30:;")
    pod["metadata"]["annotations"]["hami.io/dcu-devices-allocated"] = "DCU-0,DCU,1024,10:;"

    assert verdict(pod, held_container()).refused is Why.OTHER_VENDOR


def test_the_node_is_believed_where_the_operator_chooses_so() -> None:
    found = verdict(a_pod(f"{A},NVIDIA,1,0:;"), held_container(), believe_node=True)

    assert found.containers[0].shares[0].memory_mib == 4096
    assert "its annotation has" in found.sentence


def test_a_node_that_cannot_read_the_limits_is_not_believed() -> None:
    found = verdict(a_pod(f"{A},NVIDIA,1,0:;"), held_container(visible=None), believe_node=True)

    assert found.refused is Why.DISAGREE


@pytest.mark.parametrize(
    ("written", "refused"),
    [
        pytest.param(f"{A},NVIDIA,4096,30:;", None, id="as the spec asks"),
        pytest.param(f"{A},NVIDIA,4095,30:;", Why.DISAGREE, id="other memory"),
        pytest.param(f"{A},NVIDIA,4096,0:;", Why.DISAGREE, id="other cores"),
        pytest.param(f"{B},NVIDIA,4096,30:;", Why.DISAGREE, id="other card"),
    ],
)
def test_without_the_answer_the_amounts_must_be_what_the_spec_asks_for(
    written: str, refused: Why | None
) -> None:
    blind = held_container(visible=None, memory_mib=(), core_percent=None)

    assert verdict(a_pod(written), blind).refused is refused


def test_a_device_that_two_live_pods_claim_is_given_to_neither() -> None:
    live = frozenset({PodUid("uid-1"), PodUid("uid-2")})
    ids = {PodUid(f"uid-{n}"): (f"{A}-3",) for n in (1, 2, 3)}
    twice = held_twice(ids, live)

    found = verdict(a_pod(f"{A},NVIDIA,4096,30:;"), held_container(), twice=twice)

    assert twice == {f"{A}-3": live}
    assert found.refused is Why.HELD_TWICE
    assert "uid-2" in found.sentence


def test_a_pod_on_no_node_or_without_devices_claims_nothing() -> None:
    unbound = a_pod(f"{A},NVIDIA,4096,30:;")
    del unbound["spec"]["nodeName"]

    assert claim_of(unbound, VENDORS) is None
    assert claim_of(a_pod(None), VENDORS) is None
    claim = claim_of(a_pod(f"{A},NVIDIA,4096,30:;"), VENDORS)
    assert isinstance(claim, Claim)
    assert claim.node == NodeName("n1")
