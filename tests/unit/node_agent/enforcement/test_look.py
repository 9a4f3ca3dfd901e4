"""Owners of the processes that the driver lists, and the unknown ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hami_node_agent.devices.processes import CardProcesses, HostProcess
from hami_node_agent.enforcement.checker import CheckPolicy, LimitChecker
from hami_node_agent.enforcement.judgement import (
    ContainerKey,
    Kind,
    LimitKey,
    Resolver,
    limits_of,
    view_of,
)
from hami_node_agent.enforcement.periods import Timing
from hami_node_agent.grants.records import AgentState, PodsSeen
from hami_node_agent.grants.state import NodeState
from hami_node_agent.usage.monitor import MonitorLook
from hami_node_agent.usage.regions.accounting import Evidence
from hamicommon.domain.granted_cards import LimitState
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Unavailable

from tests.unit.node_agent.builders import CARD_A, CARD_B, a_grant, a_holding, a_record

RECORD = a_record(a_grant(pod="granted"), ids={"x"})
LIMITS = limits_of([RECORD], ended=frozenset(), controlled=True)


class Pods:
    """Pods, in the watch's form."""

    live = True

    def __init__(self) -> None:
        self.namespaces = {"granted": "default", "other": "default", "monitor": "kube-system"}
        self.ended: frozenset[PodUid] = frozenset()
        self.containers = {"c1": ("granted", "main"), "c2": ("other", "side")}

    def snapshot(self) -> PodsSeen:
        return PodsSeen(ended=self.ended)

    def name_of(self, pod_uid: str) -> PodRef | None:
        namespace = self.namespaces.get(pod_uid)
        return None if namespace is None else PodRef(namespace, pod_uid, PodUid(pod_uid))

    def api_uid(self, kubelet_uid: str) -> str:
        return "other" if kubelet_uid == "hash" else kubelet_uid

    def container_of(self, container_id: str) -> tuple[str, str] | None:
        return self.containers.get(container_id)


def a_process(pid: int = 100, **fields: Any) -> HostProcess:
    known: dict[str, Any] = {"pod_uid": "", "inner_pid": 1, "started_ticks": 5}
    return HostProcess(host_pid=pid, **(known | fields))


@pytest.mark.parametrize(
    ("process", "kind", "key"),
    [
        (a_process(container_id="c1"), Kind.CONTAINER, ("granted", "main")),
        (a_process(pod_uid="other", container_id="c2"), Kind.CONTAINER, ("other", "side")),
        # The kubelet has not reported the id: only one container can have it.
        (a_process(pod_uid="granted", container_id="new"), Kind.CONTAINER, ("granted", "main")),
        (a_process(pod_uid="other", container_id="new"), Kind.CONTAINER, ("other", "")),
        (a_process(static_pod="hash"), Kind.CONTAINER, ("other", "")),
        (a_process(pod_uid="monitor"), Kind.EXEMPT, ("monitor", "")),
        (a_process(pod_uid="over"), Kind.ENDED, ("over", "")),
        (a_process(), Kind.HOST, ("", "")),
        (a_process(container_id="docker's"), Kind.HOST, ("", "")),
    ],
)
def test_a_process_is_his_by_its_cgroup(
    process: HostProcess, kind: Kind, key: tuple[str, str]
) -> None:
    found = Resolver(Pods(), LIMITS, frozenset({"kube-system"})).owner_of(process)
    assert found == (kind, ContainerKey(*key))


def test_a_pod_that_is_over_or_that_a_live_watch_does_not_know_is_not_blamed() -> None:
    pods = Pods()
    pods.ended = frozenset({PodUid("granted")})
    assert Resolver(pods, {}, frozenset()).owner_of(a_process(container_id="c1"))[0] is Kind.ENDED
    pods = Pods()
    pods.live = False
    unlisted = a_process(pod_uid="unknown")
    assert Resolver(pods, {}, frozenset()).owner_of(unlisted)[0] is Kind.CONTAINER


def look_at(cards: Mapping[str, dict[int, int | None]], *living: HostProcess) -> MonitorLook:
    listed = {
        card: CardProcesses(pids=frozenset(held), held_mib=held) for card, held in cards.items()
    }
    return MonitorLook(
        evidence=Evidence(living={each.host_pid: each for each in living}, cards=listed)
    )


def test_cards_that_the_driver_does_not_list_and_pids_that_stay_unresolved_blind_it() -> None:
    def view(look: MonitorLook, before: Mapping[tuple[str, int], int]) -> Any:
        return view_of(
            look,
            resolver=Resolver(Pods(), LIMITS, frozenset()),
            limits=LIMITS,
            directories={},
            cards=[CARD_A, CARD_B],
            used_mib=lambda _card: None,
            before=before,
        )

    found = view(look_at({CARD_A: {100: 5}}), {})
    assert list(found.facts.blind) == [CARD_B]
    assert found.totals[CARD_A].processes == {Kind.UNRESOLVED: 1}
    for _ in range(2):
        found = view(look_at({CARD_A: {100: 5}, CARD_B: {}}), found.unresolved)
    assert list(found.facts.blind) == [CARD_A]
    assert list(view(MonitorLook(), {}).facts.blind) == [""]


class Kubelet:
    """The kubelet's record of devices and their holders."""

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.by_claims: set[tuple[str, str, str]] | None = set()
        """None: PodResources can't be read."""
        self.away = False
        self.asked = 0

    async def holdings(self) -> Iterable[Any]:
        self.asked += 1
        if self.away:
            raise Unavailable("no checkpoint")
        return self.held

    async def claiming(self) -> frozenset[tuple[str, str, str]]:
        if self.by_claims is None:
            raise Unavailable("no socket")
        return frozenset(self.by_claims)


async def test_the_kubelet_is_asked_once_about_who_has_no_grant_and_its_own_are_not_blamed() -> (
    None
):
    kubelet, pods, now = Kubelet(), Pods(), [0.0]
    store: Any = None
    port: Any = kubelet
    monitor: Any = None
    checker = LimitChecker(
        monitor,
        NodeState(store, AgentState().with_records([RECORD])),
        pods,
        port,
        policy=CheckPolicy(timing=Timing(grace_s=10)),
        devices=tuple,
        clock=lambda: now[0],
    )
    look = look_at({CARD_A: {100: 5}}, a_process(container_id="c2"))
    key = LimitKey("other", "side", CARD_A)

    async def after(looks: int) -> LimitState | None:
        for _ in range(looks):
            await checker.check(look)
            now[0] += 5
        return checker.checked.standings[key].state

    kubelet.held = [a_holding("other", "side", ids={"x"})]
    assert await after(4) is LimitState.UNKNOWN
    assert kubelet.asked == 1
    assert checker.checked.settled is False

    kubelet.held = []
    assert await after(20) is LimitState.BYPASSED
    assert checker.checked.settled
    assert kubelet.asked <= 5
    # A second pod of a claim, which the kubelet starts without a question.
    kubelet.by_claims = {("default", "other", "side")}
    assert await after(20) is LimitState.UNKNOWN
    kubelet.by_claims = None
    assert await after(20) is LimitState.BYPASSED
    kubelet.away = True
    assert await after(20) is LimitState.UNKNOWN
