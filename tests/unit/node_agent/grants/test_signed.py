"""A grant that was signed once is not believed when a later attempt of its pod was heard of."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hami_node_agent.adapters.kubernetes.pod_fields import GRANT_ANNOTATION
from hami_node_agent.adapters.kubernetes.pods import NodePods
from hami_node_agent.adapters.state_file import decode, encode
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.feed import read_signed
from hami_node_agent.grants.records import MAX_TOKENS, AgentState
from hami_node_agent.grants.state import NodeState
from hamicommon.domain.ids import AllocationId, PodUid
from hamicommon.errors import Unavailable
from hamicommon.grants.grant import Grant
from hamicommon.grants.signing import public_key, sign

from tests.unit.node_agent.builders import a_grant

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


def restarted(state: NodeState) -> NodeState:
    return a_state(decode(encode(state.saved)))


async def test_a_signed_grant_is_believed_again_and_again() -> None:
    state = a_state()

    assert await read(state, OLD) == OLD
    assert await read(restarted(state), OLD) == OLD
    assert await read(state, NEW) == NEW


async def test_an_older_attempt_is_not_believed_after_a_restart_either() -> None:
    state = a_state()
    await state.remember_tokens([NEW])

    assert await read(state, OLD) is None
    assert await read(restarted(state), OLD) is None
    assert await read(restarted(state), NEW) == NEW


async def test_an_attempt_that_was_read_itself_ends_those_before_it() -> None:
    state = a_state()
    await read(state, NEW)

    assert await read(restarted(state), OLD) is None


async def test_a_withdrawn_attempt_is_over() -> None:
    state = a_state()
    await state.remember_tokens([OLD])
    await state.remember_withdrawal(PodUid("p"), OLD.token)

    assert await read(restarted(state), OLD) is None
    assert await read(restarted(state), NEW) == NEW


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
    """The watch saw the second attempt's while nobody could be asked."""
    api: Any = SimpleNamespace(get=AsyncMock(return_value={"items": [a_pod(now)]}))
    pods = NodePods(api, node="n", resource="nvidia.com/gpu", key=public_key(KEY))
    pods._on_upsert(a_pod(9), None)

    assert [grant.token for grant in await pods.signed_grants()] == believed
