"""One decision for a group, its verdicts, and its slices held until all fit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.decisions import DecisionTrace
from hami_scheduler.placement.group_members import GroupMembers
from hami_scheduler.placement.groups import (
    BIND_MARGIN_S,
    MAX_BACKOFF_S,
    TURN_AFTER_S,
    GroupPlans,
    GroupVerdict,
)
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.k8s.pod_groups import GROUP_LABEL, PodGroup
from hamicommon.k8s.pod_object import owner_of
from hamicommon.ledger.model import Draft

from tests.unit.devices import a_device
from tests.unit.scheduler.placement.test_placer import MEMORY, REQUESTS, VENDORS, pod
from tests.unit.scheduler.readable_ledger import ReadableLedger

NODES = (NodeName("n0"), NodeName("n1"))
GROUP = PodGroup("default", "g")
SCHEDULER = "hami-scheduler"


class Stage:
    """Two nodes of two cards of 1000 MiB, and a watch that shows pods."""

    def __init__(self, quota: int | None = None) -> None:
        self.now = 0.0
        self.silent: frozenset[NodeName] = frozenset()
        self.woken: list[str] = []
        self.crd: dict[PodGroup, int] = {}
        self.recorded: list[DecisionTrace] = []
        ledger = ReadableLedger()
        for node in NODES:
            for index in range(2):
                device = a_device(f"{node}-{index}", index=index, type="A100", memory_mib=1000)
                ledger.add_card(node, device)
        if quota is not None:
            ledger.set_quota("default", MEMORY, quota)
        self.freed = 0
        self.state = ClusterState(
            ledger,
            quota_store=ledger,
            grants=ledger,
            rules=VENDORS.rules,
            ttl_s=10,
            on_freed=self._on_freed,
            clock=self.clock,
        )
        self.members = GroupMembers(REQUESTS.of, self.crd.get, SCHEDULER)
        self.plans = GroupPlans(
            members=self.members,
            state=self.state,
            requests=REQUESTS,
            silent=lambda: self.silent,
            instruments=SchedulerInstruments(),
            wake=self._wake,
            binding_s=60,
            bind_s=25,
            owner_of=owner_of,
            note_visit=lambda _pod, _request: None,
            record=self.recorded.append,
            clock=self.clock,
        )

    def clock(self) -> float:
        return self.now

    def _wake(self, pods: Iterable[PodRequest]) -> None:
        self.woken += [each.uid for each in pods]

    def _on_freed(self) -> None:
        self.freed += 1

    def show(self, *names: str, group: str = "g", size: int = 4, **options: Any) -> None:
        for name in names:
            self.plans.pod_seen(member(name, group=group, size=size, **options))

    def ask(
        self, name: str, *nodes: NodeName, group: PodGroup = GROUP, size: int = 4
    ) -> Draft | GroupVerdict | None:
        return self.plans.place(group, member(name, group=group.name, size=size), nodes or NODES)

    def record(self) -> list[tuple[str, str]]:
        return [(each.outcome, each.message) for each in self.recorded]

    def used_memory_mib(self) -> int:
        cards = [card for node in NODES for card in self.state.cluster.cards(node)]
        return sum(card.usage.used_memory_mib for card in cards)


def member(
    name: str,
    *,
    group: str = "g",
    size: int = 4,
    gpumem: int = 600,
    created: str = "2026-11-30T12:00:00Z",
    priority: int = 0,
    node: str = "",
    **limits: str,
) -> dict[str, Any]:
    body = pod(name, gpumem=str(gpumem), **limits)
    body["metadata"] |= {
        "labels": {GROUP_LABEL: group},
        "annotations": {"hami.io/group-min": str(size)},
        "creationTimestamp": created,
    }
    body["spec"] |= {"schedulerName": SCHEDULER, "priority": priority}
    if node:
        body["spec"]["nodeName"] = node
    return body


@pytest.fixture
async def stage() -> Stage:
    found = Stage()
    await found.state.load()
    return found


def sentence(answer: object) -> str:
    assert isinstance(answer, GroupVerdict)
    return answer.sentence


async def test_the_first_member_decides_for_all(stage: Stage) -> None:
    stage.show("a", "b", "c", "d")

    first = stage.ask("a")

    assert isinstance(first, Draft)
    assert stage.used_memory_mib() == 4 * 600
    drafts = [stage.ask(name) for name in "abcd"]
    assert drafts == [stage.state.assumption(PodUid(name)).draft for name in "abcd"]  # type: ignore[union-attr]
    assert stage.used_memory_mib() == 4 * 600, "a question that is repeated took more"


async def test_members_that_do_not_exist_yet_are_waited_for(stage: Stage) -> None:
    stage.show("a", "b", "c")

    assert sentence(stage.ask("a")) == "3 of the 4 pods that start together exist"
    assert stage.used_memory_mib() == 0

    stage.show("d")
    assert stage.woken == ["a"]
    assert isinstance(stage.ask("a"), Draft)


async def test_a_member_that_the_watch_has_not_shown_yet_is_not_placed_alone(
    stage: Stage,
) -> None:
    assert sentence(stage.ask("a", size=2)) == "0 of the 2 pods that start together exist"

    stage.show("b", size=2)
    assert sentence(stage.ask("a", size=2)) == "1 of the 2 pods that start together exist"
    assert stage.used_memory_mib() == 0

    stage.show("a", size=2)
    assert stage.woken == ["a"]
    assert isinstance(stage.ask("a", size=2), Draft)


async def test_a_group_without_room_for_all_holds_nothing_and_knows_why(stage: Stage) -> None:
    stage.show("a", "b", "c", "d", "e", size=5)

    why = sentence(stage.ask("a"))

    assert why.startswith(
        "4 of the 5 pods that start together fit, in this order; e wants 1 NVIDIA"
    )
    assert "the most free is 400 MiB" in why
    assert stage.used_memory_mib() == 0


async def test_a_verdict_answers_all_members_until_something_changes(stage: Stage) -> None:
    stage.show("a", "b", "c", "d", "e", size=5)
    first = stage.ask("a")

    assert all(stage.ask(name) is first for name in "bcde")

    stage.show("f", size=5)
    assert stage.ask("a") is not first, "a member came"
    second = stage.ask("a")
    await stage.state.refresh_quotas()
    assert stage.ask("a") is not second, "quotas changed"
    third = stage.ask("a")
    stage.silent = frozenset({NODES[0]})
    assert stage.ask("a") is not third, "an agent fell silent"


async def test_members_that_were_refused_are_woken_when_all_fit(stage: Stage) -> None:
    stage.show("x", group="other", size=1, gpumem=900)
    assert isinstance(stage.ask("x", group=PodGroup("default", "other")), Draft)
    stage.show("a", "b", "c", "d")
    for name in "abc":
        assert isinstance(stage.ask(name), GroupVerdict)

    stage.state.lift([PodUid("x")])
    assert isinstance(stage.ask("d"), Draft)

    assert sorted(stage.woken) == ["a", "b", "c"]


async def test_a_member_whose_node_is_not_offered_is_decided_alone(stage: Stage) -> None:
    stage.show("a", "b", size=2)
    first = stage.ask("a")
    other = stage.state.assumption(PodUid("b"))
    assert isinstance(first, Draft)
    assert other is not None
    elsewhere = next(node for node in NODES if node != other.draft.placement.node)

    again = stage.ask("b", elsewhere)

    assert isinstance(again, Draft)
    assert again.placement.node == elsewhere
    assert stage.state.assumption(PodUid("a")).draft is first  # type: ignore[union-attr]


async def test_all_are_decided_again_when_one_has_no_place_beside_the_others(stage: Stage) -> None:
    stage.show("a", "b", "c", size=3)
    assert isinstance(stage.ask("a", NODES[0]), Draft)
    # Its own filters leave c only the node where a and b were placed.
    again = stage.ask("c", NODES[0])

    assert isinstance(again, Draft)
    assert again.placement.node == NODES[0]
    assert stage.used_memory_mib() == 3 * 600


async def test_nobody_is_moved_while_others_wait_at_bind(stage: Stage) -> None:
    stage.show("a", "b", "c", size=3)
    assert isinstance(stage.ask("a", NODES[0]), Draft)
    reasons: list[str] = []

    def on_vain(group: PodGroup, why: str) -> None:
        reasons.append(why)
        stage.plans.give_up(group, why, result="refused")

    stage.plans.at_barrier = lambda _: True
    stage.plans.on_vain = on_vain

    assert "tried again in" in sentence(stage.ask("c", NODES[0]))
    assert len(reasons) == 1
    assert stage.used_memory_mib() == 0


async def test_a_group_that_was_given_up_backs_off_longer_each_time(stage: Stage) -> None:
    stage.show("a", "b", "c", "d")
    assert isinstance(stage.ask("a"), Draft)
    pauses = []
    for _ in range(8):
        stage.plans.give_up(GROUP, "not all came", result="timed_out")
        assert stage.used_memory_mib() == 0
        assert sentence(stage.ask("b")).startswith("not all came; tried again in ")
        began = stage.now
        while isinstance(stage.ask("b"), GroupVerdict):
            stage.now += 0.5
        pauses.append(stage.now - began)
    assert 2.5 <= pauses[0] <= 5.5
    assert 30 <= pauses[-1] <= MAX_BACKOFF_S + 1


async def test_a_group_behind_another_that_assembles_leaves_it_its_nodes(stage: Stage) -> None:
    stage.show("a", "b", size=2, created="2026-11-30T12:00:00Z")
    stage.show("y", "z", group="later", size=2, gpumem=300, created="2026-11-30T12:00:01Z")
    later = PodGroup("default", "later")
    assert isinstance(stage.ask("a", NODES[0]), Draft)

    soon = stage.ask("y", NODES[0], group=later)
    assert isinstance(soon, Draft), "a group that comes together at once keeps nobody away"
    stage.state.lift([PodUid("y"), PodUid("z")])
    stage.now += TURN_AFTER_S + 0.1

    assert "behind default/g on their nodes" in sentence(stage.ask("y", NODES[0], group=later))
    assert isinstance(stage.ask("y", *NODES, group=later), Draft)


async def test_a_quota_has_room_for_all_or_none(stage: Stage) -> None:
    short = Stage(quota=2000)
    await short.state.load()
    short.show("a", "b", "c", "d")
    assert "namespace default has 2000 of its quota of 2000" in sentence(short.ask("a"))

    enough = Stage(quota=2000)
    await enough.state.load()
    enough.show("a", "b", "c", "d", size=3)
    assert isinstance(enough.ask("a"), Draft)
    assert enough.used_memory_mib() == 3 * 600, "the one beyond the quorum has no room in the quota"


async def test_bound_members_and_those_without_cards_wait_for_nobody(stage: Stage) -> None:
    stage.show("a", node="n0")
    stage.show("b", gpu="0", gpumem=0)
    stage.show("c")
    assert sentence(stage.ask("c")) == "1 of the 2 pods that start together exist"

    stage.members.start([PodUid("c")])
    stage.show("d")

    assert isinstance(stage.ask("d"), Draft)
    stage.plans.on_started(GROUP, [PodUid("d")])
    stage.show("e")
    assert stage.ask("e") is None, "beyond the quorum each is placed alone"


async def test_the_largest_number_of_the_members_counts_and_a_podgroup_before_it(
    stage: Stage,
) -> None:
    stage.show("a", size=1)
    stage.show("b", size=3)
    assert stage.members.quorum(GROUP) == 3
    assert not stage.members.is_held_elsewhere(GROUP)

    stage.crd[GROUP] = 2

    assert stage.members.quorum(GROUP) == 2
    assert stage.members.is_held_elsewhere(GROUP)


async def test_each_attempt_is_recorded_once_and_answers_from_memory_are_not(stage: Stage) -> None:
    stage.show("a", "b", size=4)
    stage.ask("a")
    stage.show("c", size=4)
    stage.ask("b")
    assert stage.record() == [("refused", "fewer pods exist than the 4 that start together")]

    stage.show("d", gpumem=900, size=4)
    for name in "abcd":
        stage.ask(name)
    stage.plans.give_up(GROUP, "2 of 4 came to be bound", result="timed_out")
    stage.ask("a")

    assert stage.record()[1:] == [
        ("placed", "4 pods on 2 nodes, 4 needed"),
        ("refused", "2 of 4 came to be bound"),
    ]
    stage.show("e", size=5)
    stage.now += MAX_BACKOFF_S + 1
    for name in "abcde":
        stage.ask(name)
    [refused] = stage.recorded[3:]
    assert "4 of the 5 pods that start together fit" in refused.message
    assert all(each.kept for each in stage.recorded), "an equal one would not raise its count"
    assert (refused.uid, refused.group_key, refused.name) == (*["group/default/g"] * 2, "")
    assert (refused.namespace, refused.group_size) == ("default", 5)


async def test_a_large_group_is_looked_at_beside_the_decisions(stage: Stage) -> None:
    stage.show(*(f"p{number}" for number in range(300)), size=300)
    found = stage.members.assembly(GROUP)
    assert found is not None
    turns, before = 0, stage.state.cluster.version

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    decision = await stage.plans.decision(found)
    others.cancel()

    assert not decision.fits
    assert len(decision.placements) == 4
    assert turns > 1, "the event loop waited for the decision"
    assert (stage.used_memory_mib(), stage.state.cluster.version) == (0, before)


async def test_a_group_is_woken_only_if_all_fit_now(stage: Stage) -> None:
    stage.show("x", group="other", size=1, gpumem=900)
    stage.ask("x", group=PodGroup("default", "other"))
    stage.show("a", "b", "c", "d")
    stage.ask("a")

    assert not await stage.plans.would_fit(GROUP)
    stage.state.lift([PodUid("x")])
    assert await stage.plans.would_fit(GROUP)
    assert stage.used_memory_mib() == 0


async def test_a_group_whose_podgroup_is_deleted_goes_by_its_pods_own_number(
    stage: Stage,
) -> None:
    stage.crd[GROUP] = 3
    stage.show("a", "b", "c", size=4)
    assert isinstance(stage.ask("a"), Draft)

    del stage.crd[GROUP]

    assert sentence(stage.ask("b")) == "3 of the 4 pods that start together exist"
    stage.show("d")
    assert isinstance(stage.ask("d"), Draft)
    assert stage.used_memory_mib() == 4 * 600


async def test_a_group_whose_podgroup_is_deleted_frees_its_cards_by_the_deadline(
    stage: Stage,
) -> None:
    stage.crd[GROUP] = 3
    stage.show("a", "b", "c", size=4)
    stage.ask("a")

    del stage.crd[GROUP]
    stage.now += stage.plans.bind_s + BIND_MARGIN_S + 1
    stage.state.expire()

    assert stage.used_memory_mib() == 0


async def test_a_group_is_forgotten_with_its_last_pod(stage: Stage) -> None:
    stage.show("a", "b", size=2)
    stage.ask("a")
    for name in "ab":
        stage.plans.pod_gone(member(name))

    assert GROUP not in stage.members
    assert stage.plans.about(GROUP) == {"asked": 0}
    await asyncio.sleep(0)
