"""Which grants a late start is made under while the ledger can't be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hami_node_agent.adapters.state_file import decode, encode
from hami_node_agent.allocation.late_binding import LateBinding
from hami_node_agent.allocation.node_ports import DescribedSlices, NodePorts
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.ports import Holding, KeptAnswer
from hami_node_agent.grants.records import AgentState
from hami_node_agent.grants.state import NodeState
from hamicommon.domain.ids import AllocationId, PodUid
from hamicommon.errors import Conflict, Unavailable

from tests.unit.node_agent.builders import (
    ANSWERS,
    CARD_A,
    a_book,
    a_card,
    a_container,
    a_grant,
    a_share,
)

IDS = frozenset({"GPU-a-0"})
PRELOAD = replace(ANSWERS, may_be_plain=True)
OLD = a_grant(pod="p", token=5)
NEW = replace(OLD, allocation_id=AllocationId("second attempt"), token=9)


HELD = Holding(
    pod_uid=PodUid("p"),
    container="main",
    device_ids=IDS,
    pod_name="p",
    answer=KeptAnswer(nonce="n", cards=(), cache_dir=""),
)


async def start(state: NodeState, *signed: NodeGrant) -> None:
    """One PreStartContainer of the pod, with these grants signed on pods and the ledger away."""
    away = AsyncMock(side_effect=Unavailable("the bus is away"))
    await late_binding(state, *signed, refresh=away).check([HELD])


def late_binding(
    state: NodeState,
    *signed: NodeGrant,
    refresh: AsyncMock,
    env: Mapping[str, str] = MappingProxyType({}),
    described: dict[str, ContainerSpec] | None = None,
) -> LateBinding:
    pods: Any = SimpleNamespace(
        signed_grants=AsyncMock(return_value=signed),
        container_env=AsyncMock(return_value=env),
        name_of=lambda uid: None,
        warn=AsyncMock(),
    )
    files: Any = SimpleNamespace(
        make_cache_dir=lambda name, nonce: None,
        keep_cache_dir=lambda name, nonce: None,
        write_limits=lambda record: None,
        limits_dir=lambda nonce: Path("/limits"),
    )
    kubelet_state: Any = SimpleNamespace()
    source: Any = SimpleNamespace(refresh=refresh)
    written = {} if described is None else described
    devices: Any = SimpleNamespace(write=written.__setitem__)
    reports: Any = SimpleNamespace(allocated_report=lambda grant, state: None)
    node = NodePorts(
        state=state,
        kubelet_state=kubelet_state,
        source=source,
        pods=pods,
        files=files,
        reports=reports,
    )
    slices = DescribedSlices(node, devices=devices, answers=PRELOAD)
    return LateBinding(node, slices=slices, is_used=True)


def a_state(saved: AgentState | None = None) -> NodeState:
    store: Any = SimpleNamespace(save=lambda state: None)
    return NodeState(store, saved or AgentState())


def restart(state: NodeState) -> NodeState:
    return a_state(decode(encode(state.saved)))


async def test_a_signed_grant_of_an_older_attempt_starts_nothing_after_a_restart() -> None:
    before = a_state()
    await before.remember_tokens([NEW])

    with pytest.raises(Conflict, match="without a grant"):
        await start(restart(before), OLD)


async def test_the_signed_grant_of_the_latest_attempt_starts_its_container() -> None:
    before = a_state()
    await before.remember_tokens([NEW])

    state = restart(before)
    await start(state, NEW)
    assert state.saved.records["n"].allocation_id == NEW.allocation_id


@pytest.mark.parametrize(("memory_mib", "preloads"), [(81920, False), (4096, True)])
async def test_a_pod_with_whole_cards_is_described_without_the_library_where_it_asks(
    memory_mib: int, *, preloads: bool
) -> None:
    state = a_state()
    state.cards = {CARD_A: a_card()}
    state.book = a_book(a_grant(a_container(a_share(CARD_A, memory_mib, 0)), pod="p"))
    described: dict[str, ContainerSpec] = {}
    env = {"CUDA_DISABLE_CONTROL": "true"}

    late = late_binding(state, refresh=AsyncMock(), env=env, described=described)
    await late.check([HELD])

    mounted = {mount.container_path for mount in described["n"].mounts}
    assert ("/etc/ld.so.preload" in mounted) is preloads
    assert "/etc/hami" in mounted
    assert state.saved.records["n"].plain is not preloads


async def test_what_was_described_without_the_library_is_not_started_under_a_part_of_a_card() -> (
    None
):
    state = a_state()
    state.cards = {CARD_A: a_card()}
    whole = a_grant(a_container(a_share(CARD_A, 81920, 0)), pod="p", token=1)
    state.book = a_book(whole)
    env = {"CUDA_DISABLE_CONTROL": "true"}
    await late_binding(state, refresh=AsyncMock(), env=env).check([HELD])
    part = a_grant(a_container(a_share(CARD_A, 4096, 0)), pod="p", token=2)
    state.book = a_book(replace(part, allocation_id=AllocationId("second attempt")))

    with pytest.raises(Conflict, match="without the library"):
        await late_binding(state, refresh=AsyncMock(), env=env).check([HELD])
