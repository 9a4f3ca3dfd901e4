"""Assumptions leak nothing, for any calls of /filter and any received or lost signals."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

from hami_scheduler.ledger.cluster_state import MAX_ASSUMED_S, ClusterState
from hami_scheduler.placement.placer import OverQuota, Placer
from hami_scheduler.placement.waiting_pods import WaitingPods
from hami_scheduler.watch.pods import PodWatch
from hamicommon.domain.ids import NodeName, PodUid
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.devices import a_device
from tests.unit.scheduler.placement.test_placer import REQUESTS, VENDORS, place, pod, recording
from tests.unit.scheduler.readable_ledger import ReadableLedger

PODS, NODES = ("a", "b", "c", "d"), ("n0", "n1", "n2")
MEMORY = "nvidia.com/gpumem"
TTL_S = 10.0

asked = st.tuples(st.just("filter"), st.sampled_from(PODS), st.sets(st.sampled_from(NODES)))
signalled = st.tuples(
    st.sampled_from(("given-up", "nominated", "bound-elsewhere", "gated", "ended", "gone", "lost")),
    st.sampled_from(PODS),
    st.just(set[str]()),
)
passed = st.tuples(st.just("time"), st.sampled_from(PODS), st.just(set[str]()))


class Story:
    """A scheduler of three small cards with a quota, and the signals of its watch."""

    def __init__(self) -> None:
        self.now = 0.0
        self.version = 1
        ledger = ReadableLedger()
        for index, node in enumerate(NODES):
            device = a_device(f"GPU-{index}", type="A100", slots=2, memory_mib=250)
            ledger.add_card(NodeName(node), device)
        ledger.set_quota("default", MEMORY, 350)
        self.state = ClusterState(
            ledger,
            quota_store=ledger,
            grants=ledger,
            rules=VENDORS.rules,
            ttl_s=TTL_S,
            clock=lambda: self.now,
        )
        asyncio.run(self.state.load())
        self.placer = Placer(
            state=self.state, requests=REQUESTS, recorder=recording(), binding_s=60
        )
        self.waiting = WaitingPods()
        self.watch = PodWatch(
            store=cast(Any, None),
            transitions=cast(Any, None),
            state=self.state,
            waiting=self.waiting,
            request_of=REQUESTS.of,
            scheduler_name="hami-scheduler",
        )

    def body(self, name: str, **status: Any) -> dict[str, Any]:
        self.version += 1
        body = pod(name)
        body["metadata"] |= {"resourceVersion": str(self.version)}
        body["spec"] |= {"schedulerName": "hami-scheduler"}
        return body | {"status": status}

    def do(self, what: str, name: str, offered: set[str]) -> None:
        if what == "filter":
            body = self.body(name)
            self.waiting.note_visit(body, REQUESTS.of(body))
            try:
                place(self.placer, body, *(NodeName(each) for each in sorted(offered)))
            except OverQuota:
                assert self.state.assumption(PodUid(name)) is None
        elif what == "time":
            self.now += TTL_S / 2
            self.state.expire()
        elif what != "lost":
            self.signal(what, name)

    def signal(self, what: str, name: str) -> None:
        assumed = self.state.assumption(PodUid(name))
        seen = self.body(name)
        if what == "gone":
            self.watch.on_delete(seen)
            return
        if what == "given-up":
            condition = {"type": "PodScheduled", "status": "False", "message": str(self.version)}
            seen["status"] = {"conditions": [condition]}
        elif what == "nominated" and assumed is not None:
            seen["status"] = {"nominatedNodeName": assumed.draft.placement.node}
        elif what == "ended":
            seen["status"] = {"phase": "Failed"}
        elif what == "gated":
            seen["spec"]["schedulingGates"] = [{"name": "g"}]
        elif what == "bound-elsewhere":
            seen["spec"]["nodeName"] = "n-elsewhere"
        self.watch.on_upsert(seen, None)
        if what != "nominated" and assumed is not None:
            assert self.state.assumption(PodUid(name)) is None, what

    def check(self) -> None:
        """Compare cards and quota with the assumptions, each pod counted once."""
        wanted: Counter[str] = Counter()
        for name in PODS:
            assumed = self.state.assumption(PodUid(name))
            for each in assumed.cards if assumed is not None else ():
                wanted[each.uuid] += each.memory_mib
        for node in NODES:
            for card in self.state.cluster.cards(NodeName(node)):
                assert card.usage.used_memory_mib == wanted[card.usage.device.uuid]
        left = 350 - sum(wanted.values())
        assert self.state.quotas.conflict("default", {MEMORY: left}) is None
        assert self.state.quotas.conflict("default", {MEMORY: left + 1}) is not None


@given(st.lists(st.one_of(asked, asked, signalled, passed), max_size=40))
def test_filter_may_be_asked_anything_any_number_of_times_and_leaks_nothing(
    steps: list[tuple[str, str, set[str]]],
) -> None:
    story = Story()
    for step in steps:
        story.do(*step)
        story.check()

    # No further signal arrives: the deadlines free all.
    story.now += MAX_ASSUMED_S + TTL_S
    story.state.expire()

    assert all(story.state.assumption(PodUid(name)) is None for name in PODS)
    story.check()
