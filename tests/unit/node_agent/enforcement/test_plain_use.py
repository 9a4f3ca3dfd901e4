"""Containers that run without the library are sampled by the driver's report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hami_node_agent.enforcement.checker import CheckResult, plain_samples
from hami_node_agent.enforcement.judgement import Judgement, LimitKey
from hami_node_agent.enforcement.periods import Standing
from hamicommon.domain.granted_cards import LimitState

from tests.unit.node_agent.builders import CARD_A, a_container, a_grant, a_record, a_share

WITH_LIBRARY = a_record(a_grant(a_container(a_share(CARD_A, 81920, 0))), ids={"x"})
PLAIN = replace(WITH_LIBRARY, plain=True)
MIB = 1024 * 1024


def make_checked(held_mib: int | None, *, looked_s: float = 5.0) -> CheckResult:
    judgement = Judgement(state=LimitState.ENFORCED, granted_mib=81920, held_mib=held_mib)
    standing = Standing(judgement=judgement, looked_s=5.0, state=LimitState.ENFORCED)
    return CheckResult(standings={LimitKey("pod-1", "main", CARD_A): standing}, looked_s=looked_s)


@pytest.mark.parametrize(("held_mib", "used"), [(700, 700 * MIB), (0, 0), (None, None)])
def test_memory_is_what_the_driver_reports_and_unknown_where_it_does_not(
    held_mib: int | None, used: int | None
) -> None:
    [sample] = plain_samples([PLAIN], make_checked(held_mib))

    assert (sample.pod_uid, sample.container, sample.uuid) == ("pod-1", "main", CARD_A)
    assert (sample.memory_used_bytes, sample.memory_limit_bytes) == (used, 81920 * MIB)
    assert sample.core_percent is None


def test_one_with_the_library_is_sampled_from_its_region_alone() -> None:
    assert plain_samples([WITH_LIBRARY], make_checked(700)) == ()


def test_what_the_last_look_did_not_see_is_not_sampled() -> None:
    assert plain_samples([PLAIN], make_checked(700, looked_s=6.0)) == ()
    assert plain_samples([PLAIN], CheckResult()) == ()
