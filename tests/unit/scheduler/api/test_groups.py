"""`GET /v1/groups/...`: the answer for groups that fit, wait, started, or are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hami_scheduler.api.groups import GroupExplainer
from hami_scheduler.placement.group_members import GroupMembers
from hamicommon.domain.ids import PodUid
from hamicommon.errors import NotFound

from tests.unit.scheduler.placement.test_groups import (
    GROUP,
    REQUESTS,
    SCHEDULER,
    Stage,
    member,
)


async def explaining(
    *pods: dict[str, Any], rows: Sequence[dict[str, Any]] = ()
) -> tuple[GroupExplainer, Stage]:
    stage = Stage()
    await stage.state.load()
    for pod in pods:
        stage.plans.pod_seen(pod)

    async def read_decisions(uid: PodUid) -> Sequence[dict[str, Any]]:
        return rows if uid == "group/default/g" else ()

    explainer = GroupExplainer(
        pods=lambda: pods,
        new_members=lambda: GroupMembers(REQUESTS.of, stage.crd.get, SCHEDULER),
        plans=stage.plans,
        decisions=read_decisions,
    )
    return explainer, stage


async def test_a_group_that_waits_is_explained_with_what_it_would_take() -> None:
    pods = [member(name, size=5) for name in "abcde"]
    explainer, stage = await explaining(*pods)
    stage.ask("a")

    found = await explainer.explain("default", "g")

    assert not found["fits"]
    assert found["summary"].startswith("4 of the 5 pods that start together fit")
    assert [each["pod_name"] for each in found["would_take"]] == list("abcd")
    assert len({card for each in found["would_take"] for card in each["devices"]}) == 4
    assert found["asked"] == 1
    assert stage.used_memory_mib() == 0


async def test_what_a_group_has_assumed_itself_takes_nothing_away_from_it() -> None:
    explainer, stage = await explaining(*(member(name) for name in "abcd"))
    stage.ask("a")
    changes = stage.state.changes

    found = await explainer.explain("default", "g")

    assert found["fits"]
    assert found["summary"] == "4 pods fit together, 4 needed"
    assert (stage.used_memory_mib(), stage.state.changes) == (4 * 600, changes)


async def test_a_group_that_has_started_is_no_question() -> None:
    explainer, stage = await explaining(member("a", size=2, node="n0"), member("b", size=2))
    stage.plans.on_started(GROUP, [PodUid("b")])

    found = await explainer.explain("default", "g")
    assert found["summary"] == "all 2 that start together have started"


async def test_pods_with_a_label_alone_start_one_by_one() -> None:
    pod = member("a")
    del pod["metadata"]["annotations"]
    explainer, _ = await explaining(pod)

    assert "start one by one" in (await explainer.explain("default", "g"))["summary"]
    with pytest.raises(NotFound, match="no pod of group default/h exists, and no decision"):
        await explainer.explain("default", "h")


async def test_a_group_that_is_gone_is_explained_from_its_record() -> None:
    row = {
        "at": "2026-11-30T12:00:00Z",
        "last_at": "2026-11-30T12:01:00Z",
        "outcome": "refused",
        "node": None,
        "summary": "7 of the 8 pods that start together fit",
        "message": "",
        "repeat_count": 3,
        "trace_id": "",
        "group_size": 8,
    }
    explainer, _ = await explaining(rows=[row])

    found = await explainer.explain("default", "g")

    assert (found["pods"], found["quorum"]) == ([], 8)
    assert found["summary"] == "no pod of it exists any more"
    assert [each["summary"] for each in found["decisions"]] == [row["summary"]]
