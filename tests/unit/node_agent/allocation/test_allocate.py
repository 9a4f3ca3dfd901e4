"""Allocate answers with the grant in flight, and with the same answer when it is asked again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
from hami_node_agent.allocation.allocate import Allocate
from hami_node_agent.allocation.node_ports import DescribedSlices
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.ports import Holding
from hami_node_agent.grants.records import AgentState, PodsSeen, Record
from hami_node_agent.grants.state import NodeState
from hamicommon.domain.ids import AllocationId
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import NotFound, Unavailable

from tests.unit.node_agent.builders import (
    ANSWERS,
    CARD_A,
    CARD_B,
    QuietNode,
    a_book,
    a_container,
    a_grant,
    a_holding,
    a_record,
    a_share,
    node_ports,
)

IDS, OTHER_IDS = frozenset({f"{CARD_A}-0"}), frozenset({f"{CARD_A}-1"})
WITH_INIT = a_grant(
    a_container(a_share(), name="prepare", role="init"),
    a_container(a_share(), name="one", index=1),
    a_container(a_share(), name="two", index=2),
    pod="p",
)
PREPARE = a_record(WITH_INIT, "prepare", ids=set(IDS), nonce="prepare")
ONE = a_record(WITH_INIT, "one", ids=set(IDS), nonce="one")
TWO = a_record(WITH_INIT, "two", ids={f"{CARD_B}-0"}, nonce="two")


class Node(QuietNode):
    """All that Allocate asks, at rest."""

    def __init__(self, *grants: NodeGrant, records: tuple[Record, ...] = ()) -> None:
        self.state = NodeState(self, AgentState().with_records(records))
        self.state.book = a_book(*grants)
        ports = node_ports(self.state, self)
        devices: Any = None
        slices = DescribedSlices(ports, devices=devices, answers=ANSWERS)
        self.answering = Allocate(ports, slices=slices, node_name="n")
        self.held: tuple[Holding, ...] | None = ()
        self.connected = True
        self.signed: tuple[NodeGrant, ...] = ()
        self.ledger: tuple[NodeGrant, ...] = ()
        self.refreshed = 0
        self.waiting: tuple[PodRef, ...] = ()
        self.warned: list[str] = []
        self.env_read: asyncio.Event | None = None
        self.env_readers = 0

    async def allocate(self, ids: frozenset[str]) -> Record:
        """The record of the answer."""
        [spec] = await self.answering.allocate([ids])
        [limits] = [m.host_path for m in spec.mounts if m.container_path == "/etc/hami"]
        return self.state.saved.records[PurePosixPath(limits).name]

    async def checkpointed_holdings(self) -> tuple[Holding, ...]:
        if self.held is None:
            raise Unavailable("the checkpoint can't be read")
        return self.held

    async def refresh(self) -> bool:
        self.refreshed += 1
        for grant in self.ledger:
            self.state.book = self.state.book.with_grant(grant)
        return True

    async def signed_grants(self) -> tuple[NodeGrant, ...]:
        return self.signed

    async def container_env(self, grant: NodeGrant, container: str) -> dict[str, str]:
        del grant, container
        self.env_readers += 1
        if self.env_read is not None:
            await self.env_read.wait()
        return {}

    def snapshot(self) -> PodsSeen:
        return PodsSeen()

    def waiting_for(self, count: int) -> tuple[PodRef, ...]:
        del count
        return self.waiting

    async def warn(self, pod: PodRef, message: str) -> None:
        self.warned.append(f"{pod.name}: {message}")


async def test_the_grant_in_flight_is_the_answer() -> None:
    node = Node(a_grant(pod="a"))

    record = await node.allocate(IDS)

    assert (record.pod_uid, record.container, record.device_ids) == ("a", "main", IDS)
    assert node.refreshed == 0


async def test_a_grant_that_was_not_heard_of_is_asked_for() -> None:
    node = Node()
    node.ledger = (a_grant(pod="a"),)

    assert (await node.allocate(IDS)).pod_uid == "a"


async def test_another_number_of_devices_than_the_grant_in_flight_has_is_refused() -> None:
    node = Node(a_grant(pod="a"))

    with pytest.raises(NotFound, match="no grant is in flight"):
        await node.allocate(IDS | OTHER_IDS)

    assert node.state.saved.records == {}


async def test_pods_that_may_have_asked_are_warned_with_the_way_out() -> None:
    granted = a_grant(pod="granted")
    node = Node(granted, records=(a_record(granted, ids=set(OTHER_IDS)),))
    node.waiting = tuple(
        PodRef(uid=uid, namespace="default", name=uid) for uid in ("granted", "bypassing")
    )

    with pytest.raises(NotFound):
        await node.allocate(IDS)

    [warned] = node.warned
    assert warned.startswith("bypassing: ")
    assert "set spec.schedulerName" in warned


async def test_a_container_that_was_just_answered_is_not_answered_once_more() -> None:
    node = Node(a_grant(pod="first", token=1), a_grant(pod="second", token=2))
    node.env_read = asyncio.Event()

    both = [asyncio.create_task(node.allocate(ids)) for ids in (IDS, OTHER_IDS)]
    while node.env_readers < 2:
        await asyncio.sleep(0)
    node.env_read.set()
    answers = await asyncio.gather(*both)

    assert sorted(record.pod_uid for record in answers) == ["first", "second"]
    assert len(node.state.saved.records) == 2


async def test_an_answer_that_a_killed_kubelet_did_not_store_is_given_again() -> None:
    node = Node(WITH_INIT, records=(PREPARE,))

    assert await node.allocate(IDS) == PREPARE


async def test_an_init_containers_ids_go_on_to_the_next_container() -> None:
    node = Node(WITH_INIT, records=(PREPARE,))
    node.held = (a_holding("p", "prepare", ids=set(IDS), record=PREPARE),)

    assert (await node.allocate(IDS)).container == "one"


async def test_a_dead_pods_ids_go_on_to_the_next_pod() -> None:
    dead, fresh = a_grant(pod="dead"), a_grant(pod="fresh", token=2)
    node = Node(dead, fresh, records=(a_record(dead, ids=set(IDS)),))

    assert (await node.allocate(IDS)).pod_uid == "fresh"


async def test_an_answer_that_was_not_stored_comes_before_stored_ones_of_the_same_ids() -> None:
    node = Node(WITH_INIT, records=(PREPARE, ONE, TWO))
    node.held = (
        a_holding("p", "prepare", ids=set(IDS), record=PREPARE),
        a_holding("p", "two", ids=set(TWO.device_ids), record=TWO),
    )

    assert await node.allocate(IDS) == ONE


async def test_the_same_container_again_gets_its_answer_again() -> None:
    node = Node(WITH_INIT, records=(ONE, PREPARE, TWO))
    node.held = tuple(
        a_holding("p", each.container, ids=set(each.device_ids), record=each)
        for each in (ONE, PREPARE, TWO)
    )

    assert await node.allocate(TWO.device_ids) == TWO


async def test_an_answer_of_an_ended_grant_is_not_given_again() -> None:
    node = Node(records=(PREPARE,))

    with pytest.raises(NotFound):
        await node.allocate(IDS)


async def test_in_doubt_whether_it_was_stored_an_answer_is_not_given_again() -> None:
    node = Node(WITH_INIT, records=(PREPARE,))
    node.held = None

    assert (await node.allocate(IDS)).container == "one"


async def test_without_the_bus_the_annotation_comes_before_what_the_bus_last_announced() -> None:
    failed = a_grant(a_container(a_share(CARD_A)), pod="p", token=7)
    bound = replace(
        a_grant(a_container(a_share(CARD_B)), pod="p", token=9),
        allocation_id=AllocationId("second attempt"),
    )
    node = Node(failed)
    node.connected, node.signed = False, (bound,)

    assert (await node.allocate(IDS)).cards == (CARD_B,)


async def test_a_cache_directory_that_another_answer_has_is_left_to_it() -> None:
    """The directory is a failed attempt's; a container that bypassed the scheduler may hold it."""
    grant = a_grant(pod="a")
    failed = replace(
        a_record(grant, ids=set(OTHER_IDS)), allocation_id=AllocationId("failed attempt")
    )
    node = Node(grant, records=(failed,))

    assert (await node.allocate(IDS)).cache_dir != failed.cache_dir
