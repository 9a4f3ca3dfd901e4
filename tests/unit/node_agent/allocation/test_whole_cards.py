"""Which containers run without libvgpu: those of pods that have whole cards only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hami_node_agent.adapters.state_file import decode, encode
from hami_node_agent.allocation.response import AnswerPolicy, container_response, runs_plain
from hami_node_agent.enforcement.judgement import ContainerKey, limits_of
from hami_node_agent.grants.records import AgentState
from hamicommon.domain.allocations import DeviceShare

from tests.unit.node_agent.builders import (
    CARD_A,
    CARD_B,
    a_card,
    a_container,
    a_grant,
    a_record,
    a_share,
)

CARDS = {card.uuid: card for card in (a_card(CARD_A), a_card(CARD_B, memory_mib=40960))}
PRELOAD = AnswerPolicy(
    container_base=PurePosixPath("/usr/local/vgpu"),
    host_base=PurePosixPath("/usr/local/vgpu"),
    library=PurePosixPath("/usr/local/vgpu/libvgpu.so.0.1.0"),
    may_be_plain=True,
)
PLAIN = replace(PRELOAD, whole_cards_plain=True)
NEVER = replace(PLAIN, may_be_plain=False)
WHOLE = a_share(CARD_A, 81920, 0)
OFF = {"CUDA_DISABLE_CONTROL": "true"}


@pytest.mark.parametrize(
    ("env", "policy", "plain"),
    [
        ({}, PRELOAD, False),
        (OFF, PRELOAD, True),
        ({"CUDA_DISABLE_CONTROL": "false"}, PRELOAD, False),
        ({}, PLAIN, True),
        (OFF, PLAIN, True),
        ({"CUDA_DISABLE_CONTROL": "false"}, PLAIN, False),
        ({"CUDA_DISABLE_CONTROL": "nonsense"}, PLAIN, False),
        ({}, NEVER, False),
        (OFF, NEVER, False),
    ],
)
def test_the_container_decides_before_the_node(
    env: dict[str, str], policy: AnswerPolicy, *, plain: bool
) -> None:
    assert runs_plain([WHOLE], CARDS, env, policy) is plain


@pytest.mark.parametrize(
    ("shares", "plain"),
    [
        pytest.param([WHOLE], True, id="no-limit-of-cores"),
        pytest.param([replace(WHOLE, core_percent=100)], True, id="all-cores"),
        pytest.param([WHOLE, a_share(CARD_B, 40960, 100)], True, id="two-cards"),
        pytest.param([replace(WHOLE, core_percent=50)], False, id="a-limit-of-cores"),
        pytest.param([replace(WHOLE, memory_mib=81919)], False, id="a-part-of-the-memory"),
        pytest.param([WHOLE, a_share(CARD_B, 4096, 0)], False, id="another-containers-slice"),
        pytest.param([a_share("GPU-unknown", 81920, 0)], False, id="a-card-that-is-not-known"),
        pytest.param([replace(WHOLE, detail={"profile": "7g"})], False, id="an-instance"),
        pytest.param([], False, id="no-card"),
    ],
)
def test_only_whole_cards_are_used_without_the_library(
    shares: list[DeviceShare], *, plain: bool
) -> None:
    assert runs_plain(shares, CARDS, OFF, PRELOAD) is plain


def test_what_is_answered_without_the_library_is_the_cards_and_the_limits_folder() -> None:
    record = replace(a_record(a_grant(a_container(WHOLE)), ids={"x"}), plain=True)

    spec = container_response(record, limits_dir="/limits", container_env={}, policy=PRELOAD)

    assert [mount.container_path for mount in spec.mounts] == ["/etc/hami"]
    assert dict(spec.envs) == {"NVIDIA_VISIBLE_DEVICES": CARD_A}


def test_a_restarted_agent_knows_who_runs_without_the_library() -> None:
    record = replace(a_record(a_grant(), ids={"x"}), plain=True)
    other = replace(record, nonce="other", plain=False)

    again = decode(encode(AgentState().with_records([record, other])))

    assert [again.records[nonce].plain for nonce in (record.nonce, "other")] == [True, False]


@pytest.mark.parametrize("plain", [True, False])
def test_the_outside_check_holds_its_memory_to_the_grant_and_expects_no_library(
    *, plain: bool
) -> None:
    record = replace(a_record(a_grant(a_container(WHOLE)), ids={"x"}), plain=plain)

    limits = limits_of([record], ended=frozenset(), controlled=True)

    limit = limits[ContainerKey("pod-1", "main")][CARD_A]
    assert (limit.granted_mib, limit.hardware, limit.controlled) == (81920, False, not plain)
