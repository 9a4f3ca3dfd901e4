"""A pod is ended only if it is still the one that was meant, and cleanly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hami_scheduler.pod_ending import GONE, PodEnder, find_obstacle, grace_s, with_condition
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Forbidden, NotFound

NODE = "node-1"
POD = PodRef(uid=PodUid("uid-1"), namespace="default", name="p")
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def a_pod(**changes: Any) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "metadata": {"uid": "uid-1"},
        "spec": {"nodeName": NODE},
        "status": {"phase": "Running"},
    }
    for part, fields in changes.items():
        pod[part] = pod[part] | fields
    return pod


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"metadata": {"uid": "another"}}, "another pod"),
        ({"spec": {"nodeName": "node-2"}}, "not on node-1"),
        ({"metadata": {"deletionTimestamp": "now"}}, "being deleted"),
        ({"status": {"phase": "Failed"}}, "over"),
        ({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}, "static pod"),
    ],
)
def test_the_pod_is_looked_at_again_before_it_is_ended(
    changes: dict[str, Any], reason: str
) -> None:
    found = find_obstacle(a_pod(**changes), POD, NODE)
    assert reason in found
    assert bool(found) == bool(reason)


@pytest.mark.parametrize(("wanted", "given"), [(None, 30), (5, 5), (0, 1), (86_400, 30)])
def test_a_pods_author_gets_no_day_of_grace(wanted: int | None, given: int) -> None:
    spec = {} if wanted is None else {"terminationGracePeriodSeconds": wanted}
    assert grace_s(a_pod(spec=spec)) == given


def test_the_condition_takes_the_place_of_an_earlier_one() -> None:
    before = [{"type": "Ready", "status": "True"}, {"type": "DisruptionTarget", "status": "False"}]
    after = with_condition(before, "LimitExceeded", "why", now=NOW)
    assert [each["type"] for each in after] == ["Ready", "DisruptionTarget"]
    assert after[1] == {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "LimitExceeded",
        "message": "why",
        "lastTransitionTime": "2026-11-23T12:00:00Z",
    }


def an_api(**answers: Any) -> Any:
    api = AsyncMock()
    api.get.return_value = a_pod()
    api.configure_mock(**answers)
    return api


async def test_a_pod_that_is_ended_shows_the_reason_before() -> None:
    api = an_api()

    assert await PodEnder(api).end(POD, NODE, condition=("LimitExceeded", "why")) == ""

    assert [call[0] for call in api.method_calls] == ["get", "set_conditions", "delete"]
    api.delete.assert_awaited_once_with(api.get.return_value, grace_s=30)


async def test_a_pod_that_never_started_is_ended_without_a_condition() -> None:
    api = an_api()

    assert await PodEnder(api).end(POD, NODE) == ""

    assert [call[0] for call in api.method_calls] == ["get", "delete"]


async def test_a_condition_that_may_not_be_written_does_not_save_the_pod() -> None:
    api = an_api(**{"set_conditions.side_effect": Forbidden("pods/status")})

    assert await PodEnder(api).end(POD, NODE, condition=("LimitExceeded", "why")) == ""

    api.delete.assert_awaited_once()


@pytest.mark.parametrize("call", ["get", "delete"])
async def test_a_pod_that_is_gone_needs_no_end(call: str) -> None:
    api = an_api(**{f"{call}.side_effect": NotFound("no such pod")})

    assert await PodEnder(api).end(POD, NODE) == GONE


async def test_a_pod_that_is_another_by_now_is_left_alone() -> None:
    api = an_api(**{"get.return_value": a_pod(metadata={"uid": "another"})})

    assert await PodEnder(api).end(POD, NODE) == "another pod has its name now"

    api.delete.assert_not_awaited()
