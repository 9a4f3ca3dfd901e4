"""What the ledger makes of containers that their kubelet gave other cards than granted."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from hami_scheduler.bus.device_moves import GrantMoves
from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ContainerGrant,
    DeviceShare,
    Placement,
)
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import Conflict, InvalidRequest, Unavailable
from hamicommon.events import MoveReply, MoveRequest, WantedMove, moves_subject
from hamicommon.ledger.model import Draft, StateStep
from hamicommon.testing.ledger import FakeLedger

NODE = NodeName("n")


class Ledger(FakeLedger):
    """A node with cards of these sizes in MiB."""

    def __init__(self, **sizes_mib: int) -> None:
        super().__init__()
        for index, (name, memory_mib) in enumerate(sizes_mib.items()):
            card = GpuDevice(
                uuid=GpuUuid(name),
                index=index,
                vendor="NVIDIA",
                type="NVIDIA A100",
                slots=4,
                memory_mib=memory_mib,
                core_percent=100,
            )
            self.add_card(NODE, card)

    async def bound(self, pod: str, **slices_mib: int) -> Allocation:
        shares = tuple(
            DeviceShare(uuid=GpuUuid(card), vendor="NVIDIA", memory_mib=memory_mib, core_percent=0)
            for card, memory_mib in slices_mib.items()
        )
        container = ContainerGrant(index=0, name="main", role="app", shares=shares)
        draft = Draft(
            allocation_id=AllocationId(f"of-{pod}"),
            pod_uid=PodUid(pod),
            namespace="team",
            pod_name=pod,
            placement=Placement(node=NODE, containers=(container,)),
            lease_s=60,
        )
        await self.begin(draft)
        return await self.step(pod, AllocationState.BINDING, new_token=True)

    async def step(self, pod: str, target: AllocationState, **more: Any) -> Allocation:
        live = await self.live_of(PodUid(pod))
        assert live is not None
        sources = frozenset({live.state})
        step = StateStep(allocation_id=live.id, sources=sources, target=target, **more)
        change = await self.advance(step)
        assert change is not None
        return change.allocation

    def held_mib(self) -> dict[str, int]:
        return {uuid: card.used_memory_mib for uuid, card in self._cards.items()}


def onto(allocation: Allocation, *cards: str, **changes: Any) -> WantedMove:
    assert allocation.token is not None
    wanted = WantedMove(
        allocation_id=allocation.id, token=allocation.token, container="main", uuids=cards
    )
    return wanted.model_copy(update=changes)


async def ask(
    ledger: FakeLedger,
    owner: WantedMove,
    *partners: WantedMove,
    exchange: WantedMove | None = None,
    chosen: tuple[str, ...] = (),
) -> str:
    """`chosen`: pods whose annotations choose their cards."""
    moves = GrantMoves(
        store=ledger,
        view=Mock(),
        doubt_mirror=Mock(),
        takes_any_card=lambda uid: uid not in chosen,
    )
    request = MoveRequest(node=NODE, owner=owner, partners=partners, exchange=exchange)
    reply = await moves.respond(moves_subject(NODE), request.model_dump_json().encode())
    assert isinstance(reply, MoveReply)
    return reply.refused


async def test_two_grants_are_exchanged_on_full_cards() -> None:
    ledger = Ledger(a=100, b=100)
    one, two = await ledger.bound("one", a=100), await ledger.bound("two", b=100)

    for _ in range(2):
        assert await ask(ledger, onto(one, "b"), exchange=onto(two, "a")) == ""

    assert ledger.held_mib() == {"a": 100, "b": 100}
    rows = [await ledger.live_of(PodUid(pod)) for pod in ("one", "two")]
    assert [row.containers[0].shares[0].uuid for row in rows if row] == ["b", "a"]


@pytest.mark.parametrize("room_mib", [100, 200])
async def test_a_pod_that_chose_its_card_is_exchanged_for_nobody(room_mib: int) -> None:
    ledger = Ledger(a=100, b=room_mib)
    one, two = await ledger.bound("one", a=100), await ledger.bound("two", b=100)

    refused = await ask(ledger, onto(one, "b"), exchange=onto(two, "a"), chosen=("two",))

    assert (refused == "") == (room_mib == 200)
    assert await ledger.live_of(PodUid("two")) == two


async def test_an_exchange_with_one_that_is_over_is_a_move_of_the_owner() -> None:
    ledger = Ledger(a=100, b=100)
    one, two = await ledger.bound("one", a=100), await ledger.bound("two", b=100)
    await ledger.step("two", AllocationState.RELEASED)

    assert await ask(ledger, onto(one, "b"), exchange=onto(two, "a")) == ""

    assert ledger.held_mib() == {"a": 0, "b": 100}


async def test_a_swap_on_full_cards_is_one_move() -> None:
    ledger = Ledger(a=100, b=900)
    small, big = await ledger.bound("small", a=100), await ledger.bound("big", b=100)

    assert await ask(ledger, onto(small, "b"), onto(big, "a")) == ""

    assert ledger.held_mib() == {"a": 100, "b": 100}
    assert [event.state for event in ledger.history(PodUid("big"))][-1] == "binding"


async def test_who_asks_again_is_answered_the_same_and_nothing_more_happens() -> None:
    ledger = Ledger(a=100, b=100)
    one, two = await ledger.bound("one", a=100), await ledger.bound("two", b=100)

    for _ in range(3):
        assert await ask(ledger, onto(one, "b"), onto(two, "a")) == ""
    assert await ask(ledger, onto(two, "a"), onto(one, "b")) == ""

    assert len(ledger.history(PodUid("one"))) == len(ledger.history(PodUid("two"))) == 3


async def test_a_partner_without_room_keeps_nobody_else_from_starting() -> None:
    ledger = Ledger(a=100, b=1000)
    small, big = await ledger.bound("small", a=100), await ledger.bound("big", b=900)

    assert await ask(ledger, onto(small, "b"), onto(big, "a")) == ""

    assert ledger.held_mib() == {"a": 0, "b": 1000}
    assert "can no longer hold" in await ask(ledger, onto(big, "a"))


async def test_a_card_without_room_is_refused_and_nothing_changes() -> None:
    ledger = Ledger(a=100, b=900)
    small, _big = await ledger.bound("small", a=100), await ledger.bound("big", b=900)

    assert "card b on n can no longer hold the slice" in await ask(ledger, onto(small, "b"))

    assert ledger.held_mib() == {"a": 100, "b": 900}
    assert await ledger.get(small.id) == small


async def test_containers_of_one_pod_change_places_among_themselves() -> None:
    ledger = Ledger(a=100, b=100)
    draft = Draft(
        allocation_id=AllocationId("both"),
        pod_uid=PodUid("pod"),
        namespace="team",
        pod_name="pod",
        placement=Placement(
            node=NODE,
            containers=tuple(
                ContainerGrant(
                    index=index,
                    name=name,
                    role="app",
                    shares=(
                        DeviceShare(
                            uuid=GpuUuid(card), vendor="NVIDIA", memory_mib=mib, core_percent=0
                        ),
                    ),
                )
                for index, (name, card, mib) in enumerate((("main", "a", 40), ("side", "b", 100)))
            ),
        ),
        lease_s=60,
    )
    await ledger.begin(draft)
    pod = await ledger.step("pod", AllocationState.BINDING, new_token=True)

    assert await ask(ledger, onto(pod, "b"), onto(pod, "a", container="side")) == ""

    assert ledger.held_mib() == {"a": 100, "b": 40}


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        pytest.param({"token": 99}, "is not the pod's any more", id="an old token"),
        pytest.param({"allocation_id": "nobody's"}, "n has no grant", id="no such grant"),
        pytest.param({"container": "side"}, "has no container side", id="no such container"),
        pytest.param({"uuids": ("a", "b")}, "granted 1 cards, its node names 2", id="too many"),
    ],
)
async def test_what_does_not_add_up_is_refused_with_the_reason(
    changes: dict[str, Any], answer: str
) -> None:
    ledger = Ledger(a=100, b=100)
    pod = await ledger.bound("pod", a=100)

    assert answer in await ask(ledger, onto(pod, "b", **changes))
    assert await ledger.get(pod.id) == pod


async def test_a_grant_that_was_released_moves_nowhere() -> None:
    ledger = Ledger(a=100, b=100)
    pod = await ledger.bound("pod", a=100)
    await ledger.step("pod", AllocationState.RELEASED)

    assert "(released)" in await ask(ledger, onto(pod, "b"))
    assert ledger.held_mib() == {"a": 0, "b": 0}


async def test_a_node_asks_for_its_own_cards_alone() -> None:
    ledger = Ledger(a=100)
    pod = await ledger.bound("pod", a=100)
    moves = GrantMoves(
        store=ledger, view=Mock(), doubt_mirror=Mock(), takes_any_card=lambda _: True
    )
    body = MoveRequest(node="other", owner=onto(pod, "a")).model_dump_json().encode()

    with pytest.raises(InvalidRequest, match="came on"):
        await moves.respond(moves_subject(NODE), body)
    reply = await moves.respond(moves_subject("other"), body)

    assert "other has no grant" in reply.refused


async def test_a_lost_race_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(a=100, b=100)
    pod = await ledger.bound("pod", a=100)

    async def locked(_moves: object) -> None:
        raise Conflict("ledger: lost a race")

    monkeypatch.setattr(ledger, "move", locked)
    with pytest.raises(Unavailable):
        await ask(ledger, onto(pod, "b"))
