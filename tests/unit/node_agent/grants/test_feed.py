"""A grant snapshot with one unreadable grant: the others are known, none is withdrawn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hami_node_agent.adapters.kubernetes.pod_fields import GRANT_ANNOTATION
from hami_node_agent.adapters.kubernetes.pods import NodePods
from hami_node_agent.adapters.state_file import decode, encode
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.feed import GrantsFeed, read_signed
from hami_node_agent.grants.records import MAX_TOKENS, AgentState, PodsSeen, Record, find_in_flight
from hami_node_agent.grants.reports import Reports
from hami_node_agent.grants.state import NodeState
from hamicommon import events
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import AllocationId, PodUid
from hamicommon.errors import Unavailable
from hamicommon.grants.grant import Grant, grant_of
from hamicommon.grants.signing import public_key, sign
from hamicommon.process.bulkhead import Bulkhead

from tests.unit.hamicommon.grants.test_grant import NOW, an_allocation
from tests.unit.node_agent.builders import a_book, a_container, a_grant, a_record, a_share

GRANT = grant_of(an_allocation(), expires_at=NOW)


class Store:
    def save(self, state: AgentState) -> None:
        del state


class Bus:
    connected = True

    def __init__(self) -> None:
        self.states: dict[str, str] = {}

    async def request(self, subject: str, payload: Any, *, timeout_s: float) -> bytes:
        del subject, payload, timeout_s
        snapshot = events.GrantSnapshot(
            node=GRANT.node,
            complete=True,
            taken_at=datetime.now(UTC),
            grants=tuple(
                events.GrantState(
                    grant=GRANT.model_copy(update={"allocation_id": uid, "pod_uid": uid}),
                    state=state,
                )
                for uid, state in self.states.items()
            ),
        )
        return snapshot.model_dump_json().encode()


async def test_grants_around_a_poisonous_one_are_known_and_none_is_withdrawn() -> None:
    bus, bulkhead = Bus(), Bulkhead()
    state = NodeState(Store(), AgentState())
    feed = GrantsFeed(
        cast(Any, bus),
        state,
        reports=Reports(GRANT.node),
        node=GRANT.node,
        snapshot_interval_s=60.0,
        bulkhead=bulkhead,
    )
    bus.states = dict.fromkeys(("first", "poison"), "bound")
    assert await feed.refresh()

    bus.states = {"first": "bound", "poison": "a state of another release", "last": "bound"}
    assert not await feed.refresh()

    assert state.book.grants.keys() == {"first", "poison", "last"}
    assert bulkhead.failures == {"grant snapshot": 1}


async def test_a_report_that_the_ledger_never_takes_is_repeated_less_and_less_often() -> None:
    """A grant that stays `bound` in the ledger, whatever its node reports."""
    bus = Bus()
    state = NodeState(Store(), AgentState())
    feed = GrantsFeed(
        cast(Any, bus),
        state,
        reports=Reports(GRANT.node),
        node=GRANT.node,
        snapshot_interval_s=60.0,
    )
    bus.states = {GRANT.allocation_id: "bound"}
    await feed.refresh()
    [known] = state.book.grants.values()
    records = [
        a_record(known, container.name, ids={container.name}, nonce=container.name)
        for container in known.containers
        if container.shares
    ]
    await state.change(lambda saved: saved.with_records(records))

    due = []
    for comparison in range(1, 65):
        await feed._remind()
        if state.saved.reports:
            due.append(comparison)
        for report in state.saved.reports:
            await state.change(methodcaller("without_report", report.report_id))

    assert due == [2, 4, 8, 16, 32, 64]


# --- a grant that was signed once is not believed when a later attempt of its pod was heard of


OLD = a_grant(pod="p", token=5)
NEW = replace(OLD, allocation_id=AllocationId("second attempt"), token=9)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def a_state(saved: AgentState | None = None) -> NodeState:
    store: Any = SimpleNamespace(save=lambda state: None)
    return NodeState(store, saved or AgentState())


async def read(state: NodeState, *signed: NodeGrant) -> NodeGrant | None:
    pods: Any = SimpleNamespace(signed_grants=AsyncMock(return_value=signed))
    await read_signed(state, pods)
    return state.book.of("p")


def restart(state: NodeState) -> NodeState:
    return a_state(decode(encode(state.saved)))


async def test_a_signed_grant_is_believed_again_and_again() -> None:
    state = a_state()

    assert await read(state, OLD) == OLD
    assert await read(restart(state), OLD) == OLD
    assert await read(state, NEW) == NEW


async def test_an_older_attempt_is_not_believed_after_a_restart_either() -> None:
    state = a_state()
    await state.remember_tokens([NEW])

    assert await read(state, OLD) is None
    assert await read(restart(state), OLD) is None
    assert await read(restart(state), NEW) == NEW


async def test_an_attempt_that_was_read_itself_ends_those_before_it() -> None:
    state = a_state()
    await read(state, NEW)

    assert await read(restart(state), OLD) is None


async def test_a_withdrawn_attempt_is_over() -> None:
    state = a_state()
    await state.remember_tokens([OLD])
    await state.remember_withdrawal(PodUid("p"), OLD.token)

    assert await read(restart(state), OLD) is None
    assert await read(restart(state), NEW) == NEW


async def test_a_disk_that_is_full_hinders_no_grant() -> None:
    def full(_state: object) -> None:
        raise Unavailable("disk full")

    store: Any = SimpleNamespace(save=full)

    assert await read(NodeState(store, AgentState()), OLD) == OLD


def test_of_many_pods_the_latest_are_remembered() -> None:
    tokens = {PodUid(f"p{number}"): number for number in range(MAX_TOKENS + 5)}

    kept = AgentState().with_least_tokens(tokens).least_tokens

    assert len(kept) == MAX_TOKENS
    assert min(kept.values()) == 5


def a_pod(token: int) -> dict[str, Any]:
    grant = Grant(
        allocation_id=f"attempt {token}",
        pod_uid="p",
        namespace="default",
        pod_name="pod",
        node="n",
        token=token,
        containers=(),
        expires_at=datetime.now(UTC) + timedelta(minutes=10),
    )
    annotations = {GRANT_ANNOTATION: sign(grant, KEY)}
    metadata = {"uid": "p", "namespace": "default", "name": "pod", "annotations": annotations}
    return {"metadata": metadata, "status": {"phase": "Pending"}}


@pytest.mark.parametrize(("now", "believed"), [(5, []), (9, [9]), (12, [12])])
async def test_an_annotation_that_was_put_back_is_not_believed(
    now: int, believed: list[int]
) -> None:
    """The watch saw the second attempt's annotation during an outage."""
    api: Any = SimpleNamespace(get=AsyncMock(return_value={"items": [a_pod(now)]}))
    pods = NodePods(api, node="n", resource="nvidia.com/gpu", key=public_key(KEY))
    pods._on_upsert(a_pod(9), None)

    assert [grant.token for grant in await pods.signed_grants()] == believed


# --- the grant in flight: between its binding and the answers to its containers


IDS = {"GPU-0"}
TWO = (a_container(a_share(), name="one", index=0), a_container(a_share(), name="two", index=1))


def find_container(
    *grants: NodeGrant, records: tuple[Record, ...] = (), ended: str = "", bound: str = ""
) -> tuple[str, str]:
    """Find pod and container; empty: none is in flight."""
    saved = AgentState().with_records(records)
    seen = PodsSeen(ended=frozenset(map(PodUid, ended)), bound=frozenset(map(PodUid, bound)))
    each = find_in_flight(a_book(*grants), saved, seen)
    return ("", "") if each is None else (each.grant.pod_uid, each.container.name)


def test_a_bound_pod_waits_for_its_first_container() -> None:
    assert find_container(a_grant(*TWO, pod="a")) == ("a", "one")


def test_init_containers_come_before_app_containers() -> None:
    grant = a_grant(
        a_container(a_share(), name="prepare", index=0, role="init"),
        a_container(a_share(), name="main", index=1),
        pod="a",
    )

    assert find_container(grant) == ("a", "prepare")


def test_a_container_without_cards_is_left_out() -> None:
    grant = a_grant(a_container(name="none", index=0), a_container(a_share(), index=1), pod="a")

    assert find_container(grant) == ("a", "main")


def test_a_grant_that_has_all_its_answers_waits_for_nothing() -> None:
    grant = a_grant(*TWO, pod="a")
    one = a_record(grant, "one", ids=IDS, nonce="1")
    two = a_record(grant, "two", ids=IDS, nonce="2")

    assert find_container(grant, records=(one,)) == ("a", "two")
    assert find_container(grant, records=(one, two)) == ("", "")


def test_an_answer_of_an_attempt_that_failed_is_none_of_the_next_attempts() -> None:
    grant = a_grant(pod="a")
    failed = replace(a_record(grant, ids=IDS), allocation_id=AllocationId("failed attempt"))

    assert find_container(grant, records=(failed,)) == ("a", "main")


@pytest.mark.parametrize("state", [AllocationState.ALLOCATED, AllocationState.RELEASING])
def test_a_grant_that_was_answered_or_is_given_back_waits_for_nothing(
    state: AllocationState,
) -> None:
    assert find_container(a_grant(pod="a", state=state)) == ("", "")


def test_a_grant_that_still_waits_for_the_node_lock_is_not_in_flight() -> None:
    """The ledger lists it; another pod, whose answer is gone, must not get this one's."""
    assert find_container(replace(a_grant(pod="a"), offered=False)) == ("", "")


def test_a_grant_that_was_answered_before_it_was_made_waits_for_no_allocate() -> None:
    assert find_container(replace(a_grant(pod="a"), answered=True)) == ("", "")


def test_a_grant_whose_pod_is_on_the_node_is_in_flight_though_no_offer_is_remembered() -> None:
    listed = replace(a_grant(pod="a", state=AllocationState.BINDING), offered=False)

    assert find_container(listed) == ("", "")
    assert find_container(listed, bound="a") == ("a", "main")


def test_a_pod_that_is_over_waits_for_nothing() -> None:
    assert find_container(a_grant(pod="a"), ended="a") == ("", "")


def test_without_the_lock_the_pod_that_was_bound_first_is_taken() -> None:
    assert find_container(a_grant(pod="a", token=7), a_grant(pod="b", token=5)) == ("b", "main")


def test_a_pod_that_has_begun_is_finished_first() -> None:
    begun = a_grant(*TWO, pod="begun", token=9)
    one = a_record(begun, "one", ids=IDS)

    assert find_container(begun, a_grant(pod="fresh", token=1), records=(one,)) == ("begun", "two")
