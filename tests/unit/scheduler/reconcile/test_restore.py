"""A grant that the ledger lost is restored only from our signed data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hami_scheduler.reconcile.ungranted_pods import (
    ANSWER_KEPT_S,
    PATIENCE_S,
    GrantRestorer,
    Outcome,
    as_held,
)
from hamicommon.domain.allocations import (
    AllocationState,
)
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import HamiError, NotFound, Unavailable
from hamicommon.events import HeldContainer, NodeHoldings
from hamicommon.grants.grant import Grant, grant_of, read_signed
from hamicommon.grants.signing import public_key, sign
from hamicommon.k8s.annotations import GRANT
from hamicommon.ledger.model import StateStep

from tests.contract.ledger.allocation_stores import container, draft
from tests.fakes.ledger import FakeLedger
from tests.unit.devices import a_device

S = AllocationState
NODE = NodeName("node-a")
KEY = Ed25519PrivateKey.generate()
DRAFT = replace(
    draft("uid-1", container(("0", 600, 10)), node=NODE, pod_name="train"),
    allocation_id=AllocationId("00000000-0000-4000-8000-000000000001"),
)


def ledger(*cards: str) -> FakeLedger:
    """One card with room for one such slice, and `cards` beside it."""
    fake = FakeLedger(quota_of=lambda _: {})
    for index, uuid in enumerate(("GPU-0", *cards)):
        fake.add_card(NODE, card(uuid, index))
    return fake


def card(uuid: str, index: int) -> GpuDevice:
    return a_device(uuid, index=index, slots=4, memory_mib=1000)


async def grant_pod(fake: FakeLedger) -> Grant:
    """Grant a pod, as the scheduler does."""
    change = await fake.begin(DRAFT)
    # Long ago: the signature's expiry is for agents that can't ask the ledger.
    return grant_of(change.allocation, expires_at=datetime.now(UTC) - timedelta(days=1))


def pod_with(text: str, **changes: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": "Running", "containerStatuses": [{"containerID": "c"}]}
    return {
        "metadata": {
            "uid": changes.get("uid", "uid-1"),
            "namespace": "team",
            "name": "train",
            "annotations": {GRANT: text} if text else {},
        },
        "spec": {"nodeName": changes.get("node", NODE)},
        "status": changes.get("status", status),
    }


@dataclass
class Node:
    """A node whose agent reports the kubelet's checkpoint, or the error why it does not."""

    held: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"main": ("GPU-0",)})
    error: HamiError | None = None
    readable: bool = True
    ours: bool = True
    now_s: float = 0.0

    async def holdings(self, node: NodeName) -> NodeHoldings:
        if self.error is not None:
            raise self.error
        return NodeHoldings(
            node=node,
            read_at=datetime.now(UTC),
            readable=self.readable,
            containers=tuple(
                HeldContainer(
                    pod_uid="uid-1",
                    container=container,
                    device_ids=tuple(f"{card}-7" for card in cards),
                    cards_of_ids=cards,
                    ours=self.ours,
                )
                for container, cards in self.held.items()
            ),
        )


async def nothing(allocation_id: AllocationId) -> bool:
    """Report that the row equals its history."""
    del allocation_id
    return False


def restorer(
    fake: FakeLedger,
    node: Node | None = None,
    put_back: Callable[[AllocationId], Awaitable[bool]] = nothing,
) -> GrantRestorer:
    witness = node or Node()
    return GrantRestorer(
        store=fake,
        witness=witness,
        put_back=put_back,
        clock=lambda: witness.now_s,
        apply=lambda counters: None,
        read_signed=lambda text: read_signed(text, public_key(KEY)),
        quota_of=lambda _: {},
    )


async def signed_grant() -> str:
    """Return the signed grant that the pod carries, from a ledger that is lost."""
    return sign(await grant_pod(ledger()), KEY)


@pytest.mark.parametrize(
    ("statuses", "state"),
    [([{"containerID": "c"}], S.ALLOCATED), ([], S.BOUND)],
    ids=["runs", "has not started"],
)
async def test_a_grant_that_the_ledger_never_heard_of_is_entered_under_its_own_id(
    statuses: list[dict[str, str]], state: S
) -> None:
    fake = ledger()
    pod = pod_with(await signed_grant(), status={"phase": "Running", "containerStatuses": statuses})

    assert await restorer(fake).restore(pod) is Outcome.RESTORED

    back = await fake.get(DRAFT.allocation_id)
    assert back is not None
    assert (back.state, back.pod_uid, back.node) == (state, "uid-1", NODE)
    assert back.containers == DRAFT.placement.containers
    assert fake.usage(GpuUuid("GPU-0")).used_memory_mib == 600


async def test_it_happens_once() -> None:
    fake = ledger()
    pod = pod_with(await signed_grant())

    assert await restorer(fake).restore(pod) is Outcome.RESTORED
    assert await restorer(fake).restore(pod) is Outcome.NONE

    assert fake.usage(GpuUuid("GPU-0")).used_memory_mib == 600


async def test_it_is_counted_where_there_is_no_room_left() -> None:
    """The pod runs there, whatever was granted since."""
    fake = ledger()
    text = await signed_grant()
    other = AllocationId("00000000-0000-4000-8000-000000000002")
    await fake.begin(replace(DRAFT, allocation_id=other, pod_uid=PodUid("uid-2")))

    assert await restorer(fake).restore(pod_with(text)) is Outcome.RESTORED

    assert fake.usage(GpuUuid("GPU-0")).used_memory_mib == 1200


async def test_a_grant_that_ended_stays_ended() -> None:
    fake = ledger()
    text = sign(await grant_pod(fake), KEY)
    await fake.advance(
        StateStep(
            allocation_id=DRAFT.allocation_id, sources=frozenset({S.BINDING}), target=S.RELEASED
        )
    )

    assert await restorer(fake).restore(pod_with(text)) is Outcome.NONE

    assert fake.usage(GpuUuid("GPU-0")).used_memory_mib == 0


async def test_a_grant_that_ended_without_an_event_is_live_again() -> None:
    fake = ledger()
    text = sign(await grant_pod(fake), KEY)
    asked: list[AllocationId] = []

    async def put_back(allocation_id: AllocationId) -> bool:
        asked.append(allocation_id)
        return True

    assert await restorer(fake, put_back=put_back).restore(pod_with(text)) is Outcome.LATER

    assert asked == [DRAFT.allocation_id]


@pytest.mark.parametrize(
    "changes",
    [{"uid": "uid-2"}, {"node": "node-b"}],
    ids=["of another pod", "of another node"],
)
async def test_a_grant_copied_from_elsewhere_makes_none(changes: dict[str, str]) -> None:
    fake = ledger()

    assert await restorer(fake).restore(pod_with(await signed_grant(), **changes)) is Outcome.NONE


async def test_what_a_user_writes_makes_none() -> None:
    fake = ledger()
    grant = await grant_pod(ledger())
    forged = [
        "",
        "no grant",
        sign(grant, Ed25519PrivateKey.generate()),
        sign(grant, KEY)[:-8] + "AAAAAAAA",
    ]

    for text in forged:
        assert await restorer(fake).restore(pod_with(text)) is Outcome.NONE

    assert await fake.live() == []


async def test_a_card_that_is_not_there_is_left_to_the_next_round() -> None:
    empty = FakeLedger(quota_of=lambda _: {})

    assert await restorer(empty).restore(pod_with(await signed_grant())) is Outcome.LATER


async def test_a_pod_that_was_moved_since_is_entered_where_its_kubelet_has_it() -> None:
    fake = ledger("GPU-1")
    node = Node(held={"main": ("GPU-1",)})

    assert await restorer(fake, node).restore(pod_with(await signed_grant())) is Outcome.RESTORED

    back = await fake.get(DRAFT.allocation_id)
    assert back is not None
    assert back.containers == (container(("1", 600, 10)),)
    assert fake.usage(GpuUuid("GPU-0")).used_memory_mib == 0
    assert fake.usage(GpuUuid("GPU-1")).used_memory_mib == 600
    assert "on the cards that its kubelet's checkpoint has" in back.reason


@pytest.mark.parametrize(
    "node",
    [
        Node(error=NotFound("no HAMi node-agent runs on node-a")),
        Node(error=Unavailable("the bus is away")),
        Node(readable=False),
    ],
    ids=["no agent", "no answer", "no checkpoint"],
)
async def test_a_node_that_reports_nothing_is_asked_again_before_the_signed_cards_count(
    node: Node,
) -> None:
    fake = ledger()
    asking = restorer(fake, node)
    pod = pod_with(await signed_grant())

    assert await asking.restore(pod) is Outcome.LATER
    node.now_s = PATIENCE_S - 1
    assert await asking.restore(pod) is Outcome.LATER
    node.now_s = PATIENCE_S
    assert await asking.restore(pod) is Outcome.RESTORED

    back = await fake.get(DRAFT.allocation_id)
    assert back is not None
    assert back.containers == DRAFT.placement.containers
    assert "its node did not report whether it is still on these cards" in back.reason


async def test_a_node_that_answers_late_is_believed() -> None:
    fake = ledger("GPU-1")
    node = Node(held={"main": ("GPU-1",)}, error=Unavailable("the bus is away"))
    asking = restorer(fake, node)
    pod = pod_with(await signed_grant())
    assert await asking.restore(pod) is Outcome.LATER

    node.error = None
    node.now_s = ANSWER_KEPT_S
    assert await asking.restore(pod) is Outcome.RESTORED

    assert fake.usage(GpuUuid("GPU-1")).used_memory_mib == 600


@pytest.mark.parametrize(
    "node",
    [Node(held={}), Node(held={"main": ("GPU-1",)}, ours=False), Node(held={"main": ("a", "b")})],
    ids=["not in the checkpoint", "another plugin's answer", "another number of cards"],
)
async def test_a_checkpoint_without_our_answer_leaves_the_signed_cards(node: Node) -> None:
    fake = ledger()

    assert await restorer(fake, node).restore(pod_with(await signed_grant())) is Outcome.RESTORED

    assert fake.usage(GpuUuid("GPU-0")).used_memory_mib == 600


def test_slices_whose_card_is_held_stay_there() -> None:
    signed_for = container(("0", 100, 10), ("1", 200, 10), ("2", 300, 10))
    held = HeldContainer(
        pod_uid="uid-1",
        container="main",
        device_ids=("a", "b", "c"),
        cards_of_ids=("GPU-0", "GPU-2", "GPU-9"),
        ours=True,
    )

    [found] = as_held([signed_for], PodUid("uid-1"), [held])

    assert [(share.uuid, share.memory_mib) for share in found.shares] == [
        ("GPU-0", 100),
        ("GPU-9", 200),
        ("GPU-2", 300),
    ]
