"""Admission checks are answered by what fits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hami_scheduler.kueue.check import SliceCheck
from hami_scheduler.kueue.watch import trimmed_workload
from hami_scheduler.ledger.bookings import Bookings
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.closed_nodes import ClosedNodes
from hami_scheduler.placement.decisions import DecisionTrace
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import Policy
from hamicommon.errors import Conflict, HamiError, NotFound, Unavailable
from hamicommon.k8s.annotations import KUEUE_WORKLOAD
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.kueue.workloads import Verdict
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.devices import a_device
from tests.unit.hamicommon.kueue.workloads import CHECK, template, workload
from tests.unit.scheduler.placement.test_placer import REQUESTS, VENDORS
from tests.unit.scheduler.readable_ledger import ReadableLedger

NOW = datetime(2026, 11, 30, 12, 1, tzinfo=UTC)
MEMORY = "nvidia.com/gpumem"


@dataclass
class Api:
    """Kueue's objects; patches are merged into them, unless one is refused."""

    workloads: dict[str, Json] = field(default_factory=dict)
    checks: list[Json] = field(default_factory=list)
    refuse: HamiError | None = None
    patched: list[str] = field(default_factory=list)

    shown: dict[str, Json] | None = None
    """Workloads as a late watch shows them."""

    async def patch(self, path: str, body: Json) -> Json:
        if self.refuse is not None:
            raise self.refuse
        self.patched.append(path)
        name = path.split("/")[-2]
        if "admissionchecks" in path:
            [check] = self.checks
            check["status"] = body["status"]
        else:
            asked = self.workloads[name]
            if body["metadata"]["resourceVersion"] != asked["metadata"]["resourceVersion"]:
                raise Conflict("it has changed")
            version = str(int(asked["metadata"]["resourceVersion"]) + 1)
            self.workloads[name] = {
                **asked,
                "metadata": {**asked["metadata"], "resourceVersion": version},
                "status": {**asked["status"], **body["status"]},
            }
        return {}

    def entry(self, name: str) -> Json:
        return dict(self.workloads[name]["status"]["admissionChecks"][1])

    def states(self) -> dict[str, str]:
        return {name: self.entry(name)["state"] for name in self.workloads}


class World:
    """Two nodes with one card of 1000 MiB each."""

    def __init__(self, *, booking_s: float = 30.0, quota: int | None = None) -> None:
        self.now, self.seconds = NOW, 0.0
        self.freed = 0
        self.recorded: list[DecisionTrace] = []
        self.api = Api(
            checks=[
                {
                    "metadata": {"name": CHECK, "generation": 1},
                    "spec": {"controllerName": "hami.io/fits-as-slices"},
                }
            ]
        )
        ledger = ReadableLedger()
        for index, node in enumerate(("n0", "n1")):
            ledger.add_card(NodeName(node), a_device(f"GPU-{index}", type="A100", memory_mib=1000))
        if quota is not None:
            ledger.set_quota("default", MEMORY, quota)
        self.state = ClusterState(
            ledger,
            quota_store=ledger,
            grants=ledger,
            rules=VENDORS.rules,
            ttl_s=10,
            on_freed=self.on_freed,
            clock=lambda: self.seconds,
        )
        asyncio.run(self.state.load())
        self.ends: Counter[str] = Counter()
        self.bookings = Bookings(self.state, lambda result: self.ends.update([result]))
        self.cordoned: list[str] = []
        self.ready = True
        self.check = SliceCheck(
            api=cast(Any, self.api),
            state=self.state,
            is_ready=lambda: self.ready,
            bookings=self.bookings,
            rules=AdmissionRules(vendors=VENDORS, scheduler_name="hami-scheduler"),
            defaults=Policy(),
            nodes=self.nodes,
            closed=ClosedNodes(
                registered=lambda: self.state.cluster.nodes, objects=self.nodes, silent=lambda: ()
            ),
            workloads=lambda: list((self.api.shown or self.api.workloads).values()),
            checks=lambda: self.api.checks,
            flavors=lambda: [
                {"metadata": {"name": "a100"}, "spec": {"nodeLabels": {"card": "a100"}}}
            ],
            instruments=SchedulerInstruments(),
            record=self.recorded.append,
            give_way_s=300,
            booking_s=booking_s,
            clock=lambda: self.now,
        )

    def on_freed(self) -> None:
        self.freed += 1

    def nodes(self) -> list[Json]:
        return [
            {
                "metadata": {"name": name, "labels": {"card": "a100"}},
                "spec": {"unschedulable": name in self.cordoned},
            }
            for name in ("n0", "n1")
        ]

    def ask(self, *workloads: Json) -> dict[str, str]:
        self.api.workloads |= {each["metadata"]["name"]: each for each in workloads}
        asyncio.run(self.check.once())
        return self.api.states()

    def free(self) -> dict[str, int]:
        return {
            str(node): sum(
                card.usage.device.memory_mib - card.usage.used_memory_mib
                for card in self.state.cluster.cards(node)
            )
            for node in self.state.cluster.nodes
        }


def of(name: str, pods: int = 1, memory_mib: int = 600, **fields: Any) -> Json:
    made = ("main", pods, template(gpu=1, gpumem=memory_mib))
    return workload(name, made, **fields)


ALL = {"n0": 1000, "n1": 1000}


def test_a_workload_that_fits_is_ready_and_its_cards_are_kept() -> None:
    world = World()
    assert world.ask(of("w", 2)) == {"w": "Ready"}

    assert world.api.entry("w")["message"] == "2 of 2 pods fit: n0 (1), n1 (1)"
    assert world.api.entry("w")["podSetUpdates"] == [
        {"name": "main", "annotations": {KUEUE_WORKLOAD: "uid-w"}}
    ]
    assert world.free() == {"n0": 400, "n1": 400}
    [active] = world.api.checks[0]["status"]["conditions"]
    assert (active["type"], active["status"]) == ("Active", "True")


def test_what_is_kept_for_one_workload_is_not_promised_to_another() -> None:
    world = World()
    states = world.ask(of("a", 2), of("b"))

    assert states == {"a": "Ready", "b": "Pending"}
    assert "0 of the 1 pod that start together fit" in world.api.entry("b")["message"]


def test_the_workload_of_the_higher_priority_is_answered_first() -> None:
    world = World()
    assert world.ask(of("a", 2), of("b", 2, spec={"priority": 5})) == {
        "a": "Pending",
        "b": "Ready",
    }


def test_a_workload_that_waits_is_judged_again_only_when_something_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.ask(of("w", 3))
    world.ask()
    judged: list[str] = []
    judge = world.check.judge

    def noting(each: JsonMapping) -> Verdict:
        judged.append(each["metadata"]["name"])
        return judge(each)

    monkeypatch.setattr(world.check, "judge", noting)
    world.ask()
    assert judged == []
    world.ask(of("other"))
    assert judged == ["other", "w"], "the other one's booking is a change"


def test_each_verdict_is_recorded_as_a_decision_on_the_workload() -> None:
    world = World()
    world.ask(of("a", 2), of("b", 3))
    world.ask()

    found = [(each.uid, each.outcome, each.group_size) for each in world.recorded]
    assert found == [("workload/default/a", "placed", 2), ("workload/default/b", "refused", 3)]
    assert world.recorded[0].message == "Ready: 2 of 2 pods fit: n0 (1), n1 (1)"
    assert world.recorded[1].message.startswith("Pending: 0 of the 3 pods")


def test_all_or_none_is_kept() -> None:
    world = World()
    assert world.ask(of("w", 3)) == {"w": "Pending"}

    assert "2 of the 3 pods that start together fit" in world.api.entry("w")["message"]
    assert world.free() == ALL


def test_pod_sets_are_judged_beside_each_other() -> None:
    world = World()
    small = ("leader", 1, template(gpu=1, gpumem=400))
    large = ("workers", 2, template(gpu=1, gpumem=900))
    assert world.ask(workload("w", small, large)) == {"w": "Pending"}
    assert world.free() == ALL


def test_without_bookings_it_only_answers() -> None:
    world = World(booking_s=0)
    assert world.ask(of("w", 2)) == {"w": "Ready"}
    assert "podSetUpdates" not in world.api.entry("w")
    assert world.free() == ALL


def test_a_pod_of_the_workload_takes_a_booking_and_no_other_pod_does() -> None:
    world = World()
    world.ask(of("w", 2))
    body = {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "uid": "p",
            "annotations": {KUEUE_WORKLOAD: "uid-w"},
        },
        **template(gpu=1, gpumem=600),
    }
    nodes = [NodeName("n0"), NodeName("n1")]
    strange = {**body, "metadata": {"name": "q", "namespace": "default", "uid": "q"}}
    elsewhere = {**body, "metadata": {**body["metadata"], "namespace": "other"}}
    for other in (strange, elsewhere):
        world.bookings.take(other, REQUESTS.of(other), nodes)
    larger = {**body, **template(gpu=1, gpumem=601)}
    world.bookings.take(larger, REQUESTS.of(larger), nodes)
    world.bookings.take(body, REQUESTS.of(body), [])
    assert len(world.bookings) == 2

    world.bookings.take(body, REQUESTS.of(body), nodes[1:])

    assert world.free() == {"n0": 400, "n1": 1000}
    assert (len(world.bookings), dict(world.ends)) == (1, {"used": 1})


def test_a_group_is_decided_without_its_bookings_and_takes_all_of_them() -> None:
    world = World()
    world.ask(of("w", 2))
    body = {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "uid": "p",
            "annotations": {KUEUE_WORKLOAD: "uid-w"},
        }
    }
    with world.bookings.left_out(body):
        assert world.free() == ALL
    assert world.free() == {"n0": 400, "n1": 400}
    world.bookings.take_all(body)
    assert (world.free(), len(world.bookings), dict(world.ends)) == (ALL, 0, {"used": 2})
    world.bookings.take_all(body)


def test_bookings_end_at_their_deadline_and_with_their_workload() -> None:
    world = World()
    world.ask(of("a"), of("b"))
    assert len(world.bookings) == 2
    del world.api.workloads["a"]
    world.ask()
    assert dict(world.ends) == {"lost": 1}
    assert world.freed == 1, "others are tried again"

    world.seconds = 31.0
    world.state.expire()
    world.ask()
    assert dict(world.ends) == {"lost": 1, "expired": 1}
    assert (len(world.bookings), world.free()) == (0, ALL)


def test_a_change_of_the_active_scheduler_loses_bookings() -> None:
    world = World()
    world.ask(of("w", 2))
    asyncio.run(world.state.load())
    world.ask()
    assert (len(world.bookings), world.free()) == (0, ALL)


def test_it_keeps_nothing_while_kueues_kinds_are_gone_and_answers_when_they_are_back() -> None:
    world = World()
    world.ask(of("a"))
    check, world.api.checks = world.api.checks[0], []
    world.api.workloads.clear()

    assert world.ask() == {}
    assert (world.free(), dict(world.ends)) == (ALL, {"lost": 1})

    del check["status"]
    world.api.checks = [check]
    assert world.ask(of("b")) == {"b": "Ready"}
    assert check["status"]["conditions"][0]["type"] == "Active"


def test_a_late_watch_takes_no_booking_away() -> None:
    world = World()
    world.api.shown = {"a": of("a", 2), "b": of("b")}
    world.ask(*world.api.shown.values())
    assert world.ask() == {"a": "Ready", "b": "Pending"}
    assert len(world.bookings) == 2


@pytest.mark.parametrize(
    ("error", "kept"),
    [(Conflict("changed"), 0), (NotFound("gone"), 0), (Unavailable("perhaps written"), 2)],
)
def test_an_answer_that_was_not_written_keeps_nothing(error: HamiError, kept: int) -> None:
    world = World()
    world.api.refuse = error
    assert world.ask(of("w", 2)) == {"w": "Pending"}
    assert len(world.bookings) == kept
    assert (world.free() == ALL) == (kept == 0)

    world.api.refuse = None
    assert world.ask() == {"w": "Ready"}


def test_a_namespace_without_quota_left_waits_with_our_quotas_sentence() -> None:
    world = World(quota=1000)
    assert world.ask(of("w", 2)) == {"w": "Pending"}
    assert "namespace default has 400 of its quota of 1000" in world.api.entry("w")["message"]
    assert world.free() == ALL


def test_pods_that_no_card_could_take_are_rejected() -> None:
    world = World()
    world.api.refuse = Conflict("changed")
    world.ask(of("w", 1, 1001))
    world.api.refuse = None
    assert world.ask() == {"w": "Rejected"}
    message = world.api.entry("w")["message"]
    assert message.startswith("pod set main: no node can take such a pod:")
    assert "1000 MiB" in message


def test_malformed_amounts_are_rejected_and_pods_without_cards_are_ready() -> None:
    world = World()
    odd = workload("odd", ("main", 1, template(gpu=1, gpumem="16Gi")))
    plain = workload("plain", ("main", 1, {"spec": {"containers": [{"name": "c"}]}}))
    assert world.ask(odd, plain) == {"odd": "Rejected", "plain": "Ready"}
    assert "write 16384" in world.api.entry("odd")["message"]


def test_a_closed_node_takes_no_pod() -> None:
    world = World()
    world.cordoned = ["n0"]
    assert world.ask(of("w", 2)) == {"w": "Pending"}


def test_a_workload_that_waited_for_long_gives_way() -> None:
    world = World()
    world.now = NOW + timedelta(seconds=300)
    assert world.ask(of("w", 3)) == {"w": "Retry"}
    entry = world.api.entry("w")
    assert entry["requeueAfterSeconds"] == 60
    assert entry["message"].startswith("gives way for 60 s after 300 s: 2 of the 3 pods")


def test_nothing_is_answered_before_ledger_and_nodes_are_known() -> None:
    world = World()
    world.ready = False
    assert world.ask(of("w")) == {"w": "Pending"}
    assert world.api.patched == []


def test_only_workloads_that_hold_quota_and_ask_us_are_answered() -> None:
    world = World()
    states = world.ask(
        of("no-quota", status={"conditions": []}),
        of("done", state="Ready"),
        of("deactivated", spec={"active": False}),
    )
    assert states == {"no-quota": "Pending", "done": "Ready", "deactivated": "Pending"}
    world.api.checks[0]["spec"]["controllerName"] = "example.com/else"
    assert world.ask(of("w"))["w"] == "Pending"


def test_a_message_is_rewritten_at_most_now_and_then() -> None:
    world = World()
    world.ask(of("w", 3))
    written = len(world.api.patched)
    world.ask()
    assert len(world.api.patched) == written, "the same message"
    world.cordoned = ["n0"]
    world.ask()
    assert len(world.api.patched) == written, "written lately"
    # As after some seconds.
    world.check._written.clear()
    world.check._waits.clear()
    world.ask()
    assert len(world.api.patched) == written + 1


async def wait_for(reached: Callable[[], bool], step: Callable[[], Awaitable[object]]) -> None:
    while not reached():
        await step()


def test_the_loop_answers_when_it_is_woken() -> None:
    world = World()
    world.api.workloads["w"] = of("w")

    async def run() -> None:
        task = asyncio.create_task(world.check.run())
        world.check.wake()
        async with asyncio.timeout(5):
            await wait_for(
                lambda: world.api.states() == {"w": "Ready"}, lambda: asyncio.sleep(0.001)
            )
        task.cancel()

    asyncio.run(run())


actions = st.lists(
    st.tuples(
        st.sampled_from(("come", "go", "deadline", "conflict")),
        st.sampled_from(("a", "b", "c")),
        st.integers(1, 3),
        st.sampled_from((300, 600, 1000)),
    ),
    max_size=12,
)


@given(actions)
def test_no_card_is_promised_twice_and_none_leaks(steps: list[tuple[str, str, int, int]]) -> None:
    world = World()
    for what, name, pods, memory_mib in steps:
        world.api.refuse = Conflict("changed") if what == "conflict" else None
        if what == "deadline":
            world.seconds += 31
            world.state.expire()
        elif what == "go":
            world.api.workloads.pop(name, None)
        else:
            world.api.workloads[name] = of(name, pods, memory_mib)
        world.ask()
        assert min(world.free().values()) >= 0
    world.api.refuse = None
    world.api.workloads.clear()
    world.ask()
    assert world.free() == ALL


def test_a_workload_that_nobody_asks_about_is_kept_small() -> None:
    asked = of("w")
    assert trimmed_workload(asked) is asked
    del asked["status"]["admissionChecks"]
    kept = trimmed_workload(asked)
    assert (kept["spec"], list(kept["status"])) == ({}, ["conditions"])
