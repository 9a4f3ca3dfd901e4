"""Placing pods on the state in memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from hami_scheduler.ledger.cluster_state import ClusterState, Forgotten
from hami_scheduler.placement.decisions import DecisionQueue, DecisionTrace
from hami_scheduler.placement.placer import OverQuota, Placer
from hami_scheduler.pod_events import Announcer
from hami_scheduler.ports.cluster import PodEvent
from hami_scheduler.ports.ledger import DecisionRow
from hamicommon import device_config
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import Policy
from hamicommon.ledger.model import Draft
from hamicommon.vendors.pod_request import PodRequests
from hamicommon.vendors.registry import Vendors

from tests.unit.devices import a_device
from tests.unit.scheduler.readable_ledger import ReadableLedger

VENDORS = Vendors.from_config(device_config.load(None))
REQUESTS = PodRequests(vendors=VENDORS, defaults=Policy())
NODE, OTHER = NodeName("n"), NodeName("o")
MEMORY = "nvidia.com/gpumem"


class Nowhere:
    """A log and an event sink that keep nothing."""

    async def record(self, decisions: Sequence[DecisionRow]) -> None:
        del decisions

    def emit(self, event: PodEvent) -> None:
        del event


async def _at_once() -> None:
    pass


def recording() -> DecisionQueue:
    """A queue that writes nothing down."""
    return DecisionQueue(Nowhere(), Announcer(Nowhere()), until_idle=_at_once)


def pod(name: str, *, namespace: str = "default", **limits: str) -> dict[str, Any]:
    asked = {"gpu": "1", "gpumem": "100", **limits}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": name},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "resources": {
                        "limits": {
                            f"nvidia.com/{key.replace('_', '-')}": text
                            for key, text in asked.items()
                            if text
                        }
                    },
                }
            ]
        },
    }


async def placing(
    *cards: int, slots: int = 8, node: NodeName = NODE, quota: int | None = None
) -> tuple[Placer, ClusterState]:
    """A placer over cards of these sizes in MiB."""
    ledger = ReadableLedger()
    for index, memory_mib in enumerate(cards):
        device = a_device(
            f"GPU-{index}", index=index, type="A100", slots=slots, memory_mib=memory_mib
        )
        ledger.add_card(node, device)
    if quota is not None:
        ledger.set_quota("default", MEMORY, quota)
    state = ClusterState(ledger, quota_store=ledger, grants=ledger, rules=VENDORS.rules, ttl_s=60)
    await state.load()
    return Placer(state=state, requests=REQUESTS, recorder=recording(), binding_s=60), state


def place(placer: Placer, body: dict[str, Any], *nodes: NodeName) -> Any:
    trace = DecisionTrace(pod=body, started=time.perf_counter(), candidates=1)
    return placer.place(REQUESTS.of(body), nodes or (NODE,), trace)


def cards_of(draft: Any) -> list[str]:
    assert isinstance(draft, Draft)
    return [share.uuid for c in draft.placement.containers for share in c.shares]


async def test_each_placement_counts_for_the_next() -> None:
    placer, _ = await placing(*[1000] * 4, slots=1)

    found = [place(placer, pod(f"p{number}")) for number in range(5)]

    assert len({uuid for draft in found[:4] for uuid in cards_of(draft)}) == 4
    assert found[4].refusal is not None


async def test_a_forgotten_placement_is_free_again() -> None:
    placer, state = await placing(1000, slots=1)
    place(placer, pod("a"))
    assert place(placer, pod("b")).refusal is not None

    assert state.forget(PodUid("a"), Forgotten.GIVEN_UP)

    assert cards_of(place(placer, pod("b"))) == ["GPU-0"]


async def test_a_pod_that_comes_again_is_placed_without_its_earlier_placement() -> None:
    placer, state = await placing(1000, slots=1)
    first = place(placer, pod("a"))

    again = place(placer, pod("a"))

    assert cards_of(again) == cards_of(first)
    assumed = state.assumption(PodUid("a"))
    assert assumed is not None
    assert assumed.draft is again


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"gpu": "2"}, id="several-cards"),
        pytest.param({"gpucores": "100"}, id="a-whole-card"),
        pytest.param({"gpumem": "", "gpumem_percentage": "50"}, id="a-percentage"),
    ],
)
async def test_every_kind_of_pod_is_assumed(limits: dict[str, str]) -> None:
    placer, state = await placing(1000, 1000)

    cards = cards_of(place(placer, pod("a", **limits)))

    for usage in (card.usage for card in state.cluster.cards(NODE)):
        assert usage.used_slots == cards.count(usage.device.uuid)


async def test_a_quota_counts_what_is_assumed() -> None:
    placer, state = await placing(1000, quota=250)
    for name in "ab":
        place(placer, pod(name))

    with pytest.raises(OverQuota) as caught:
        place(placer, pod("c"))

    assert (caught.value.quota.limit, caught.value.quota.used) == (250, 200)
    assert state.assumption(PodUid("c")) is None
    state.forget(PodUid("a"), Forgotten.GIVEN_UP)
    assert cards_of(place(placer, pod("c"))) == ["GPU-0"]
    assert cards_of(place(placer, pod("d", namespace="free"))) == ["GPU-0"]


async def test_a_percentage_goes_to_a_card_whose_part_the_quota_has_room_for() -> None:
    placer, _ = await placing(8000, 1000, quota=600)

    draft = place(placer, pod("a", gpumem="", gpumem_percentage="50"))

    assert cards_of(draft) == ["GPU-1"]
