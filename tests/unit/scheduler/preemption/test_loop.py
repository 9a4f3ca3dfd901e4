"""Rooms are planned within the operator's limits, and given up if they can't be made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, cast

import pytest
from hami_scheduler.ledger.rooms import Rooms
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.waiting_pods import WaitingPod, WaitingPods
from hami_scheduler.pod_events import Announcer
from hami_scheduler.ports.ledger import HeldRoom, Victim
from hami_scheduler.preemption.loop import PreemptionLimits, Preemptor
from hami_scheduler.watch.trim import trimmed_pod
from hamicommon import device_config
from hamicommon.domain.allocations import AllocationState, ContainerGrant, DeviceShare, Placement
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.domain.requests import Policy
from hamicommon.errors import Conflict, Unavailable
from hamicommon.k8s.annotations import RETRY_AT
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.ledger.model import Entry, StateStep
from hamicommon.placement.cluster.view import CardState
from hamicommon.preemption.holdings import Holder
from hamicommon.preemption.planner import Plan, Preview
from hamicommon.vendors.pod_request import PodRequests, pod_request
from hamicommon.vendors.registry import Vendors

from tests.fakes.ledger import FakeLedger
from tests.fakes.pods import FakePodApi, FakePodEvents
from tests.unit.devices import a_device
from tests.unit.scheduler.states import state_of

VENDORS = Vendors.from_config(device_config.load(None))
NODE, NOW = NodeName("n"), datetime(2026, 11, 30, 12, tzinfo=UTC)
CARD = a_device(type="A100", memory_mib=10_000)


def pod_of(name: str, priority: int, **spec: Any) -> Json:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "creationTimestamp": "2026-11-30T11:00:00Z",
        },
        "spec": {
            "priority": priority,
            "containers": [{"name": "main", "resources": {"limits": limits}}],
            **spec,
        },
    }


class Evicting(FakePodApi):
    """Notes evictions; `bars` has why one is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[str] = []
        self.tried: list[str] = []
        self.nominations: list[str] = []
        self.bars: dict[str, Exception] = {}
        self.on_evicted: Callable[[], None] = lambda: None

    async def evict(self, pod: Json, *, dry_run: bool = False) -> None:
        name = pod["metadata"]["name"]
        if name in self.bars:
            raise self.bars[name]
        (self.tried if dry_run else self.evicted).append(name)
        if not dry_run:
            self.on_evicted()

    async def nominate(self, pod: JsonMapping, node: NodeName) -> None:
        self.nominations.append(node)
        await super().nominate(pod, node)

    async def set_conditions(self, pod: Json, conditions: list[dict[str, Any]]) -> None:
        self.put({**pod, "status": {"conditions": conditions}})


@dataclass
class Stored:
    """The store in place of `PostgresRooms`, which tests/integration and tests/e2e cover."""

    rooms: list[HeldRoom] = field(default_factory=list)
    noted: list[tuple[str, str]] = field(default_factory=list)
    recently: tuple[int, int] = (0, 0)
    over: set[str] = field(default_factory=set)

    async def is_held(self, room: str) -> bool:
        return room not in self.over

    async def list_held_rooms(self) -> list[HeldRoom]:
        return self.rooms

    async def taken_after_s(self, rooms: Collection[str]) -> list[float]:
        return [7.0 for _ in rooms]

    async def note_eviction(self, room: str, victim: str, *, problem: str) -> None:
        del room
        self.noted.append((victim, problem))

    async def lately(self, pod_uid: PodUid) -> tuple[int, int]:
        del pod_uid
        return self.recently


@dataclass
class Plans:
    found: Preview
    shut: Mapping[str, frozenset[NodeName]] = field(default_factory=dict)
    asked: list[frozenset[NodeName]] = field(default_factory=list)

    async def question(self, pod: Json, offered: frozenset[NodeName]) -> None:
        del pod
        self.asked.append(offered)

    async def search(self, question: None) -> Preview:
        del question
        return self.found

    @property
    def closed(self) -> Plans:
        """The closed nodes; only their reasons are read."""
        return self

    def by_reason(self) -> Mapping[str, frozenset[NodeName]]:
        return self.shut


class Writer:
    """The ledger without waiting for others' commands."""

    def __init__(self, ledger: FakeLedger) -> None:
        self._ledger = ledger

    async def enter(self, entry: Entry) -> Any:
        return await self._ledger.enter(entry)

    async def advance(self, step: StateStep) -> Any:
        return await self._ledger.advance(step)


PLACEMENT = Placement(
    node=NODE,
    containers=(
        ContainerGrant(
            index=0,
            name="main",
            role="app",
            shares=(DeviceShare(uuid=CARD.uuid, vendor="NVIDIA", memory_mib=8000, core_percent=0),),
        ),
    ),
)


@dataclass
class World:
    preemptor: Preemptor
    pods: Evicting
    store: Stored
    plans: Plans
    events: FakePodEvents
    ledger: FakeLedger

    async def room(self) -> str:
        live = await self.ledger.live_of(PodUid("high"))
        return "" if live is None else live.state

    async def hold(self) -> HeldRoom:
        """Add the room of `high` to the store."""
        live = await self.ledger.live_of(PodUid("high"))
        assert live is not None
        victims = [
            Victim(
                allocation_id=each.allocation_id,
                pod_uid=each.uid,
                namespace="default",
                pod_name=each.uid,
                is_evicted=False,
                is_gone=False,
            )
            for each in self.plans.found.plans[0].victims
            if each.allocation_id is not None
        ]
        room = HeldRoom(
            id=live.id,
            pod_uid=live.pod_uid,
            namespace="default",
            pod_name="high",
            node=live.node,
            priority=1000,
            memory_mib=8000,
            victims=victims,
        )
        self.store.rooms = [room]
        return room

    def blocked_messages(self) -> list[str]:
        return [each.message for each in self.events.shown if each.reason == "PreemptionBlocked"]


async def world(*, victims: int = 1, limits: dict[str, Any] | None = None, **spec: Any) -> World:
    """A pod `high` that waits, and `low-N` that hold its card."""
    state, ledger, pods = state_of(cast(Any, None), VENDORS.rules), FakeLedger(), Evicting()
    state.cluster.set_node(NODE, [CardState(DeviceUsage(device=CARD), 1)])
    ledger.add_card(NODE, CARD)
    holders = []
    for number in range(victims):
        low = pods.put(pod_of(f"low-{number}", 10, nodeName="n"))
        grant = replace(
            PLACEMENT.containers[0],
            shares=(replace(PLACEMENT.containers[0].shares[0], memory_mib=8000 // victims),),
        )
        change = await ledger.enter(running(low["metadata"]["uid"], grant))
        holders.append(
            Holder(
                uid=PodUid(low["metadata"]["uid"]),
                pod=f"default/low-{number}",
                node=NODE,
                priority=10,
                held=(),
                allocation_id=change.allocation.id,
            )
        )
    high = pods.put(pod_of("high", 1000, **spec))
    waiting = WaitingPods()
    request = pod_request(high, VENDORS, Policy())
    waiting.add(
        WaitingPod(
            uid=PodUid("high"),
            namespace="default",
            name="high",
            created_at="2026-11-30T11:00:00Z",
            priority=1000,
            request=request,
        )
    )
    waiting.note_refusal(PodUid("high"), (NODE,))
    plan = Plan(placement=PLACEMENT, victims=tuple(holders))
    plans, store, events = Plans(Preview(plans=(plan,))), Stored(), FakePodEvents()
    usual = {"after_s": 5.0, "room_s": 60.0, "per_minute": 10, "max_victims": 8}
    preemptor = Preemptor(
        store=cast(Any, store),
        rooms=Rooms(),
        plans=cast(Any, plans),
        waiting=waiting,
        state=state,
        writer=cast(Any, Writer(ledger)),
        pods=watched_pods(high, pod_of("low-0", 10, nodeName="n")),
        pod_api=pods,
        requests=PodRequests(vendors=VENDORS, defaults=Policy()),
        announcer=Announcer(events),
        instruments=SchedulerInstruments(),
        limits=PreemptionLimits(**(usual | (limits or {}))),
        clock=lambda: NOW,
    )
    return World(preemptor, pods, store, plans, events, ledger)


def watched_pods(*pods: Json) -> dict[PodUid, JsonMapping]:
    """The pods as the watch keeps them."""
    return {PodUid(pod["metadata"]["uid"]): trimmed_pod(pod) for pod in pods}


def running(uid: str, grant: ContainerGrant) -> Entry:
    from tests.contract.ledger.allocation_stores import draft

    made = draft(uid, grant, node=NODE)
    return Entry(draft=made, state=AllocationState.ALLOCATED)


async def test_a_plan_is_tried_first_and_written_before_anybody_ends() -> None:
    made = await world()

    await made.preemptor.plan_next()

    assert (made.pods.tried, made.pods.evicted) == (["low-0"], [])
    assert await made.room() == "reserved"
    assert not (await made.hold()).is_ready
    await made.preemptor.keep_rooms()
    assert made.pods.evicted == ["low-0"]
    assert (await made.pods.get("default", "high"))["status"]["nominatedNodeName"] == NODE
    [condition] = (await made.pods.get("default", "low-0"))["status"]["conditions"]
    assert condition["reason"] == "PreemptionByScheduler"
    assert [problem for _, problem in made.store.noted] == [""]


@pytest.mark.parametrize(
    ("limits", "recently", "why"),
    [
        ({"max_victims": 1}, (0, 0), "2 pods would have to be evicted, at most 1 may be"),
        (
            {"per_minute": 10},
            (9, 0),
            "9 pods were evicted in the last minute, at most 10 may be",
        ),
        ({}, (0, 3), "cards were reserved for it 3 times in the last hour"),
    ],
)
async def test_a_limit_keeps_pods_alive_and_is_named(
    limits: dict[str, Any], recently: tuple[int, int], why: str
) -> None:
    made = await world(victims=2, limits=limits)
    made.store.recently = recently

    await made.preemptor.plan_next()

    assert (made.pods.tried, made.pods.evicted, await made.room()) == ([], [], "")
    assert made.blocked_messages() == [f"no pod is preempted for this pod: {why}"]


@pytest.mark.parametrize(
    "spec",
    [
        {"preemptionPolicy": "Never"},
        {"nodeName": "n"},
        {"schedulingGroup": {"podGroupName": "g"}},
    ],
    ids=["never", "bound since", "of a group"],
)
async def test_a_pod_that_must_not_preempt_has_no_plan(spec: Json) -> None:
    made = await world(**spec)
    await made.preemptor.plan_next()
    assert (made.plans.asked, await made.room()) == ([], "")


async def test_nobody_ends_for_a_pod_that_kueue_admitted() -> None:
    made = await world()
    high = await made.pods.get("default", "high")
    high["metadata"]["annotations"] = {"kueue.x-k8s.io/workload": "w"}
    made.preemptor.pods = watched_pods(high, pod_of("low-0", 10, nodeName="n"))
    await made.preemptor.plan_next()
    assert (made.plans.asked, await made.room()) == ([], "")


@pytest.mark.parametrize(
    ("after_s", "asked", "is_planned"),
    [(3601.0, "", False), (5.0, "3601", False), (5.0, "3600", True), (5.0, "soon", True)],
)
async def test_a_pod_waits_for_the_setting_or_for_longer_if_it_asks_to(
    after_s: float, asked: str, is_planned: bool
) -> None:
    made = await world(limits={"after_s": after_s})
    high = made.preemptor.pods[PodUid("high")]
    annotations = {"hami.io/preemption-delay-seconds": asked} if asked else {}
    metadata = {**high["metadata"], "annotations": annotations}
    made.preemptor.pods = {**made.preemptor.pods, PodUid("high"): {**high, "metadata": metadata}}

    await made.preemptor.plan_next()

    assert bool(made.plans.asked) is is_planned


async def test_a_pod_that_is_nominated_is_not_nominated_at_every_look() -> None:
    made = await world()
    await made.preemptor.plan_next()
    await made.hold()
    await made.preemptor.keep_rooms()
    made.preemptor.pods = watched_pods(await made.pods.get("default", "high"))

    await made.preemptor.keep_rooms()

    assert made.pods.nominations == [NODE]


async def test_a_budget_that_forbids_the_dry_run_ends_nobody() -> None:
    made = await world()
    made.pods.bars["low-0"] = Conflict("it would violate the pod's disruption budget")

    await made.preemptor.plan_next()

    assert (made.pods.evicted, await made.room()) == ([], "")
    assert "default/low-0 can't be evicted" in made.blocked_messages()[0]
    blocked = made.preemptor.instruments.preemption_blocked.labels("eviction")
    assert blocked._value.get() == 1


async def test_a_budget_that_closes_in_between_gives_the_room_up() -> None:
    made = await world(victims=2)
    await made.preemptor.plan_next()
    await made.hold()
    made.pods.bars["low-1"] = Conflict("it would violate the pod's disruption budget")

    await made.preemptor.keep_rooms()

    assert (made.pods.evicted, await made.room()) == (["low-0"], "")
    assert "default/low-1 could not be evicted" in made.blocked_messages()[0]
    assert [bool(problem) for _, problem in made.store.noted] == [False, True]


async def test_nobody_ends_for_a_room_that_was_taken_over() -> None:
    made = await world(victims=2)
    await made.preemptor.plan_next()
    room = await made.hold()
    made.pods.on_evicted = lambda: made.store.over.add(room.id)

    await made.preemptor.keep_rooms()

    assert (made.pods.evicted, made.blocked_messages()) == (["low-0"], [])


async def test_no_plan_takes_a_room_over_while_a_pod_is_evicted_for_it() -> None:
    made = await world(victims=2)
    await made.preemptor.plan_next()
    await made.hold()
    made.pods.on_evicted = lambda: seen.append(made.preemptor._lock.locked())
    seen: list[bool] = []

    await made.preemptor.keep_rooms()

    assert seen == [True, True]


@pytest.mark.parametrize(
    ("evicted", "state"),
    [(1, ""), (2, "reserved")],
    ids=["a pod is left to evict", "all are evicted"],
)
async def test_a_room_is_kept_when_preemption_is_switched_off_only_if_its_pods_are_evicted(
    evicted: int, state: str
) -> None:
    made = await world(victims=2)
    await made.preemptor.plan_next()
    room = await made.hold()
    room.victims[:evicted] = [replace(each, is_evicted=True) for each in room.victims[:evicted]]
    made.preemptor.limits = replace(made.preemptor.limits, is_on=False)

    await made.preemptor.keep_rooms()

    assert (made.pods.evicted, await made.room()) == ([], state)
    assert bool(made.blocked_messages()) is (state == "")


async def test_an_api_server_that_is_away_is_asked_again() -> None:
    made = await world()
    await made.preemptor.plan_next()
    await made.hold()
    made.pods.bars["low-0"] = Unavailable("no answer within 10 s")
    await made.preemptor.keep_rooms()
    await made.preemptor.keep_rooms()
    assert (made.store.noted, await made.room()) == ([], "reserved")
    reasons = [each.reason for each in made.ledger.history(PodUid("low-0"))]
    assert len([each for each in reasons if each.startswith("evicted to free cards")]) == 1

    made.pods.bars.clear()
    await made.preemptor.keep_rooms()
    assert made.pods.evicted == ["low-0"]


async def test_a_victim_that_is_gone_by_itself_was_not_evicted() -> None:
    made = await world()
    await made.preemptor.plan_next()
    await made.hold()
    made.pods.remove("default", "low-0")

    await made.preemptor.keep_rooms()

    assert [problem for _, problem in made.store.noted] == [""]
    assert "Preempted" not in [each.reason for each in made.events.shown]


async def test_a_node_that_takes_no_pods_ends_the_room_and_another_one_is_planned() -> None:
    made = await world()
    await made.preemptor.plan_next()
    await made.hold()
    made.plans.shut = {"are cordoned": frozenset({NODE})}

    await made.preemptor.keep_rooms()

    assert (made.pods.evicted, await made.room()) == ([], "")
    assert made.preemptor.rooms.of(PodUid("high")) is None
    assert made.blocked_messages() == [
        "the cards reserved on n are no longer reserved: nodes that are cordoned accept no pods"
    ]
    await made.preemptor.plan_next()
    assert len(made.plans.asked) == 2


async def test_a_pod_has_one_plan_until_its_room_is_read() -> None:
    made = await world()
    await made.preemptor.plan_next()

    await made.preemptor.plan_next()
    await made.hold()
    await made.preemptor.keep_rooms()
    made.preemptor._looked_at.clear()
    await made.preemptor.plan_next()

    assert len(made.plans.asked) == 1


async def test_a_pod_whose_room_is_ready_is_woken_and_seldom_again() -> None:
    made = await world()
    woken, now, ticks = [], NOW, count()
    made.preemptor.clock = lambda: now + timedelta(microseconds=next(ticks))
    gone = Victim(
        allocation_id=AllocationId("v"),
        pod_uid=PodUid("low-0"),
        namespace="default",
        pod_name="low-0",
        is_evicted=True,
        is_gone=True,
    )
    made.store.rooms = [
        HeldRoom(
            id=AllocationId("r"),
            pod_uid=PodUid("high"),
            namespace="default",
            pod_name="high",
            node=NODE,
            priority=1000,
            memory_mib=8000,
            victims=[gone],
        )
    ]

    for second in range(31):
        now = NOW + timedelta(seconds=second)
        await made.preemptor.keep_rooms()
        woken.append((await made.pods.get("default", "high"))["metadata"]["annotations"][RETRY_AT])

    assert woken[0] == NOW.isoformat(timespec="milliseconds")
    assert 4 <= len(set(woken)) <= 6  # after 2, 4, 8 and 16 s, and up to half of that earlier
    sample = made.preemptor.instruments.registry.get_sample_value
    held = sample("hami_scheduler_preemption_held_memory_bytes", {"node": NODE})
    assert held == 8000 * 2**20
    made.store.rooms = []
    await made.preemptor.keep_rooms()
    assert sample("hami_scheduler_preemption_room_seconds_sum") == 7
    assert sample("hami_scheduler_preemption_held_memory_bytes", {"node": NODE}) is None


async def test_a_pod_that_was_not_refused_lately_is_tried_before_anybody_ends() -> None:
    made = await world()
    made.preemptor.waiting._offered.clear()

    await made.preemptor.plan_next()

    assert (made.plans.asked, await made.room()) == ([], "")
    annotations = (await made.pods.get("default", "high"))["metadata"]["annotations"]
    assert "hami.io/retry-at" in annotations
    # It waits for resources of kube-scheduler, and does not delay pods that wait for cards.
    assert made.preemptor._next() is None
    made.preemptor.waiting.note_refusal(PodUid("high"), (NODE,))
    await made.preemptor.plan_next()
    assert await made.room() == "reserved"


@pytest.mark.parametrize(
    ("rooms", "asked"),
    [(0, {NODE}), (1, {NODE, NodeName("m")})],
    ids=["kube-scheduler has ended pods there", "an earlier room has left it behind"],
)
async def test_a_nomination_binds_the_pod_to_its_node_if_it_is_kube_schedulers(
    rooms: int, asked: set[NodeName]
) -> None:
    made = await world(victims=0)
    made.store.recently = (0, rooms)
    made.preemptor.waiting.note_refusal(PodUid("high"), (NODE, NodeName("m")))
    high = {**pod_of("high", 1000), "status": {"nominatedNodeName": NODE}}
    made.preemptor.pods = watched_pods(made.pods.put(high), pod_of("x", 1, nodeName="n"))

    await made.preemptor.plan_next()

    assert made.plans.asked == [asked]


@pytest.mark.parametrize("victims", [0, 1], ids=["only hold cards", "end others"])
async def test_a_nominated_pod_waits_its_delay_only_if_others_have_to_end(victims: int) -> None:
    made = await world(victims=victims)
    later, now = NOW + timedelta(seconds=4000), NOW
    made.preemptor.clock = lambda: now
    made.preemptor.limits = replace(made.preemptor.limits, after_s=3601.0)
    high = {**pod_of("high", 1000), "status": {"nominatedNodeName": NODE}}
    made.preemptor.pods = watched_pods(made.pods.put(high), pod_of("x", 1, nodeName="n"))
    for _ in range(3):
        await made.preemptor.plan_next()
    assert (len(made.plans.asked), await made.room()) == (1, "" if victims else "reserved")

    now = later
    await made.preemptor.plan_next()

    assert await made.room() == "reserved"
